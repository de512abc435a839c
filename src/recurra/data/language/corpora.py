"""The one door to text for language modelling, `load_language_dataset`; and files of running text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recurra.core.errors import ConfigurationError, DataError, did_you_mean, unknown
from recurra.data.language.configuration import ALIASES, LanguageDataConfig
from recurra.data.language.dataset import LanguageDataset, RunningText
from recurra.data.language.sources import SOURCES, SPLITS
from recurra.data.tables import check_path, is_fasttext, plain_rows

TEXT_FORMATS = (".txt",)
HELD_OUT_SHARE = 0.1


def read_text_file(path: Path | str) -> list[str]:
    """Reads the lines of a UTF-8 text file, without their ends; empty lines at the end of the file are left out.

    Raises:
        DataError: If there is no such file, it holds no text, or a byte that is not UTF-8 or NUL; with its line.
    """
    path = Path(path)
    check_path(path, TEXT_FORMATS)
    try:
        with path.open("rb") as stream:
            lines = [values[0] for _, values in plain_rows(stream, f"'{path}'")]
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}; check the file and its permissions") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f"'{path}' is empty; give a file with lines of text")
    return lines


def load_text_files(config: LanguageDataConfig, splits: Sequence[str] | None = None) -> LanguageDataset:
    """Loads a user's text file, and files with validation and test text where they are given.

    Parts that are not given are cut off the end of the file, a tenth of its bytes each: test last, validation before
    it. Neighbouring lines belong together, so they are not drawn at random.

    Args:
        config: ``name``, and perhaps ``validation`` and ``test``, are paths.
        splits: Splits that are wanted; None takes all three.

    Raises:
        DataError: If a file cannot be used, or is too short to be cut.
    """
    lines = read_text_file(config.name)
    given = {name: path for name, path in (("validation", config.validation), ("test", config.test)) if path}
    parts = {name: read_text_file(path) for name, path in given.items()}
    wanted = [name for name in ("validation", "test") if name not in given]
    cuts = _cut(lines, len(wanted))
    for name, part in zip(["train", *wanted], cuts, strict=True):
        if not any(line.strip() for line in part):
            raise DataError(
                f"'{config.name}' is too short to cut off {' and '.join(wanted)}: {len(lines)} lines; "
                "give more text, or files of your own with --validation and --test"
            )
        parts[name] = part
    notes = [f"The last {HELD_OUT_SHARE * len(wanted):.0%} of the file's bytes are {' and '.join(wanted)}."]
    return LanguageDataset(
        name=Path(config.name).name,
        unit="line",
        splits={name: RunningText(name, parts[name]) for name in SPLITS if splits is None or name in splits},
        notes=notes if wanted else [],
    )


def _cut(lines: list[str], parts: int) -> list[list[str]]:
    """Cuts lines into a first part and ``parts`` of a tenth of the bytes behind it."""
    sizes = [len(line.encode("utf-8")) + 1 for line in lines]
    cuts: list[int] = []
    total, seen = sum(sizes), 0
    bounds = [total * (1 - HELD_OUT_SHARE * (parts - number)) for number in range(parts)]
    for number, size in enumerate(sizes):
        while len(cuts) < parts and seen + size > bounds[len(cuts)]:
            cuts.append(number)
        seen += size
    edges = [0, *cuts, len(lines)]
    return [lines[start:end] for start, end in itertools.pairwise(edges)]


def is_language_corpus(name: str) -> bool:
    """Whether a name or file is text for language modelling, not a labelled corpus."""
    is_text = Path(name).suffix.lower() in TEXT_FORMATS and not is_fasttext(name)
    return name in SOURCES or name in ALIASES or is_text


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
