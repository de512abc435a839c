"""Files of predictions: CSV, TSV, JSONL, Parquet, written row by row and put in their place when whole."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recurra.core.errors import ConfigurationError, DataError, StorageError, did_you_mean
from recurra.core.files import atomic_path
from recurra.data.tables import (
    STANDARD_INPUT,
    STREAM_FORMATS,
    TableFile,
    TextRows,
    check_pyarrow,
    format_of,
    is_fasttext,
    stream_rows,
)
from recurra.deployment.classifier import Classifier
from recurra.deployment.decision import LabelDecision
from recurra.deployment.explanation import explain
from recurra.deployment.prediction.layout import (
    JsonLinesWriter,
    Layout,
    ParquetWriter,
    PredictedRows,
    PredictionWriter,
    TableWriter,
)


@dataclass
class PredictionCounts:
    """What went through a stream.

    Attributes:
        empty: Texts without a character but white space; they are predicted like any other and keep their place.
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
class InputColumns:
    """Columns of a file that stand beside what is predicted for its rows."""

    source: Path
    names: list[str]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: str | None, text_column: str, encoding: str | None = None) -> InputColumns | None:
        """Those of a file with columns; none of texts, plain lines and standard input."""
        if source is None or source == STANDARD_INPUT or (format_of(source) == ".txt" and not is_fasttext(source)):
            return None
        table = TableFile(source, text_column.split(","), encoding=encoding, allowed=STREAM_FORMATS)
        names = table.columns()
        try:
            table.check(names)
        except DataError as error:
            raise DataError(f"{error}, or leave all but the text out with --no-keep-columns") from error
        return cls(table.path, names, tuple(table.notes))


def write_stream(
    classifier: Classifier,
    chunks: Iterable[TextRows],
    writer: PredictionWriter,
    *,
    advance: Callable[[int], None] | None = None,
    explain_words: int | None = None,
) -> PredictionCounts:
    """Predicts raw texts chunk by chunk and writes them in their order.

    Args:
        explain_words: How many words to say of each row that speak most for its most probable label, of a multi-label
            model for each that it gets (`recurra.deployment.decision.LabelDecision.explained`); none says none.
    """
    decision = classifier.decision
    counts = PredictionCounts(abstained=0 if decision.abstains else None)
    for chunk in chunks:
        probabilities = classifier.predict_proba(chunk.texts)
        abstained = decision.abstained(probabilities)
        explanations = None
        if explain_words is not None:
            whole = explain(classifier.predict_proba, chunk.texts, probabilities, decision)
            explanations = [explanation.strongest(explain_words) for explanation in whole]
        writer.write(
            PredictedRows(
                chunk.texts, probabilities, input_columns=chunk.columns, abstained=abstained, explanations=explanations
            )
        )
        counts.rows += len(chunk.texts)
        counts.empty += sum(not text.strip() for text in chunk.texts)
        if abstained is not None:
            counts.abstained = (counts.abstained or 0) + int(abstained.sum())
            probabilities = probabilities[~abstained]
        counts.labels.update(itertools.chain.from_iterable(decision.labels(probabilities)))
        if advance is not None:
            advance(len(chunk.texts))
    return counts


def source_chunks(
    texts: Sequence[str],
    source: str | None,
    text_column: str,
    columns: InputColumns | None = None,
    *,
    encoding: str | None = None,
) -> Iterator[TextRows]:
    """Yields the texts to predict in chunks: those of a list, or of a file, with others of its columns."""
    if texts and source is not None:
        raise ConfigurationError(f"{len(texts)} texts and the file '{source}' are given; give one of the two")
    if source is None:
        if not texts:
            raise ConfigurationError("no texts are given; write them behind the run, or --input FILE, or --input -")
        return iter([TextRows(list(texts), [])])
    return stream_rows(source, text_column, [] if columns is None else columns.names, encoding=encoding)


SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def check_output(path: Path, source: Path | str | None = None) -> None:
    """Refuses a file that cannot be meant, before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigurationError(
            f"'{path}' has the unknown extension '{path.suffix}'{did_you_mean(path.suffix, SUFFIXES)}; "
            f"allowed: {', '.join(SUFFIXES)}"
        )
    if path.suffix.lower() == ".parquet":
        check_pyarrow("or write CSV or JSONL")
    if path.is_dir():
        raise StorageError(f"'{path}' is a folder; give a file for the predictions")
    if source is not None and path.exists() and Path(source).exists() and path.samefile(source):
        raise StorageError(f"'{path}' is the input itself; choose another --output, so that nothing of yours is lost")


@contextlib.contextmanager
def open_writer(
    path: Path,
    decision: LabelDecision,
    *,
    ids: bool = False,
    truth: bool = False,
    escape_formulas: bool = False,
    columns: InputColumns | None = None,
    explains: bool = False,
) -> Iterator[PredictionWriter]:
    """Opens a file of predictions by its extension; it takes its place when all is written, or not at all."""
    check_output(path)
    names = [] if columns is None else columns.names
    layout = Layout(decision, ids=ids, truth=truth, input_columns=names, explains=explains)
    suffix = path.suffix.lower()
    with atomic_path(path) as temporary:
        if suffix == ".parquet":
            source = None if columns is None else columns.source
            with contextlib.closing(ParquetWriter(temporary, layout, source)) as parquet:
                yield parquet
            return
        # The csv module writes its own line ends.
        with temporary.open("w", encoding="utf-8", newline="") as stream:
            if suffix == ".jsonl":
                yield JsonLinesWriter(stream, layout)
            else:
                delimiter = "\t" if suffix == ".tsv" else ","
                yield TableWriter(stream, layout, delimiter, escape_formulas=escape_formulas)
