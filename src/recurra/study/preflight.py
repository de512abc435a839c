"""Looking at what runs will need before the first one starts: a user's mistake is told once, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from recurra.core.configuration import content_hash
from recurra.core.errors import ConfigurationError, RecurraError
from recurra.core.record import read_any_record
from recurra.data.corpora import load_dataset
from recurra.data.tokenization import check_tokenizer
from recurra.models.names import PRESETS
from recurra.study.language_preflight import preflight_language
from recurra.study.machine import Machine
from recurra.study.spec import RunConfig
from recurra.study.variants import LINEAR

_DECIDED_BY_DATA = frozenset({"num_labels", "id2label", "label2id"})


def preflight(configs: Iterable[RunConfig], machine: Machine) -> None:
    """Checks data, tokenizer and model configuration of runs, each different one once.

    Args:
        configs: Runs that are about to start.
        machine: Where local copies of public data lie.

    Raises:
        RecurraError: What the first run that cannot start would have raised.
    """
    label_names: dict[str, list[str]] = {}
    seen: set[str] = set()
    for config in configs:
        if config.models_language:
            key = content_hash([{**config.plain(), "seed": 0}])
            if key not in seen:
                preflight_language(config, machine)
            seen.add(key)
            continue
        data = content_hash([config.data.plain(), config.data_hash])
        if data not in label_names:
            label_names[data] = load_dataset(config.labelled_data, machine.data_root).label_names
        model = content_hash([data, config.model, config.model_overrides])
        if config.model == LINEAR or model in seen:
            continue
        seen.add(model)
        check_tokenizer(config.labelled_data, machine.data_root)
        # A preset as it stands is known to be good; looking at it would load transformers.
        if config.model_overrides:
            model_configuration(config, label_names[data], None)


def model_configuration(config: RunConfig, label_names: Sequence[str], vocab_size: int | None) -> Any:
    """The model configuration of a run: preset, overrides, and what the data decide.

    Args:
        config: The run.
        label_names: Names of the classes, in order.
        vocab_size: Rows of the token table; none while the tokenizer is not known, for a check of the rest.

    Raises:
        ConfigurationError: For an unknown preset or key, or an input length that the model does not allow.
    """
    from recurra.models.presets import preset

    overrides = dict(config.model_overrides)
    base = str(overrides.pop("preset", config.model if config.model in PRESETS else "recurrent"))
    names = dict(enumerate(label_names))
    decided = sorted(_DECIDED_BY_DATA & set(overrides))
    if decided:
        raise ConfigurationError(f"model '{config.model}': '{decided[0]}' is decided by the data; leave it out")
    if vocab_size is not None and overrides.get("vocab_size", vocab_size) < vocab_size:
        raise ConfigurationError(
            f"model '{config.model}': 'vocab_size' is {overrides['vocab_size']}, the tokenizer has {vocab_size} "
            "pieces; leave vocab_size out, or lower data.trained_vocab_size"
        )
    values = {
        **({} if vocab_size is None else {"vocab_size": vocab_size}),
        **overrides,
        "id2label": names,
        "label2id": {name: index for index, name in names.items()},
    }
    result = preset(base, num_labels=len(names), **values)
    longest = config.labelled_data.max_length
    if result.max_position_embeddings < longest:
        raise ConfigurationError(
            f"max_length is {longest}, the model takes at most {result.max_position_embeddings} tokens; "
            "lower data.max_length or raise max_position_embeddings"
        )
    return result


def is_finished(config: RunConfig, folder: Path) -> bool:
    """Whether the folder holds the record of this very run."""
    try:
        return read_any_record(folder).config_hash == config.config_hash
    except RecurraError:
        return False
