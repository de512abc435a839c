"""Loads text for language modelling (`load_language_dataset`), and reads files of running text."""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from recurra.core.configuration import content_hash
from recurra.core.errors import ConfigurationError, DataError, unknown
from recurra.data.configuration import ALIASES, LanguageDataConfig
from recurra.data.formats import check_text
from recurra.data.releases import Release
from recurra.data.tables import TableFile, is_fasttext


@dataclass(frozen=True, eq=False)
class RunningText:
    """The texts of one split, in order.

    Each text ends with an end of line that it does not include; further ones inside are line feeds. In a corpus of
    lines, an empty text is an empty line.
    """

    name: str
    texts: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (16 hexadecimal digits) over the texts in their order."""
        digest = hashlib.sha256()
        for text in self.texts:
            encoded = text.encode("utf-8", "surrogatepass")
            # The length in front keeps ("ab", "c") and ("a", "bc") apart.
            digest.update(b"%d:" % len(encoded))
            digest.update(encoded)
        return digest.hexdigest()[:16]

    @cached_property
    def words(self) -> int:
        """Words, separated by white space, and one end-of-line a line, empty lines included (WikiText's count)."""
        return sum(len(text.split()) for text in self.texts) + self.num_lines

    @cached_property
    def num_lines(self) -> int:
        """Lines, empty ones included."""
        return len(self.texts) + sum(text.count("\n") for text in self.texts)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes in UTF-8, one for each end of line."""
        return sum(len(text.encode("utf-8", "surrogatepass")) + 1 for text in self.texts)

    def long_lines(self, min_characters: int, limit: int | None = None) -> RunningText:
        """Returns the lines of more than ``min_characters`` characters, the first ``limit`` of them."""
        lines = (line.strip() for text in self.texts for line in text.split("\n"))
        return RunningText(
            self.name, [*itertools.islice((line for line in lines if len(line) > min_characters), limit)]
        )


@dataclass(frozen=True, eq=False)
class LanguageDataset:
    """A text corpus."""

    name: str
    unit: str
    splits: dict[str, RunningText]
    notes: list[str] = field(default_factory=list)

    @cached_property
    def fingerprint(self) -> str:
        """Hash over the names and fingerprints of all splits."""
        return content_hash({name: split.fingerprint for name, split in self.splits.items()})

    def record(self, min_characters: int = 50) -> dict[str, Any]:
        """Describes the corpus in plain JSON values; ``seen_lines`` counts long lines that are in train too."""
        long_lines = {name: split.long_lines(min_characters).texts for name, split in self.splits.items()}
        train = set(long_lines.get("train", ()))
        return {
            "name": self.name,
            "unit": self.unit,
            "fingerprint": self.fingerprint,
            "splits": {
                name: {
                    "fingerprint": split.fingerprint,
                    "texts": len(split),
                    "lines": split.num_lines,
                    "long_lines": len(long_lines[name]),
                    "words": split.words,
                    "bytes": split.num_bytes,
                    "seen_lines": None
                    if name == "train" or not train
                    else sum(line in train for line in long_lines[name]),
                }
                for name, split in self.splits.items()
            },
            "notes": self.notes,
        }


SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class TextSource(Release):
    """A corpus of running text; ``unit`` is what a row holds."""

    parts: tuple[str, ...] = SPLITS
    columns: tuple[str, ...] = ("text",)
    unit: str
    clean: Callable[[str], str]

    @property
    def layout(self) -> str:
        """The files of a local copy, and what a row holds."""
        return f"{super().layout[:-1]}, one {self.unit} a row)"

    def load(self, data_root: Path | None, wanted: Sequence[str] | None) -> dict[str, RunningText]:
        """Loads the wanted splits; by default those that the data root has, or all if it has none."""
        splits = {}
        for name, table in self.read(data_root, wanted or self.present(data_root)).items():
            source = f"{name} of {self.name}"
            rows = enumerate(table.column("text").to_pylist(), start=1)
            texts = [self.clean(check_text(row, source, "row", number, longest=None)) for number, row in rows]
            if not any(texts):
                raise DataError(f"{source} holds no text; the layout is {self.layout}")
            splits[name] = RunningText(name, texts)
        return splits


def _novel(row: str) -> str:
    return row.replace("\r\n", "\n").strip("\n")


SOURCES: dict[str, TextSource] = {
    source.name: source
    for source in (
        *(
            TextSource(
                name=name,
                description=description,
                public_name="Salesforce/wikitext",
                configuration=name,
                unit="line",
                # A row of WikiText has a space before its line, and a space and a newline after it.
                clean=str.strip,
            )
            for name, description in (
                ("wikitext-2-v1", "WikiText-2, tokenised, rare words as <unk>: 720 Wikipedia articles"),
                ("wikitext-2-raw-v1", "WikiText-2 as written, no <unk>"),
                ("wikitext-103-v1", "WikiText-103, tokenised, rare words as <unk>: 28,595 Wikipedia articles"),
                ("wikitext-103-raw-v1", "WikiText-103 as written, no <unk>"),
            )
        ),
        TextSource(
            name="english_novels",
            description="96 English novels of 1839-1927; other authors in validation and test than in train",
            unit="novel",
            clean=_novel,
        ),
    )
}


TEXT_FORMATS = (".txt",)
HELD_OUT_SHARE = 0.1


def read_text_file(path: Path | str) -> list[str]:
    """Reads the lines of a text file, without their ends and without empty lines at the end of the file."""
    try:
        lines = [text for _, (text,) in TableFile(path, allowed=TEXT_FORMATS).rows(["text"])]
    except DataError as error:
        # Commands for running text have no option for the encoding.
        raise DataError(str(error).partition(", or name its encoding")[0]) from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f"'{path}' is empty; give a file with lines of text")
    return lines


def load_text_files(config: LanguageDataConfig, splits: Sequence[str] | None = None) -> LanguageDataset:
    """Loads a user's text file, and the files with validation and test text if they are given.

    Otherwise these parts are cut off the end of the file, a tenth of its bytes each. They are not drawn at random,
    because neighbouring lines belong together.
    """
    lines = read_text_file(config.name)
    own_files = {name: path for name, path in (("validation", config.validation), ("test", config.test)) if path}
    parts = {name: read_text_file(path) for name, path in own_files.items()}
    wanted = [name for name in ("validation", "test") if name not in own_files]
    cuts = _cut(lines, len(wanted))
    for name, part in zip(["train", *wanted], cuts, strict=True):
        if not any(line.strip() for line in part):
            raise DataError(
                f"'{config.name}' is too short to split off {' and '.join(wanted)}: {len(lines)} lines; give more "
                "text, or files of your own with --validation and --test"
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
    ends = list(itertools.accumulate(len(line.encode("utf-8")) + 1 for line in lines))
    bounds = [ends[-1] * (1 - HELD_OUT_SHARE * (parts - number)) for number in range(parts)]
    edges = [0, *(bisect.bisect_right(ends, bound) for bound in bounds), len(lines)]
    return [lines[start:end] for start, end in itertools.pairwise(edges)]


def is_language_corpus(name: str) -> bool:
    """Whether a name or file is text for language modelling, not a labelled corpus."""
    is_text = Path(name).suffix.lower() in TEXT_FORMATS and not is_fasttext(name)
    return name in SOURCES or name in ALIASES or is_text


def load_language_dataset(
    config: LanguageDataConfig, data_root: Path | None = None, splits: Sequence[str] | None = None
) -> LanguageDataset:
    """Loads the text that a configuration names."""
    for split in splits or ():
        if split not in SPLITS:
            raise ConfigurationError(unknown("split", split, SPLITS))
    if data_root is not None and not data_root.is_dir():
        raise DataError(f"the data root '{data_root}' is not a folder; give --data-root DIR (or RECURRA_DATA_ROOT)")
    source = SOURCES.get(config.name)
    if source is None:
        if not Path(config.name).suffix and not Path(config.name).exists():
            raise ConfigurationError(
                f"{unknown('corpus', config.name, SOURCES)}, or the path of a text file ({TEXT_FORMATS[0]})"
            )
        return _part_of(load_text_files(config, splits), config)
    keys = [key for key in ("validation", "test") if getattr(config, key) is not None]
    if keys:
        raise ConfigurationError(f"'{keys[0]}' is for your own files; the corpus '{config.name}' has its own splits")
    loaded = source.load(data_root, splits)
    notes = []
    absent = [name for name in SPLITS if name not in loaded]
    if splits is None and absent:
        notes.append(f"Not in the data root: {', '.join(absent)}; there: {', '.join(loaded)}.")
    return _part_of(LanguageDataset(config.name, source.unit, loaded, notes), config)


def _part_of(dataset: LanguageDataset, config: LanguageDataConfig) -> LanguageDataset:
    train = dataset.splits.get("train")
    if config.fraction == 1 or train is None:
        return dataset
    count = max(1, round(len(train) * config.fraction))
    note = f"Of train the first {count:,} of {len(train):,} {dataset.unit}s are used."
    splits = {**dataset.splits, "train": RunningText("train", train.texts[:count])}
    return replace(dataset, splits=splits, notes=[*dataset.notes, note])
