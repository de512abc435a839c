"""``recurra evaluate``: a finished run or an export on a split, or on a labelled file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import print_json, print_lines, print_table
from recurra.core.errors import ConfigurationError


def evaluate(
    run: options.RunOrExport,
    split: Annotated[str | None, typer.Option("--split", help="A split of the run's data; default: the last.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="A labelled file instead; of a language model a .txt.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option("--stride", help="Language model: tokens from window to window; default: blocks.")
    ] = None,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="Language model: also the loss by position in a block or window.")
    ] = False,
    caches: Annotated[
        bool, typer.Option("--caches", help="Language model: also memory and loss of every cache policy in decoding.")
    ] = False,
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
    """Evaluate a run or an export on a split of its data, or on a file of yours; a language model by perplexities.

    Example: recurra evaluate runs/reviews --data more.csv --output predictions.csv
    """
    from recurra.study.language_evaluate import is_language_run

    if is_language_run(run):
        given = {"--text-column": text_column, "--label-column": label_column, "--output": output}
        _refuse(given, f"'{run}' is a run of a language model, which predicts no labels")
        _evaluate_language(
            run, split, data, stride, precision, data_root, by_position=by_position, caches=caches, as_json=as_json
        )
        return
    _refuse(
        {"--stride": stride, "--by-position": by_position or None, "--caches": caches or None},
        f"'{run}' is no run of a language model",
    )

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


def _evaluate_language(
    run: Path,
    split: str | None,
    data: Path | None,
    stride: int | None,
    precision: str | None,
    data_root: Path | None,
    *,
    by_position: bool,
    caches: bool,
    as_json: bool,
) -> None:
    from recurra.cli.language_run import present_evaluation
    from recurra.core.memory import tune_allocator
    from recurra.models.quiet import quieten_libraries
    from recurra.study.language_evaluate import evaluate_language_run

    quieten_libraries()
    tune_allocator()
    found = evaluate_language_run(
        run,
        split=split,
        data=data,
        stride=stride,
        data_root=data_root,
        precision=precision,
        by_position=by_position,
        caches=caches,
    )
    present_evaluation(found, as_json=as_json)


def _refuse(options: Mapping[str, object], reason: str) -> None:
    """Refuses options that would do nothing.

    Raises:
        ConfigurationError: If one was given.
    """
    for option, value in options.items():
        if value is not None:
            raise ConfigurationError(f"'{option}' has no meaning here: {reason}; leave it out")
