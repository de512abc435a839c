"""``recurra predict``: labels for texts, from arguments, a file or a pipe; to lines, JSON or a file."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recurra.cli import options
from recurra.cli.output import print_json, standard_output

if TYPE_CHECKING:
    from recurra.core.progress import Reporter
    from recurra.deployment.classifier import Classifier
    from recurra.deployment.prediction import PredictionCounts


def predict(
    run: options.RunOrExport,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts.", show_default=False)] = None,
    source: Annotated[
        str | None,
        typer.Option("--input", "-i", help="A .csv, .tsv, .jsonl, .parquet or .txt file; - reads standard input."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .csv, .tsv, .jsonl or .parquet file; default: lines.")
    ] = None,
    text_column: options.TextColumn = "text",
    precision: options.RunPrecision = None,
    batch_size: options.BatchSize = 64,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict the labels of texts, in their order, in constant memory.

    Example: recurra predict runs/reviews --input reviews.csv --output predictions.csv
    """
    from recurra.core.memory import tune_allocator
    from recurra.core.progress import Reporter
    from recurra.deployment.classifier import Classifier
    from recurra.deployment.manifest import needs_torch
    from recurra.deployment.prediction import source_chunks
    from recurra.deployment.writers import check_output

    if output is not None:
        check_output(output, source)
    chunks = source_chunks(texts or [], source, text_column)
    # A file that cannot be read is told before the model is loaded.
    first = next(chunks, None)
    if needs_torch(run):
        from recurra.models.quiet import quieten_libraries

        quieten_libraries()
    tune_allocator()
    classifier = Classifier.open(run, precision=precision, batch_size=batch_size)
    reporter = Reporter(quiet=quiet)
    rest = chunks if first is None else itertools.chain([first], chunks)
    counts = _write(classifier, rest, output, reporter, as_json=as_json)
    if classifier.computation is not None:
        reporter.say(classifier.computation.describe())
    if counts.empty:
        reporter.say(f"{counts.empty:,} of {counts.rows:,} texts are empty; their labels say nothing of them")


def _write(
    classifier: Classifier,
    chunks: Iterable[Sequence[str]],
    output: Path | None,
    reporter: Reporter,
    *,
    as_json: bool,
) -> PredictionCounts:
    from recurra.deployment.prediction import JsonDocumentWriter, LineWriter, write_stream
    from recurra.deployment.writers import open_writer

    names = classifier.classes_.tolist()
    if output is None:
        with standard_output():
            if not as_json:
                return write_stream(classifier, chunks, LineWriter(sys.stdout, names))
            with JsonDocumentWriter(sys.stdout, names, classifier.computation) as document:
                return write_stream(classifier, chunks, document)
        raise typer.Exit  # the reader has left
    with reporter.task("predicting", None) as task, open_writer(output, names) as writer:
        counts = write_stream(classifier, chunks, writer, advance=task.advance)
    if as_json:
        how = None if classifier.computation is None else classifier.computation.plain()
        print_json({"output": str(output), **counts.plain(), "computation": how})
    else:
        reporter.say(f"{counts.rows:,} rows: {output}")
    return counts
