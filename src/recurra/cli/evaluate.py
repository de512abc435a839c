"""``recurra evaluate``: a finished run or an export on a split, or on a labelled file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import present


def evaluate(
    run: options.RunOrExport,
    split: Annotated[
        str | None, typer.Option("--split", help="A split of the run's data; default: test, or the last.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="Your labelled file instead; a .txt for a language model.")
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option("--stride", help="Language model: tokens from one window to the next; default: blocks."),
    ] = None,
    by_position: Annotated[
        bool | None,
        typer.Option("--by-position", help="Language model: also show the loss by position in a block or window."),
    ] = None,
    text_column: Annotated[str | None, typer.Option("--text-column", help="Default: the run's.")] = None,
    label_column: Annotated[str | None, typer.Option("--label-column", help="Default: the run's.")] = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", help="Encoding of the file. Default: the run's.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for predictions: .csv, .tsv, .jsonl or .parquet.")
    ] = None,
    precision: options.RunPrecision = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Classifier: batch, in texts of 32 tokens. Default: 64.")
    ] = None,
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
) -> None:
    """Evaluate a run or an export on a split of its data or on your own file; language models by perplexity.

    Example: recurra evaluate runs/reviews --data more.csv --output predictions.csv
    """
    given_options = {name: value for name, value in locals().items() if name not in ("run", "data_root", "as_json")}
    from recurra.core.environment import tune_allocator
    from recurra.core.record import RECORD_NAME, read_any_record
    from recurra.deployment.export.manifest import read_source_record
    from recurra.models.quiet import quieten_libraries
    from recurra.tasks.base import task

    run = options.one_run(run)
    quieten_libraries()
    tune_allocator()
    # A folder without a record is an export, or cannot be evaluated.
    record = read_any_record(run) if (run / RECORD_NAME).exists() else read_source_record(run)
    present(task(record.task).evaluate(run, given_options, data_root), as_json=as_json)
