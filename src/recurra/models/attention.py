"""Multi-head self-attention, with rotary position embedding or without."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recurra.models.configuration import RecurraConfig
from recurra.models.relaxation import linear_outputs
from recurra.models.rows.layout import RowLayout


def rotary_table(positions: int, head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Returns cosines and sines for every position and pair, ``(positions, head_dim / 2, 2)`` in FP32.

    Pair ``i`` turns by ``position * theta ** (-2 i / head_dim)`` (Su et al. 2021, RoFormer, equation 15).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    angles = torch.outer(torch.arange(positions, dtype=torch.float32, device=device), theta**-exponents)
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def apply_rotary(states: Tensor, table: Tensor | None) -> Tensor:
    """Turns consecutive pairs ``(2i, 2i+1)`` of each head by the position's angle; without a table leaves them.

    Args:
        states: ``(batch, tokens, ..., head_dim)``, any floating type; computed in FP32, and returned so on a CPU, where
            attention wants it; elsewhere in the type of ``states``.
        table: ``(tokens, head_dim / 2, 2)`` from `rotary_table`.
    """
    if table is None:
        return states
    tokens, pairs, _ = table.shape
    middle = (1,) * (states.dim() - 3)
    turn = torch.view_as_complex(table).view(1, tokens, *middle, pairs)
    paired = torch.view_as_complex(states.float().unflatten(-1, (pairs, 2)))
    turned = torch.view_as_real(paired * turn).flatten(-2)
    return turned if states.device.type == "cpu" else turned.to(states.dtype)


class SelfAttention(nn.Module):
    """Multi-head self-attention; queries, keys and values come from one matrix product.

    RoPE, if the model has it, turns queries and keys, so that a score depends on the relative position alone. Softmax
    and the products run in ``scaled_dot_product_attention``, which takes the fused kernels where the device has them.
    """

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_dim = config.head_dim
        self.hidden_size = config.hidden_size
        self.dropout = config.attention_dropout
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.attention_bias)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.attention_bias)

    def forward(self, states: Tensor, layout: RowLayout, queries: int | None) -> Tensor:
        """Attends.

        Args:
            states: ``(batch, tokens, hidden)``, normalised.
            layout: Which tokens are a row, at which positions, and which keys they may see.
            queries: If given, only the first ``queries`` positions of each row are computed and returned.

        Returns:
            ``(batch, tokens or queries, hidden)``.
        """
        batch, tokens, _ = states.shape
        heads, head_dim, width = self.num_heads, self.head_dim, self.hidden_size
        if queries is None:
            qkv = self.qkv_proj(states).view(batch, tokens, 3 * heads, head_dim)
            turned, value = qkv.split((2 * heads, heads), dim=2)
            query, key = apply_rotary(turned, layout.rotary).split(heads, dim=2)
        else:
            query = linear_outputs(self.qkv_proj, layout.leading(states, queries), slice(width))
            query = apply_rotary(query.unflatten(-1, (heads, head_dim)), layout.leading_rotary(queries))
            key, value = self.keys_and_values(states, layout.rotary)
        dropout = self.dropout if self.training else 0.0
        return self.out_proj(layout.attend(query, key, value, queries, dropout))

    def keys_and_values(self, states: Tensor, rotary: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns both of normalised states ``(batch, tokens, hidden)``, ``(batch, tokens, heads, head_dim)`` each."""
        pair = linear_outputs(self.qkv_proj, states, slice(self.hidden_size, None))
        key, value = pair.unflatten(-1, (2 * self.num_heads, self.head_dim)).split(self.num_heads, dim=2)
        return apply_rotary(key, rotary), value
