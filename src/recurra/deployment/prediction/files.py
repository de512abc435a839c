"""Files of predictions: CSV, TSV, JSONL, Parquet, written row by row and moved into place when complete."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError, DataError, StorageError, did_you_mean
from recurra.core.files import atomic_path
from recurra.core.terminal import is_utf8
from recurra.data.cleaning import leaves_nothing
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
from recurra.deployment.engines.computation import Computation
from recurra.deployment.explanation import Explanation, explain

_DIGITS = 6
# Suffix of a column of ours where the input has a column of the same name.
PREDICTED = "_predicted"
PROBABILITIES = "probabilities"
ABSTAINED = "abstained"
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
# First characters that make a cell a formula in common spreadsheets.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """Some rows with their predictions, in the order of the input.

    Attributes:
        probabilities: Shape ``(rows, labels)``.
        input_columns: Values of the input's columns that are written too, one list for each column.
    """

    texts: Sequence[str]
    probabilities: npt.NDArray[np.float64]
    input_columns: Sequence[Sequence[Any]] = ()
    explanations: Sequence[Explanation] | None = None

    def label_texts(self, decision: LabelDecision) -> list[str | None]:
        """The labels of each row as one text; none for a row without a label because the decision abstains."""
        labels: list[str | None] = list(decision.texts(decision.decide(self.probabilities)))
        abstained = decision.abstained(self.probabilities)
        if abstained is None:
            return labels
        return [None if without else label for label, without in zip(labels, abstained.tolist(), strict=True)]


Write = Callable[[PredictedRows], None]
"""Writes some rows with their predictions."""


class Layout:
    """The columns of predictions.

    ``text``, ``label`` (the most probable), ``probability`` (of that label), and ``probability_NAME`` for each class.
    For a multi-label model ``label`` has all labels, and ``probability`` is absent. ``abstained`` follows
    ``probability`` if rows may get no label, and then ``words`` and ``remainder`` (``words_by_label`` for a
    multi-label model) if labels are explained.

    Columns of the input that are written too come first and unchanged, with the input's text column in place of
    ``text``. A column of ours with the name of an input column gets the suffix `PREDICTED`. ``row_columns`` are all
    columns but the probabilities of the classes.
    """

    def __init__(self, decision: LabelDecision, *, input_columns: Sequence[str] = (), explains: bool = False) -> None:
        self.label_names = decision.label_names
        self.input_columns = list(input_columns)
        self.words = "words" if decision.exclusive else "words_by_label"
        # Columns of ours before those of the classes, with how each is made from rows.
        self._own: dict[str, Callable[[PredictedRows], list[Any]]] = {}
        if not input_columns:
            self._own["text"] = lambda rows: list(rows.texts)
        self._own["label"] = lambda rows: rows.label_texts(decision)
        if decision.exclusive:
            self._own["probability"] = lambda rows: np.round(rows.probabilities.max(axis=1), _DIGITS).tolist()
        if decision.abstain_below is not None:
            self._own[ABSTAINED] = lambda rows: np.asarray(decision.abstained(rows.probabilities)).tolist()
        if explains:
            self._own[self.words] = lambda rows: list(rows.explanations or ())
        if explains and decision.exclusive:
            self._own["remainder"] = lambda rows: [row.labels[0].remainder for row in rows.explanations or ()]
        self.row_columns = [*self.input_columns, *map(self.name, self._own)]
        self.columns = [*self.row_columns, *(self.name(f"probability_{label}") for label in self.label_names)]
        for name, count in Counter([*self.columns, self.name(PROBABILITIES)]).items():
            if count > 1:
                raise ConfigurationError(
                    f"two columns would have the name '{name}': beside '{name.removesuffix(PREDICTED)}' of the input, "
                    f"that of the predictions gets the suffix '{PREDICTED}'; rename a column, or leave the input's "
                    "columns out with --no-keep-columns"
                )

    def name(self, column: str) -> str:
        """The name of a column of ours beside those of the input."""
        return f"{column}{PREDICTED}" if column in self.input_columns else column

    def values(self, rows: PredictedRows) -> list[list[Any]]:
        """The values of each column, in the order of `columns`."""
        own = [make(rows) for make in self._own.values()]
        return [*map(list, rows.input_columns), *own, *np.round(rows.probabilities, _DIGITS).T.tolist()]


def _table_rows(stream: TextIO, layout: Layout, delimiter: str, *, escape_formulas: bool) -> Write:
    """Writes CSV or TSV with a header; ``escape_formulas`` puts an apostrophe before what a spreadsheet would run."""
    writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
    # The csv module only quotes cells with its own line end, but for other readers a carriage return ends a line.
    quoting_writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)

    def cell(value: Any) -> Any:
        if isinstance(value, bool) or not (value is None or isinstance(value, str | int | float)):
            value = as_text(value)
        is_formula = escape_formulas and isinstance(value, str) and value.startswith(_FORMULA_STARTS)
        return f"'{value}" if is_formula else value

    def write(rows: PredictedRows) -> None:
        for values in zip(*layout.values(rows), strict=True):
            cells = [cell(value) for value in values]
            has_return = any(isinstance(value, str) and "\r" in value for value in cells)
            (quoting_writer if has_return else writer).writerow(cells)

    writer.writerow(map(cell, layout.columns))
    return write


def as_text(value: Any) -> str:
    """A value of the input as text: strings as they are, JSON values as JSON, others as Python writes them."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | list | dict):
        return json.dumps(value, ensure_ascii=False)
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _as_json(value: Any) -> Any:
    """Converts a value that the json module cannot write."""
    return value.plain() if isinstance(value, Explanation) else as_text(value)


def _finite(value: Any) -> Any:
    """The value with None for each number that JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _json_rows(stream: TextIO, layout: Layout, *, between: str = "", end: str = "\n") -> Write:
    """Writes one JSON object a row, in which the probabilities of the classes are an object; null for no number."""
    ascii_only, before = not is_utf8(stream), itertools.chain([""], itertools.repeat(between))

    def write(rows: PredictedRows) -> None:
        names = layout.row_columns
        for values in zip(*layout.values(rows), strict=True):
            row = {name: _finite(value) for name, value in zip(names, values, strict=False)}
            row[layout.name(PROBABILITIES)] = dict(zip(layout.label_names, values[len(names) :], strict=True))
            stream.write(f"{next(before)}{json.dumps(row, ensure_ascii=ascii_only, default=_as_json)}{end}")

    return write


def _plain_lines(stream: TextIO, decision: LabelDecision) -> Write:
    """Writes a line a row, for a person or a pipe: label, its probability, text, words if explained, between tabs.

    White space in a text becomes single spaces, so that each row is one line.
    """

    def write(rows: PredictedRows) -> None:
        label_indices = decision.decide(rows.probabilities)
        word_texts = (
            [""] * len(rows.texts) if rows.explanations is None else [f"\t{words}" for words in rows.explanations]
        )
        for text, label, label_index, row_probabilities, words in zip(
            rows.texts, rows.label_texts(decision), label_indices, rows.probabilities, word_texts, strict=True
        ):
            numbers = ";".join(f"{probability:.4f}" for probability in np.atleast_1d(row_probabilities[label_index]))
            stream.write(f"{label or ''}\t{numbers}\t{' '.join(text.split())}{words}\n")

    return write


@contextlib.contextmanager
def line_writer(
    stream: TextIO, decision: LabelDecision, computation: Computation, explains: bool = False, *, as_json: bool
) -> Iterator[Write]:
    """Writes lines, or row by row one JSON document with the computation and the list of predictions."""
    if not as_json:
        yield _plain_lines(stream, decision)
        return
    stream.write(f'{{"computation": {json.dumps(computation.plain())}, "predictions": [\n')
    yield _json_rows(stream, Layout(decision, explains=explains), between=",\n", end="")
    stream.write("\n]}\n")


@contextlib.contextmanager
def _parquet_rows(path: Path, layout: Layout, source: Path | None) -> Iterator[Write]:
    """Writes Parquet, with a row group for each chunk.

    Columns of the input that are written too keep their types if the input is Parquet, and are text otherwise.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from_parquet = source is not None and source.suffix.lower() == ".parquet"
    source_schema = pq.read_schema(source) if from_parquet else None
    types = {layout.name(name): pa.string() for name in ("text", "label", layout.words)}
    types[layout.name(ABSTAINED)] = pa.bool_()
    inputs = [(name, source_schema.field(name).type if source_schema else pa.string()) for name in layout.input_columns]
    ours = [(name, types.get(name, pa.float64())) for name in layout.columns[len(inputs) :]]
    schema = pa.schema([*inputs, *ours])

    def array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
        if pa.types.is_string(kind):
            column = [None if value is None else as_text(value) for value in column]
        return pa.array(column, kind)

    with pq.ParquetWriter(path, schema, compression="zstd") as writer:

        def write(rows: PredictedRows) -> None:
            columns = [array(*pair) for pair in zip(layout.values(rows), schema.types, strict=True)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))

        yield write


@dataclass
class PredictionCounts:
    """Counts of predicted rows, and of rows with each label.

    Empty texts are predicted like any other. ``abstained`` rows got no label; it is none if every row gets one.
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
    """Columns of the input, from the file ``source`` if there is one, that are written beside the predictions."""

    names: Sequence[str]
    source: Path | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: str | None, text_column: str, encoding: str | None = None) -> InputColumns | None:
        """The columns of a file; none for texts, plain lines and standard input."""
        if source is None or source == STANDARD_INPUT or (format_of(source) == ".txt" and not is_fasttext(source)):
            return None
        table = TableFile(source, text_column.split(","), encoding=encoding, allowed=STREAM_FORMATS)
        names = table.columns()
        try:
            table.check(names)
        except DataError as error:
            raise DataError(f"{error}, or leave all but the text out with --no-keep-columns") from error
        return cls(names, table.path, tuple(table.notes))


def write_stream(
    classifier: Classifier,
    chunks: Iterable[TextRows],
    write: Write,
    *,
    advance: Callable[[int], None] | None = None,
    explain_words: int | None = None,
) -> PredictionCounts:
    """Predicts raw texts chunk by chunk and writes them in order, with at most ``explain_words`` words a label."""
    decision = classifier.decision
    counts = PredictionCounts(abstained=None if decision.abstain_below is None else 0)
    for chunk in chunks:
        probabilities = classifier.predict_proba(chunk.texts)
        explanations = None
        if explain_words is not None:
            effects = explain(classifier.predict_proba, chunk.texts, probabilities, decision, classifier.most_read)
            explanations = [explanation.strongest(explain_words) for explanation in effects]
        write(PredictedRows(chunk.texts, probabilities, chunk.columns, explanations))
        counts.rows += len(chunk.texts)
        counts.empty += sum(leaves_nothing(text, classifier.cleaning) for text in chunk.texts)
        abstained = decision.abstained(probabilities)
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
    """Yields the texts to predict in chunks: those of a list, or of a file together with other columns."""
    if texts and source is not None:
        raise ConfigurationError(f"{len(texts)} texts and the file '{source}' are given; give one of the two")
    if source is None:
        if not texts:
            raise ConfigurationError("no texts are given; write them after the run, or give --input FILE, or --input -")
        return iter([TextRows(list(texts), [])])
    return stream_rows(source, text_column, [] if columns is None else columns.names, encoding=encoding)


def check_output(path: Path, source: Path | str | None = None) -> None:
    """Refuses an unsuitable output file before any work is done."""
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
    escape_formulas: bool = False,
    columns: InputColumns | None = None,
    explains: bool = False,
) -> Iterator[Write]:
    """Opens a file of predictions by its extension; the file only appears when everything is written."""
    check_output(path)
    columns = columns or InputColumns(())
    layout = Layout(decision, input_columns=columns.names, explains=explains)
    suffix = path.suffix.lower()
    with atomic_path(path) as temporary:
        if suffix == ".parquet":
            with _parquet_rows(temporary, layout, columns.source) as write:
                yield write
            return
        # The csv module writes its own line ends.
        with temporary.open("w", encoding="utf-8", newline="") as stream:
            if suffix == ".jsonl":
                yield _json_rows(stream, layout)
            else:
                yield _table_rows(stream, layout, "\t" if suffix == ".tsv" else ",", escape_formulas=escape_formulas)
