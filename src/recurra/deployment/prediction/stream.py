"""Predicting a stream of texts: any number of rows, in their order, in constant memory."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from recurra.core.errors import ConfigurationError
from recurra.data.files import stream_texts
from recurra.deployment.classifier import Classifier
from recurra.deployment.prediction.layout import PredictedRows, PredictionWriter

# Large enough for batches of like length, small enough that a chunk of long texts takes a few MiB.
CHUNK_ROWS = 4096


@dataclass
class PredictionCounts:
    """What went through a stream.

    Attributes:
        rows: Texts, the empty ones among them.
        empty: Texts without a character but white space; they are predicted like any other and keep their place.
        labels: Rows by predicted label; a row with several counts for each.
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
        counts.labels.update(itertools.chain.from_iterable(classifier.decision.labels(rows.probabilities)))
        if advance is not None:
            advance(len(rows))
    return counts


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
