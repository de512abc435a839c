"""The text and the model configuration of a language model's run."""

from __future__ import annotations

from recurra.core.errors import ConfigurationError, DataError
from recurra.data.configuration import RunData
from recurra.data.language.configuration import LanguageDataConfig
from recurra.data.language.corpora import load_language_dataset
from recurra.data.language.dataset import LanguageDataset
from recurra.models.configuration import RecurraConfig
from recurra.models.presets import preset
from recurra.tasks.machine import Machine
from recurra.tasks.profile import base_preset, own_keys
from recurra.tasks.runs import RunConfig

SELECTION_SPLIT = "validation"


def running(data: RunData) -> LanguageDataConfig:
    """The data of a language model's run."""
    assert isinstance(data, LanguageDataConfig)
    return data


def load_run_text(data: LanguageDataConfig, machine: Machine) -> LanguageDataset:
    """Loads the text of a run.

    Raises:
        DataError: If the split to train on or the one that chooses the epoch is not there.
        RecurraError: If the text cannot be used.
    """
    dataset = load_language_dataset(data, machine.data_root)
    for name in ("train", SELECTION_SPLIT):
        if name not in dataset.splits:
            raise DataError(
                f"'{data.name}' has no split '{name}' here (there: {', '.join(dataset.splits)}), and training "
                "needs it; take wikitext-2, english_novels or a .txt file, or put the split into the data root"
            )
    return dataset


def check_context(config: RunConfig, longest: int) -> None:
    """Refuses a context that a model cannot read.

    Raises:
        ConfigurationError: If it is longer than ``longest`` tokens.
    """
    context = running(config.data).context
    if context > longest:
        raise ConfigurationError(
            f"context is {context}, and '{config.model}' reads at most {longest} tokens; "
            f"set data.context={longest}, or raise model.max_position_embeddings"
        )


_DECIDED_BY_TOKENIZER = ("bos_token_id", "eos_token_id", "pad_token_id")


def language_configuration(config: RunConfig, vocab_size: int | None, end_of_text: int | None) -> RecurraConfig:
    """The model configuration of a run: preset, overrides, and what the tokenizer decides.

    Args:
        config: The run.
        vocab_size: Rows of the token table; none while the tokenizer is not known, for a check of the rest.
        end_of_text: The token that ends a text and begins the first.

    Raises:
        ConfigurationError: For an unknown preset or key, or a context that the model cannot read.
    """
    overrides = own_keys(config.model_overrides)
    base = base_preset(config.model, config.model_overrides)
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
    result = preset(base, **{**found, **overrides, **ends})
    check_context(config, result.max_position_embeddings)
    return result
