"""Predicting a stream of texts: any number of rows, in their order, in constant memory."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recurra.core.errors import ConfigurationError, DataError
from recurra.data.tables import STANDARD_INPUT, STREAM_FORMATS, TableFile, TextRows, format_of, is_fasttext, stream_rows
from recurra.deployment.classifier import Classifier
from recurra.deployment.explanation import explain
from recurra.deployment.prediction.layout import PredictedRows, PredictionWriter


@dataclass
class PredictionCounts:
    """What went through a stream.

    Attributes:
        rows: Texts, the empty ones among them.
        empty: Texts without a character but white space; they are predicted like any other and keep their place.
        labels: Rows by predicted label; a row with several counts for each, one without a label for none.
        abstained: Rows that got no label; none if every row was to get one.
    """

    rows: int = 0
    empty: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    abstained: int | None = None

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        more = {} if self.abstained is None else {"abstained": self.abstained}
        return {"rows": self.rows, "empty": self.empty, "labels": dict(self.labels), **more}


@dataclass(frozen=True)
class KeptColumns:
    """Columns of a file that stand beside what is predicted for its rows.

    Attributes:
        source: The file.
        names: All its columns, in their order.
        notes: How the file is read, where that is not the plain case.
    """

    source: Path
    names: list[str]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: str | None, text_column: str, encoding: str | None = None) -> KeptColumns | None:
        """Those of a file with columns; none of texts, plain lines and standard input.

        Raises:
            DataError: If the file cannot be read, or its columns cannot all be kept.
        """
        if source is None or source == STANDARD_INPUT or (format_of(source) == ".txt" and not is_fasttext(source)):
            return None
        table = TableFile(source, text_column.split(","), encoding=encoding, allowed=STREAM_FORMATS)
        names = table.columns()
        try:
            table.check(names)
        except DataError as error:
            raise DataError(f"{error}, or leave all but the text out with --no-keep-columns") from error
        return cls(table.path, names, tuple(table.notes))


def predict_chunks(
    classifier: Classifier,
    chunks: Iterable[TextRows],
    *,
    explain_words: int | None = None,
) -> Iterator[PredictedRows]:
    """Yields predictions chunk by chunk, rows in their order; those without a label where `Decision.abstained` says so.

    Args:
        classifier: What predicts; cleans the texts itself.
        chunks: Raw texts, for example from `recurra.data.tables.stream_rows`.
        explain_words: How many words to say of each row that speak most for its most probable label, of a multi-label
            model for each that it gets (`recurra.deployment.decision.LabelDecision.explained`); none says none.
    """
    for chunk in chunks:
        found = classifier.predict_proba(chunk.texts)
        abstained = classifier.decision.abstained(found)
        explanations = None
        if explain_words is not None:
            whole = explain(classifier.predict_proba, chunk.texts, found, classifier.decision)
            explanations = [one.strongest(explain_words) for one in whole]
        yield PredictedRows(chunk.texts, found, kept=chunk.columns, abstained=abstained, explanations=explanations)


def write_stream(
    classifier: Classifier,
    chunks: Iterable[TextRows],
    writer: PredictionWriter,
    *,
    advance: Callable[[int], None] | None = None,
    explain_words: int | None = None,
) -> PredictionCounts:
    """Predicts all chunks and writes them.

    Args:
        classifier: What predicts.
        chunks: Raw texts.
        writer: Where predictions go.
        advance: Called with the number of rows after each chunk.
        explain_words: Likewise.
    """
    counts = PredictionCounts(abstained=0 if classifier.decision.abstains else None)
    for rows in predict_chunks(classifier, chunks, explain_words=explain_words):
        writer.write(rows)
        counts.rows += len(rows)
        counts.empty += sum(not text.strip() for text in rows.texts)
        labelled = rows.probabilities
        if rows.abstained is not None:
            counts.abstained = (counts.abstained or 0) + int(rows.abstained.sum())
            labelled = labelled[~rows.abstained]
        counts.labels.update(itertools.chain.from_iterable(classifier.decision.labels(labelled)))
        if advance is not None:
            advance(len(rows))
    return counts


def source_chunks(
    texts: Sequence[str],
    source: str | None,
    text_column: str,
    kept: KeptColumns | None = None,
    *,
    encoding: str | None = None,
) -> Iterator[TextRows]:
    """Yields the texts to predict in chunks, from a list or from a file.

    Args:
        texts: Texts, if they are given one by one.
        source: A file, or ``-`` for standard input, if not.
        text_column: Column of the file with the text.
        kept: Columns of the file that come along.
        encoding: Of the file, if it is neither UTF-8 nor has a mark.

    Raises:
        ConfigurationError: If both are given, or neither.
        DataError: If the file cannot be read.
    """
    if texts and source is not None:
        raise ConfigurationError(f"{len(texts)} texts and the file '{source}' are given; give one of the two")
    if source is None:
        if not texts:
            raise ConfigurationError("no texts are given; write them behind the run, or --input FILE, or --input -")
        return iter([TextRows(list(texts), [])])
    return stream_rows(source, text_column, [] if kept is None else kept.names, encoding=encoding)
