"""From token ids to the first hidden states."""

from __future__ import annotations

from torch import Tensor, nn

from recurra.models.configuration import RecurraConfig
from recurra.models.dropout import Dropout
from recurra.models.normalisation import RMSNorm


class Embeddings(nn.Module):
    """Token table (optionally factorised), token types, RMSNorm, dropout. Positions come from RoPE."""

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        width = config.token_embedding_size
        self.token = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.projection = nn.Linear(width, config.hidden_size) if width != config.hidden_size else nn.Identity()
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size) if config.type_vocab_size else None
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.dropout = Dropout(config.hidden_dropout)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Maps ids ``(batch, tokens)`` to states ``(batch, tokens, hidden)``; missing token types mean type 0."""
        states = self.projection(self.token(input_ids))
        if self.token_type is not None:
            types = self.token_type.weight[0] if token_type_ids is None else self.token_type(token_type_ids)
            states = states + types
        # Under autocast the projection gives half precision, which the norm's FP32 scale does not mix with.
        return self.dropout(self.norm(states.to(self.norm.weight.dtype)))

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"factorised={isinstance(self.projection, nn.Linear)}"
