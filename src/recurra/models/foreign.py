"""Encoders of other families under our classification head; they keep transformers' own layers, none shared."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel

from recurra.core.errors import ConfigurationError
from recurra.models.adaptation.source import OTHER_FAMILIES, encoder_shape
from recurra.models.exits.rules import ExitRule
from recurra.models.heads import mean
from recurra.models.modeling import RecurraClassifierOutput, called_by_transformers, classification_loss, wants_states
from recurra.models.names import FOREIGN_MODEL_TYPE
from recurra.models.presets import Parameters

if TYPE_CHECKING:
    from recurra.models.adaptation.source import EncoderSource

# Model types that have a pooler unless told otherwise; our head does not read it.
_WITH_POOLER = ("albert", "mpnet")
# Configuration keys that are left out: they name code, or the type that weights were stored in.
_NOT_TAKEN = ("model_type", "auto_map", "dtype", "torch_dtype", "reference_compile")


class ForeignConfig(PreTrainedConfig):
    """A classifier over an encoder of another family, with the keys of `RecurraConfig` that are read elsewhere."""

    model_type: ClassVar[str] = FOREIGN_MODEL_TYPE
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["exit_logits"]

    encoder: dict[str, Any] | None = None
    vocab_size: int = 0
    hidden_size: int = 0
    max_position_embeddings: int = 0
    pad_token_id: int | None = 0
    exits: list[int] | tuple[int, ...] = ()
    num_recurrences: int = 1
    exit_loss_weight: float = 0.0
    pooling: str = "mean"

    def count_parameters(self) -> Parameters:
        """Counts the parameters; the model is built without memory."""
        table, layers = _count(json.dumps(self.encoder))
        head = (self.hidden_size + 1) * self.num_labels
        return Parameters(embeddings=table, prelude=0, core=layers, coda=0, final_norm=0, head=head)

    def forward_flops(self, tokens: int) -> float:
        """Estimates a forward pass over one sequence: every weight but the table's once a token, and the scores."""
        shape = encoder_shape(self.encoder or {})
        times = int(shape["num_recurrences"])
        scores = 4.0 * tokens**2 * self.hidden_size * int(shape["num_core_layers"])
        return times * (2.0 * tokens * self.count_parameters().core + scores)


def _make_encoder(values: dict[str, Any]) -> Any:
    """The encoder of a configuration, with new weights in FP32 and without a pooler."""
    # Imported here because the Auto classes import this module.
    from transformers import AutoModel

    kind = values.get("model_type")
    if kind not in OTHER_FAMILIES:
        raise ConfigurationError(f"model type '{kind}' of 'encoder'; allowed: {', '.join(OTHER_FAMILIES)}")
    # Compiling ModernBERT takes a minute, once more for each new length of texts.
    config = CONFIG_MAPPING[kind](
        **{key: value for key, value in values.items() if key not in _NOT_TAKEN}, reference_compile=False
    )
    options = {"add_pooling_layer": False} if kind in _WITH_POOLER else {}
    return AutoModel.from_config(config, trust_remote_code=False, **options)


@functools.lru_cache(maxsize=8)
def _count(encoder: str) -> tuple[int, int]:
    """Number of weights in the token table, and number of all others."""
    with torch.device("meta"):
        model = _make_encoder(json.loads(encoder))
    table = sum(weight.numel() for weight in model.get_input_embeddings().parameters())
    return table, sum(weight.numel() for weight in model.parameters()) - table


def foreign_configuration(source: EncoderSource, **classifier: Any) -> ForeignConfig:
    """The configuration of a classifier over an encoder, with its labels and ``problem_type``."""
    shape = encoder_shape(source.values)
    keys = ("vocab_size", "hidden_size", "max_position_embeddings", "pad_token_id")
    return ForeignConfig(encoder=dict(source.values), **{key: shape[key] for key in keys}, **classifier)


class ForeignForSequenceClassification(PreTrainedModel):
    """An encoder of another family with a linear classifier on the mean of a row's states."""

    config_class = ForeignConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    # The loss is a mean over the batch: the Trainer must scale it itself when it accumulates gradients.
    accepts_loss_kwargs = False
    # Some families count positions from the padding token's id, which must not change.
    narrows_vocabulary = False

    def __init__(self, config: ForeignConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = _make_encoder(config.encoder or {})
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @called_by_transformers
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        row_lengths: Tensor | None = None,
        *,
        exit_rule: ExitRule | None = None,
        output_hidden_states: bool | None = None,
    ) -> RecurraClassifierOutput:
        """Classifies, as `recurra.models.modeling.RecurraForSequenceClassification` does; packed rows are padded."""
        if exit_rule is not None:
            exit_rule.check(self.config, self.num_labels)
        if row_lengths is not None:
            rows = input_ids[0].split(row_lengths.tolist())
            input_ids = pad_sequence(list(rows), batch_first=True, padding_value=self.config.pad_token_id or 0)
            # An empty row, whose logits mean nothing, still needs a token to attend to.
            lengths = row_lengths.clamp(min=1)[:, None]
            attention_mask = (torch.arange(input_ids.shape[1], device=input_ids.device) < lengths).long()
        elif attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        wants_all = wants_states(self.config, output_hidden_states)
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            output_hidden_states=wants_all,
            return_dict=True,
            **types,
        )
        logits = self.classifier(mean(output.last_hidden_state, attention_mask)).float()
        return RecurraClassifierOutput(
            loss=None if labels is None else classification_loss(logits, labels, self.config),
            logits=logits,
            hidden_states=output.hidden_states,
            exited_after=None if exit_rule is None else torch.ones(len(logits), dtype=torch.long, device=logits.device),
        )

    def logits_by_recurrence(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, row_lengths: Tensor | None = None
    ) -> dict[int, Tensor]:
        """Logits of the only recurrence, by its number."""
        return {1: self(input_ids, attention_mask, row_lengths=row_lengths, return_dict=True).logits}
