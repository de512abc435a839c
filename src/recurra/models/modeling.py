"""The models: a Transformer of prelude, recurrent core and coda, and its classifier. Native to transformers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from recurra.core.errors import ConfigurationError
from recurra.models.attention import rotary_table
from recurra.models.configuration import RecurraConfig
from recurra.models.embeddings import Embeddings
from recurra.models.layout import Layout, Packed, Padded
from recurra.models.normalisation import RMSNorm
from recurra.models.recurrence import LayerStack, RecurrentCore


class RecurraPreTrainedModel(PreTrainedModel):
    """Initialisation, loading and saving."""

    config_class = RecurraConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = False
    _supports_sdpa = True
    _no_split_modules: ClassVar[list[str]] = ["Layer"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RecurrentCore) and module.residual_scale is not None:
            nn.init.constant_(module.residual_scale, self.config.residual_scale)
        if isinstance(module, RecurraModel):
            # A table outside the checkpoint must be made again after loading on the meta device.
            module.reset_rotary()


class RecurraModel(RecurraPreTrainedModel):
    """The encoder (or, with ``causal``, decoder) without a head."""

    rotary: Tensor

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.prelude = LayerStack(config, config.num_prelude_layers)
        self.core = RecurrentCore(config)
        self.coda = LayerStack(config, config.num_coda_layers)
        self.final_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps) if config.final_norm else nn.Identity()
        table = torch.empty(config.max_position_embeddings, config.head_dim // 2, 2, dtype=torch.float32)
        self.register_buffer("rotary", table, persistent=False)
        self.post_init()

    def reset_rotary(self) -> None:
        """Fills the rotary table, in FP32 whatever the weights' type: half precision loses the angles' small steps."""
        config = self.config
        self.rotary = rotary_table(
            config.max_position_embeddings, config.head_dim, config.rope_theta, self.rotary.device
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # Moving the model to half precision must not take the rotary table along.
        result = super()._apply(fn, recurse)
        if self.rotary.dtype != torch.float32:
            self.reset_rotary()
        return result

    def get_input_embeddings(self) -> nn.Module:
        """The token table."""
        return self.embeddings.token

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replaces the token table."""
        self.embeddings.token = value

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        num_positions: int | None = None,
        row_lengths: Tensor | None = None,
        **_: object,
    ) -> BaseModelOutput:
        """Computes the last hidden states.

        Args:
            input_ids: ``(batch, tokens)``, at most ``max_position_embeddings`` tokens.
            attention_mask: ``(batch, tokens)``, non-zero at real tokens; none means no padding.
            token_type_ids: ``(batch, tokens)``; none means type 0 everywhere.
            num_positions: If given, only that many leading positions are returned, and the last layer computes no
                others. The values are those of the full computation.
            row_lengths: ``(rows,)`` if ``input_ids`` is ``(1, tokens)`` and holds rows of these lengths end to end,
                without padding; ``num_positions`` is then 1 or none. A length of 0 is allowed: its states mean nothing.

        Returns:
            ``last_hidden_state`` of shape ``(batch, tokens or num_positions, hidden)``; ``(1, tokens or rows, hidden)``
            for packed rows.

        Raises:
            ConfigurationError: If a row is longer than the model allows, or packed rows do not fill ``input_ids``.
        """
        layout = self._layout(input_ids, attention_mask, row_lengths)
        states = self.embeddings(input_ids, token_type_ids)
        has_coda = len(self.coda.layers) > 0
        states = self.prelude(states, layout)
        states = self.core(states, layout, None if has_coda else num_positions)
        states = self.coda(states, layout, num_positions if has_coda else None)
        return BaseModelOutput(last_hidden_state=self.final_norm(states))

    def _layout(self, input_ids: Tensor, attention_mask: Tensor | None, row_lengths: Tensor | None) -> Layout:
        tokens = input_ids.shape[1] if row_lengths is None else int(row_lengths.max())
        if tokens > self.config.max_position_embeddings:
            raise ConfigurationError(
                f"an input has {tokens} tokens; this model takes at most {self.config.max_position_embeddings}; "
                "truncate it, or train with a larger max_position_embeddings"
            )
        if row_lengths is None:
            return Padded.of(self.rotary, attention_mask, tokens, causal=self.config.causal)
        if attention_mask is not None or input_ids.shape != (1, int(row_lengths.sum())):
            raise ConfigurationError(
                f"packed rows of {int(row_lengths.sum())} tokens came with input_ids of shape {tuple(input_ids.shape)}"
                f"{' and an attention_mask' if attention_mask is not None else ''}; "
                "give the rows end to end as (1, tokens), without a mask"
            )
        return Packed.of(self.rotary, row_lengths, causal=self.config.causal)


class RecurraForSequenceClassification(RecurraPreTrainedModel):
    """The model with a linear classifier on one position ([CLS] by default)."""

    # The loss is a mean over the batch: the Trainer must scale it itself when it accumulates gradients.
    accepts_loss_kwargs = False

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = RecurraModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        row_lengths: Tensor | None = None,
        **_: object,
    ) -> SequenceClassifierOutput:
        """Classifies.

        Args:
            input_ids: ``(batch, tokens)``.
            attention_mask: ``(batch, tokens)``, non-zero at real tokens.
            token_type_ids: ``(batch, tokens)``.
            labels: ``(batch,)`` class indices.
            row_lengths: Lengths of packed rows, see `RecurraModel`.

        Returns:
            ``logits`` of shape ``(batch or packed rows, labels)`` in FP32, and the mean cross-entropy if labels are
            given.
        """
        if self.config.pooling == "first":
            states = self.model(input_ids, attention_mask, token_type_ids, 1, row_lengths).last_hidden_state
            pooled = states[:, 0] if row_lengths is None else states[0]
        else:
            states = self.model(input_ids, attention_mask, token_type_ids, None, row_lengths).last_hidden_state
            packed = row_lengths is not None
            pooled = last_of_packed(states, row_lengths) if packed else last_position(states, attention_mask)
        logits = self.classifier(pooled).float()
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def last_of_packed(states: Tensor, row_lengths: Tensor) -> Tensor:
    """Returns the states ``(rows, hidden)`` at the last token of each row of packed states ``(1, tokens, hidden)``."""
    return states[0, (row_lengths.cumsum(0) - 1).clamp(min=0)]


def last_position(states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Returns the states ``(batch, hidden)`` at the last real token of each row, for padding on either side."""
    if attention_mask is None:
        return states[:, -1]
    positions = torch.arange(states.shape[1], device=states.device)
    last = (attention_mask.bool() * positions).argmax(dim=1)
    return states[torch.arange(states.shape[0], device=states.device), last]
