"""The text of a language model's runs: its configuration, its splits, what a model can read of it."""

from __future__ import annotations

from recurra.core.errors import ConfigurationError, DataError
from recurra.data.configuration import RunData
from recurra.data.language.configuration import LanguageDataConfig
from recurra.data.language.corpora import LanguageDataset
from recurra.tasks.runs import RunConfig
from recurra.tasks.study_data import StudyData

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
