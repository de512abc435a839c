"""Predicting a stream of texts: any number of rows, in their order, in constant memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np

from recurra.core.errors import ConfigurationError
from recurra.data.files import stream_texts
from recurra.deployment.classifier import Classifier
from recurra.deployment.computation import Computation
from recurra.deployment.writers import JsonLinesWriter, Layout, PredictedRows, PredictionWriter

# Large enough for batches of like length, small enough that a chunk of long texts takes a few MiB.
CHUNK_ROWS = 4096


@dataclass
class PredictionCounts:
    """What went through a stream.

    Attributes:
        rows: Texts, the empty ones among them.
        empty: Texts without a character but white space; they are predicted like any other and keep their place.
        labels: Rows by predicted label.
    """

    rows: int = 0
    empty: int = 0
    labels: Counter[str] = field(default_factory=Counter)

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {"rows": self.rows, "empty": self.empty, "labels": dict(self.labels)}


def predict_chunks(classifier: Classifier, chunks: Iterable[Sequence[str]]) -> Iterator[PredictedRows]:
    """Yields predictions chunk by chunk, rows in their order.

    Args:
        classifier: What predicts; cleans the texts itself.
        chunks: Raw texts, for example from `recurra.data.files.stream_texts`.
    """
    for texts in chunks:
        yield PredictedRows(texts, classifier.predict_proba(texts))


def write_stream(
    classifier: Classifier,
    chunks: Iterable[Sequence[str]],
    writer: PredictionWriter,
    *,
    advance: Callable[[int], None] | None = None,
) -> PredictionCounts:
    """Predicts all chunks and writes them.

    Args:
        classifier: What predicts.
        chunks: Raw texts.
        writer: Where predictions go.
        advance: Called with the number of rows after each chunk.
    """
    counts = PredictionCounts()
    for rows in predict_chunks(classifier, chunks):
        writer.write(rows)
        counts.rows += len(rows)
        counts.empty += sum(not text.strip() for text in rows.texts)
        counts.labels.update(classifier.classes_[rows.probabilities.argmax(axis=1)].tolist())
        if advance is not None:
            advance(len(rows))
    return counts


class LineWriter:
    """Writes a line for each row, for a person or a pipe: label, probability, text, separated by tabs."""

    def __init__(self, stream: TextIO, label_names: Sequence[str]) -> None:
        self._stream = stream
        self._label_names = list(label_names)

    def write(self, rows: PredictedRows) -> None:
        """Writes some rows; white space inside a text becomes single spaces, so that a row stays one line."""
        best = rows.probabilities.argmax(axis=1)
        chosen = rows.probabilities[np.arange(len(rows)), best]
        for text, index, probability in zip(rows.texts, best, chosen, strict=True):
            self._stream.write(f"{self._label_names[index]}\t{probability:.4f}\t{' '.join(text.split())}\n")


class JsonDocumentWriter:
    """Writes one JSON document with a list of predictions, row by row; a context manager.

    Args:
        stream: Where to write.
        label_names: Names of the classes, in order.
        computation: How the predictions were computed, to be said in the document too.
    """

    def __init__(self, stream: TextIO, label_names: Sequence[str], computation: Computation | None = None) -> None:
        self._stream = stream
        self._computation = computation
        self._rows = JsonLinesWriter(stream, Layout(label_names), between=",")

    def __enter__(self) -> JsonDocumentWriter:
        how = f'"computation": {json.dumps(self._computation.plain())}, ' if self._computation else ""
        self._stream.write(f'{{{how}"predictions": [\n')
        return self

    def write(self, rows: PredictedRows) -> None:
        """Writes some rows."""
        self._rows.write(rows)

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self._stream.write("\n]}\n")


def source_chunks(texts: Sequence[str], source: str | None, text_column: str) -> Iterator[Sequence[str]]:
    """Yields the texts to predict in chunks, from a list or from a file.

    Args:
        texts: Texts, if they are given one by one.
        source: A file, or ``-`` for standard input, if not.
        text_column: Column of the file with the text.

    Raises:
        ConfigurationError: If both are given, or neither.
        DataError: If the file cannot be read.
    """
    if texts and source is not None:
        raise ConfigurationError(f"{len(texts)} texts and the file '{source}' are given; give one of the two")
    if source is None:
        if not texts:
            raise ConfigurationError("no texts are given; write them behind the run, or --input FILE, or --input -")
        return iter([list(texts)])
    return iter(stream_texts(source, text_column, CHUNK_ROWS))
