"""``recurra evaluate``: a finished run or an export on a split, or on a labelled file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import print_json, print_lines, print_table


def evaluate(
    run: options.RunOrExport,
    split: Annotated[str | None, typer.Option("--split", help="A split of the run's data; default: the last.")] = None,
    data: Annotated[Path | None, typer.Option("--data", "-d", help="A labelled file instead.")] = None,
    text_column: Annotated[str | None, typer.Option("--text-column", help="Default: the run's.")] = None,
    label_column: Annotated[str | None, typer.Option("--label-column", help="Default: the run's.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File of predictions: .csv, .tsv, .jsonl or .parquet.")
    ] = None,
    precision: options.RunPrecision = None,
    batch_size: options.BatchSize = 64,
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
) -> None:
    """Evaluate a run or an export on a split of its data, or on a labelled file of yours.

    Example: recurra evaluate runs/reviews --data more.csv --output predictions.csv
    """
    from recurra.core.memory import tune_allocator
    from recurra.models.quiet import quieten_libraries
    from recurra.study.evaluate import evaluate_run

    quieten_libraries()
    tune_allocator()
    result = evaluate_run(
        run,
        split=split,
        data=data,
        text_column=text_column,
        label_column=label_column,
        data_root=data_root,
        output=output,
        precision=precision,
        batch_size=batch_size,
    )
    if as_json:
        print_json(result.plain())
        return
    metrics = result.metrics
    low, high = metrics.accuracy_interval
    values = [
        f"{metrics.rows:,}",
        f"{metrics.accuracy:.4f}",
        f"{low:.4f} to {high:.4f}",
        f"{metrics.precision:.4f}",
        f"{metrics.recall:.4f}",
        f"{metrics.f1:.4f}",
        f"{metrics.loss:.4f}",
    ]
    headings = ["Rows of", "Rows", "Accuracy", "95 % interval", "Precision", "Recall", "F1", "Loss"]
    print_table(result.run_id, headings, [[result.source, *values]])
    names = result.label_names
    rows = [[f"true {name}", *map(str, counts)] for name, counts in zip(names, metrics.confusion_matrix, strict=True)]
    print_table("", ["", *(f"predicted {name}" for name in names)], rows)
    lines = [result.computation.describe(), *([] if output is None else [f"predictions: {output}"])]
    if result.recorded is not None:
        lines.append(f"accuracy in the record: {result.recorded.accuracy:.4f}")
    print_lines(lines)
