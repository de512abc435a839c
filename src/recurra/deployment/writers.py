"""Files of predictions: CSV, TSV, JSONL, Parquet, written row by row and put in their place when whole."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError, StorageError, did_you_mean
from recurra.core.files import atomic_path

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
_DIGITS = 6


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """Some rows with what was predicted for them, in the order of the input.

    Attributes:
        texts: As they came.
        probabilities: Shape ``(rows, labels)``.
        ids: Identities of the rows, if they are written.
        truth: Names of the true labels, if they are written.
    """

    texts: Sequence[str]
    probabilities: npt.NDArray[np.float64]
    ids: Sequence[str] | None = None
    truth: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.texts)


class PredictionWriter(Protocol):
    """Takes predictions chunk by chunk."""

    def write(self, rows: PredictedRows) -> None:
        """Writes some rows."""
        ...


class Layout:
    """The columns of predictions.

    ``id`` and ``truth`` if asked for, ``text``, ``label`` (the most probable), ``probability`` (of that label), and
    ``probability_NAME`` for each class.

    Args:
        label_names: Names of the classes, in order.
        ids: Whether rows carry an id.
        truth: Whether rows carry the true label.
    """

    def __init__(self, label_names: Sequence[str], *, ids: bool = False, truth: bool = False) -> None:
        self.label_names = list(label_names)
        self._ids = ids
        self._truth = truth

    @property
    def class_columns(self) -> list[str]:
        """Columns of the probabilities of the classes."""
        return [f"probability_{name}" for name in self.label_names]

    @property
    def columns(self) -> list[str]:
        """All columns, in order."""
        front = [name for name, there in (("id", self._ids), ("truth", self._truth)) if there]
        return [*front, "text", "label", "probability", *self.class_columns]

    def values(self, rows: PredictedRows) -> list[list[Any]]:
        """The values of each column, in the order of `columns`."""
        probabilities = np.round(rows.probabilities, _DIGITS)
        best = rows.probabilities.argmax(axis=1)
        front = [list(part) for part in (rows.ids, rows.truth) if part is not None]
        labels = [self.label_names[index] for index in best]
        chosen = probabilities[np.arange(len(rows)), best].tolist()
        return [*front, list(rows.texts), labels, chosen, *probabilities.T.tolist()]


class TableWriter:
    """Writes CSV or TSV with a header."""

    def __init__(self, stream: TextIO, layout: Layout, delimiter: str) -> None:
        self._layout = layout
        self._writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
        self._writer.writerow(layout.columns)

    def write(self, rows: PredictedRows) -> None:
        """Writes some rows."""
        self._writer.writerows(zip(*self._layout.values(rows), strict=True))


class JsonLinesWriter:
    """Writes one JSON object a line; the probabilities of the classes are an object of their own."""

    def __init__(self, stream: TextIO, layout: Layout, *, between: str = "") -> None:
        """Starts at the present place of the stream.

        Args:
            stream: Where to write.
            layout: The columns.
            between: What stands before the line feed between two rows: a comma inside a JSON array.
        """
        self._stream = stream
        self._layout = layout
        self._between = between
        self._started = False

    def write(self, rows: PredictedRows) -> None:
        """Writes some rows."""
        fixed = len(self._layout.columns) - len(self._layout.label_names)
        names = self._layout.columns[:fixed]
        for values in zip(*self._layout.values(rows), strict=True):
            row = dict(zip(names, values[:fixed], strict=True))
            row["probabilities"] = dict(zip(self._layout.label_names, values[fixed:], strict=True))
            line = json.dumps(row, ensure_ascii=False)
            if self._between:
                self._stream.write(f"{self._between}\n{line}" if self._started else line)
            else:
                self._stream.write(f"{line}\n")
            self._started = True


def check_output(path: Path, source: Path | str | None = None) -> None:
    """Refuses a file that cannot be meant, before any work is done.

    Args:
        path: Where predictions shall be written.
        source: The file that they are made from.

    Raises:
        ConfigurationError: For an unknown extension.
        StorageError: If it is the input itself, or a folder.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigurationError(
            f"'{path}' has the unknown extension '{path.suffix}'{did_you_mean(path.suffix, FORMATS)}; "
            f"allowed: {', '.join(FORMATS)}"
        )
    if path.is_dir():
        raise StorageError(f"'{path}' is a folder; give a file for the predictions")
    if source is not None and path.exists() and Path(source).exists() and path.samefile(source):
        raise StorageError(f"'{path}' is the input itself; choose another --output, so that nothing of yours is lost")


@contextlib.contextmanager
def open_writer(
    path: Path, label_names: Sequence[str], *, ids: bool = False, truth: bool = False
) -> Iterator[PredictionWriter]:
    """Opens a file of predictions by its extension; it takes its place when all is written, and not at all otherwise.

    Args:
        path: CSV, TSV, JSONL or Parquet.
        label_names: Names of the classes, in order.
        ids: Whether rows carry an id.
        truth: Whether rows carry the true label.

    Raises:
        ConfigurationError: For an unknown extension.
        StorageError: If it cannot be written; what was there is untouched.
        UnavailableError: If it is Parquet and pyarrow is not installed, which a server has no use for.
    """
    check_output(path)
    layout = Layout(label_names, ids=ids, truth=truth)
    suffix = path.suffix.lower()
    with atomic_path(path) as temporary:
        if suffix == ".parquet":
            from recurra.deployment.parquet_writer import ParquetWriter

            with contextlib.closing(ParquetWriter(temporary, layout)) as parquet:
                yield parquet
            return
        # The csv module writes its own line ends.
        with temporary.open("w", encoding="utf-8", newline="") as stream:
            if suffix == ".jsonl":
                yield JsonLinesWriter(stream, layout)
            else:
                yield TableWriter(stream, layout, "\t" if suffix == ".tsv" else ",")
