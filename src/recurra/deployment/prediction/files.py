"""Files of predictions: CSV, TSV, JSONL, Parquet, written row by row and put in their place when whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from recurra.core.errors import ConfigurationError, StorageError, did_you_mean
from recurra.core.files import atomic_path
from recurra.data.tables import check_pyarrow
from recurra.deployment.decision import LabelDecision
from recurra.deployment.prediction.layout import Layout, PredictionWriter
from recurra.deployment.prediction.stream import KeptColumns
from recurra.deployment.prediction.text_writers import JsonLinesWriter, TableWriter

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def check_output(path: Path, source: Path | str | None = None) -> None:
    """Refuses a file that cannot be meant, before any work is done.

    Args:
        path: Where predictions shall be written.
        source: The file that they are made from.

    Raises:
        ConfigurationError: For an unknown extension.
        StorageError: If it is the input itself, or a folder.
        UnavailableError: If it is Parquet and pyarrow is not installed, which a server has no use for.
    """
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
    kept: KeptColumns | None = None,
    explains: bool = False,
) -> Iterator[PredictionWriter]:
    """Opens a file of predictions by its extension; it takes its place when all is written, and not at all otherwise.

    Args:
        path: CSV, TSV, JSONL or Parquet.
        decision: What makes labels of probabilities.
        ids: Whether rows carry an id.
        truth: Whether rows carry the true label.
        escape_formulas: Whether cells of CSV and TSV that a spreadsheet would run are written as text.
        kept: Columns of the input that are written before ours.
        explains: Whether labels are explained.

    Raises:
        ConfigurationError: For an unknown extension, or columns that cannot stand beside ours.
        StorageError: If it cannot be written; what was there is untouched.
        UnavailableError: If it is Parquet and pyarrow is not installed, which a server has no use for.
    """
    check_output(path)
    names = [] if kept is None else kept.names
    layout = Layout(decision, ids=ids, truth=truth, kept=names, explains=explains)
    suffix = path.suffix.lower()
    with atomic_path(path) as temporary:
        if suffix == ".parquet":
            from recurra.deployment.prediction.parquet_writer import ParquetWriter

            with contextlib.closing(ParquetWriter(temporary, layout, None if kept is None else kept.source)) as parquet:
                yield parquet
            return
        # The csv module writes its own line ends.
        with temporary.open("w", encoding="utf-8", newline="") as stream:
            if suffix == ".jsonl":
                yield JsonLinesWriter(stream, layout)
            else:
                delimiter = "\t" if suffix == ".tsv" else ","
                yield TableWriter(stream, layout, delimiter, escape_formulas=escape_formulas)
