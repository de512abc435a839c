"""What a run of a language model needs, looked at before it starts; and the model configuration that follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recurra.core.errors import ConfigurationError, DataError
from recurra.data.language.corpora import load_language_dataset
from recurra.data.language.dataset import LanguageDataset
from recurra.data.language.tokenization import TRAINED, load_language_tokenizer
from recurra.models.names import LANGUAGE_PRESETS
from recurra.study.machine import Machine
from recurra.study.spec import RunConfig
from recurra.study.tasks import base_preset
from recurra.training.protocols import check_language_protocol

if TYPE_CHECKING:
    from recurra.models.configuration import RecurraConfig

SELECTION_SPLIT = "validation"
REPORTED_SPLITS = ("validation", "test")
_DECIDED_BY_TOKENIZER = ("bos_token_id", "eos_token_id", "pad_token_id")


def preflight_language(config: RunConfig, machine: Machine) -> None:
    """Checks text, tokenizer, protocol and model configuration of a run.

    Raises:
        RecurraError: If the run could not start.
    """
    check_language_protocol(config.protocol)
    load_run_text(config, machine)
    if config.text_data.tokenizer != TRAINED:
        load_language_tokenizer(config.text_data, None, machine.data_root)
    # A preset as it stands is known to be good; looking at it would load transformers.
    if config.model_overrides:
        language_configuration(config, None, None)
    shape = {**LANGUAGE_PRESETS[base_preset(config.model, config.model_overrides)][1], **config.model_overrides}
    _check_context(config, shape["max_position_embeddings"])


def load_run_text(config: RunConfig, machine: Machine) -> LanguageDataset:
    """Loads the text of a run.

    Raises:
        DataError: If the split to train on or the one that chooses the epoch is not there.
        RecurraError: If the text cannot be used.
    """
    dataset = load_language_dataset(config.text_data, machine.data_root)
    for name in ("train", SELECTION_SPLIT):
        if name not in dataset.splits:
            raise DataError(
                f"'{config.data.name}' has no split '{name}' here (there: {', '.join(dataset.splits)}), and training "
                "needs it; take wikitext-2, english_novels or a .txt file, or put the split into the data root"
            )
    return dataset


def language_configuration(config: RunConfig, vocab_size: int | None, end_of_text: int | None) -> RecurraConfig:
    """The model configuration of a run: preset, overrides, and what the tokenizer decides.

    Args:
        config: The run.
        vocab_size: Rows of the token table; none while the tokenizer is not known, for a check of the rest.
        end_of_text: The token that ends a text and begins the first.

    Raises:
        ConfigurationError: For an unknown preset or key, or a context that the model cannot read.
    """
    from recurra.models.presets import preset

    overrides = dict(config.model_overrides)
    base = base_preset(config.model, overrides)
    overrides.pop("preset", None)
    decided = [key for key in _DECIDED_BY_TOKENIZER if key in overrides]
    if decided:
        raise ConfigurationError(f"model '{config.model}': '{decided[0]}' is decided by the tokenizer; leave it out")
    if vocab_size is not None and overrides.get("vocab_size", vocab_size) < vocab_size:
        raise ConfigurationError(
            f"model '{config.model}': 'vocab_size' is {overrides['vocab_size']}, the tokenizer has {vocab_size} "
            "pieces; leave vocab_size out, or lower data.trained_vocab_size"
        )
    found = {} if vocab_size is None else {"vocab_size": vocab_size}
    ends = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    values: dict[str, Any] = {**found, **overrides, **ends}
    result: RecurraConfig = preset(base, **values)
    _check_context(config, result.max_position_embeddings)
    return result


def _check_context(config: RunConfig, longest: int) -> None:
    if config.text_data.context > longest:
        raise ConfigurationError(
            f"context is {config.text_data.context}, and '{config.model}' reads at most {longest} tokens; "
            f"set data.context={longest}, or raise model.max_position_embeddings"
        )
