"""A text file of a user as a corpus: its lines, cut in three parts if no other files are given."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from recurra.core.errors import DataError
from recurra.data.formats import check_path, plain_rows
from recurra.data.language.configuration import LanguageDataConfig
from recurra.data.language.dataset import LanguageDataset, RunningText
from recurra.data.language.sources import SPLITS

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
            lines = [values[0] for _, values in plain_rows(stream, str(path))]
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
