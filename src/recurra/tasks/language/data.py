"""The text of a language model's runs, checks of its context, and the configuration of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recurra.core.errors import ConfigurationError, DataError
from recurra.data.configuration import LanguageDataConfig, RunData
from recurra.data.language.corpora import LanguageDataset
from recurra.tasks.base import RunConfig, base_preset
from recurra.tasks.runs import changed_keys
from recurra.tasks.study_data import StudyData

if TYPE_CHECKING:
    from recurra.models.configuration import RecurraConfig

SELECTION_SPLIT = "validation"


def running(data: RunData) -> LanguageDataConfig:
    """The data of a language model's run."""
    assert isinstance(data, LanguageDataConfig)
    return data


def load_run_text(config: LanguageDataConfig, data: StudyData) -> LanguageDataset:
    """Loads the text of a run.

    Raises:
        DataError: If the split to train on or the one that chooses the epoch is not there.
        RecurraError: If the text cannot be used.
    """
    dataset = data.text(config)
    for name in ("train", SELECTION_SPLIT):
        if name not in dataset.splits:
            raise DataError(
                f"'{config.name}' has no split '{name}' here (there: {', '.join(dataset.splits)}), and training "
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
    """The model configuration of a run: preset, overrides, and keys that the tokenizer decides.

    ``vocab_size`` is the number of rows of the token table; None checks the rest before the tokenizer is known.
    ``end_of_text`` is the token that ends each text and begins the first.

    Raises:
        ConfigurationError: For an unknown preset or key, or a context that the model cannot read.
    """
    from recurra.models.presets import preset

    keys = changed_keys(config, _DECIDED_BY_TOKENIZER, "tokenizer", vocab_size)
    ends: dict[str, Any] = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    result = preset(base_preset(config.model, config.model_overrides), **keys, **ends)
    check_context(config, result.max_position_embeddings)
    return result
