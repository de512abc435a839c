"""From token ids to the first hidden states."""

from __future__ import annotations

from torch import Tensor, nn

from recurra.models.configuration import RecurraConfig
from recurra.models.dropout import Dropout
from recurra.models.feed_forward import Refinement
from recurra.models.normalisation import make_norm
from recurra.models.rows.layout import RowLayout


class ScaleKeepingLinear(nn.Linear):
    """A map up from a narrow token table whose fresh weights keep the table's scale.

    Weights of ``initializer_range`` would shrink the token to a fraction of what is added to it next: positions, and
    the first branch of the first layer. Then a small language model learns the frequencies of words and little else for
    hundreds of steps (`docs/log.md`). Where a norm follows, the scale does not matter.
    """

    def reset_scale(self) -> None:
        """Draws the weights."""
        nn.init.normal_(self.weight, std=self.in_features**-0.5)


class Embeddings(nn.Module):
    """Token table (optionally factorised and refined by cycles), learned positions if not rotary, types, norm, dropout.

    With refinement: ``E = TRM(Linear(Embed(x))) + PosEmbed(p)`` (CRT-Deep, equation 1).
    """

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        width = config.token_embedding_size
        self.token = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        linear = nn.Linear if config.embedding_norm else ScaleKeepingLinear
        self.projection = linear(width, config.hidden_size) if width != config.hidden_size else nn.Identity()
        self.refinement = Refinement(config, config.embedding_cycles) if config.embedding_cycles else None
        learned = config.position == "learned"
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size) if learned else None
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size) if config.type_vocab_size else None
        self.norm = make_norm(config) if config.embedding_norm else nn.Identity()
        given = config.embedding_dropout
        self.dropout = Dropout(config.hidden_dropout if given is None else given)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None, layout: RowLayout) -> Tensor:
        """Maps ids ``(batch, tokens)`` to states ``(batch, tokens, hidden)``; missing token types mean type 0."""
        # Under autocast the projection gives half precision; the residual stream has the type of the weights.
        states = self.projection(self.token(input_ids)).to(self.token.weight.dtype)
        if self.refinement is not None:
            states = self.refinement(states, layout)
        if self.position is not None:
            states = states + self.position(layout.positions(input_ids.device))
        if self.token_type is not None:
            types = self.token_type.weight[0] if token_type_ids is None else self.token_type(token_type_ids)
            states = states + types
        return self.dropout(self.norm(states))

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"factorised={isinstance(self.projection, nn.Linear)}"
