"""The model configuration of runs whose models label texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recurra.core.errors import ConfigurationError
from recurra.models.adaptation.source import BERT_LIKE, INT8_NAME
from recurra.models.configuration import RecurraConfig
from recurra.models.presets import preset
from recurra.tasks.base import METHOD, PLAN, RunConfig, base_preset, encoder_of
from recurra.tasks.labelling import labelled
from recurra.tasks.runs import changed_keys

_DECIDED_BY_DATA = frozenset({"num_labels", "id2label", "label2id", "problem_type"})


def model_configuration(config: RunConfig, label_names: Sequence[str], vocab_size: int | None) -> Any:
    """The model configuration of a run: preset, overrides, and keys that the data decide.

    ``vocab_size`` is the number of rows of the token table; None checks the rest before the tokenizer is known.

    Raises:
        ConfigurationError: For an unknown preset or key, or an input length that the model does not allow.
    """
    source = encoder_of(config.model_overrides)
    names, plan = dict(enumerate(label_names)), str(config.model_overrides.get(PLAN, ""))
    # The package of a method reads encoders with transformers.
    read_by_us = source is not None and (source.is_foreign or source.weights.name == INT8_NAME)
    if read_by_us and METHOD in config.model_overrides:
        raise ConfigurationError(
            f"model '{config.model}': '{METHOD}' is {config.model_overrides[METHOD]!r}, only for encoders of "
            f"{', '.join(BERT_LIKE)} whose weights are not 8-bit integers; leave it out"
        )
    if source is not None and "vocab_size" in config.model_overrides:
        raise ConfigurationError(f"model '{config.model}': 'vocab_size' is set by the encoder; leave it out")
    overrides = changed_keys(config, _DECIDED_BY_DATA, "data", vocab_size if source is None else None)
    values: dict[str, Any] = {
        **overrides,
        "id2label": names,
        "label2id": {name: index for index, name in names.items()},
    }
    data = labelled(config.data)
    if data.problem_type is not None:
        values["problem_type"] = data.problem_type
    result: Any
    if source is not None and source.is_foreign:
        if overrides:
            raise ConfigurationError(
                f"model '{config.model}': '{min(overrides)}' is {overrides[min(overrides)]!r}, and the layers of a "
                f"{source.values['model_type']} come from transformers and have no such key; leave it out"
            )
        # Loads transformers' own models, which other configurations do not need.
        from recurra.models.foreign import foreign_configuration

        source.plan(plan)
        result = foreign_configuration(source, **values)
    elif source is None:
        result = preset(base_preset(config.model, config.model_overrides), num_labels=len(names), **values)
    else:
        result = RecurraConfig(**source.shape(plan, {"num_labels": len(names), **values}))
    if result.max_position_embeddings < data.max_length:
        raise ConfigurationError(
            f"max_length is {data.max_length}, the model takes at most {result.max_position_embeddings} tokens; "
            "lower data.max_length or raise max_position_embeddings"
        )
    return result
