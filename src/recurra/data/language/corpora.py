"""The one door to text for language modelling: `load_language_dataset`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recurra.core.errors import ConfigurationError, DataError, did_you_mean, unknown
from recurra.data.language.configuration import ALIASES, LanguageDataConfig
from recurra.data.language.dataset import LanguageDataset, RunningText
from recurra.data.language.sources import SOURCES, SPLITS
from recurra.data.language.text_files import TEXT_FORMATS, load_text_files


def is_language_corpus(name: str) -> bool:
    """Whether a name or file is text for language modelling, not a labelled corpus."""
    return name in SOURCES or name in ALIASES or Path(name).suffix.lower() in TEXT_FORMATS


def load_language_dataset(
    config: LanguageDataConfig, data_root: Path | None = None, splits: Sequence[str] | None = None
) -> LanguageDataset:
    """Loads the text that a configuration names.

    Args:
        config: Corpus or file, and the share of its training text. Mode and context do not matter here.
        data_root: Folder with local copies of public data, or None.
        splits: Splits that are needed; None takes all that are there.

    Raises:
        ConfigurationError: For an unknown corpus or split.
        DataError: If the text cannot be used.
        UnavailableError: If it is neither in the data root nor to be had.
    """
    for split in splits or ():
        if split not in SPLITS:
            raise ConfigurationError(unknown("split", split, SPLITS))
    if data_root is not None and not data_root.is_dir():
        raise DataError(f"the data root '{data_root}' is not a folder; give --data-root DIR (or RECURRA_DATA_ROOT)")
    source = SOURCES.get(config.name)
    if source is None:
        if not Path(config.name).suffix and not Path(config.name).exists():
            raise ConfigurationError(
                f"unknown corpus '{config.name}'{did_you_mean(config.name, SOURCES)}; allowed: {', '.join(SOURCES)}, "
                f"or the path of a text file ({', '.join(TEXT_FORMATS)})"
            )
        return _part_of(load_text_files(config, splits), config)
    given = [key for key in ("validation", "test") if getattr(config, key) is not None]
    if given:
        raise ConfigurationError(f"'{given[0]}' is for your own files; the corpus '{config.name}' has its own splits")
    loaded = source.load(data_root, splits)
    notes = []
    absent = [name for name in SPLITS if name not in loaded]
    if splits is None and absent:
        notes.append(f"Not in the data root: {', '.join(absent)}; there: {', '.join(loaded)}.")
    return _part_of(LanguageDataset(config.name, source.unit, loaded, notes), config)


def _part_of(dataset: LanguageDataset, config: LanguageDataConfig) -> LanguageDataset:
    """The data set with the wanted share of its training text."""
    train = dataset.splits.get("train")
    if config.fraction == 1 or train is None:
        return dataset
    kept = max(1, round(len(train) * config.fraction))
    note = f"Of train the first {kept:,} of {len(train):,} {dataset.unit}s are used."
    splits = {**dataset.splits, "train": RunningText("train", train.texts[:kept])}
    return replace(dataset, splits=splits, notes=[*dataset.notes, note])
