"""Position-wise feed-forward networks."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from recurra.models.configuration import RecurraConfig


class SwiGLU(nn.Module):
    """``W3 (SiLU(W1 x) * W2 x)`` (Shazeer 2020, equation 6, with biases); W1 and W2 are one matrix product."""

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, states: Tensor) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same shape."""
        gate, up = self.gate_up_proj(states).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)
