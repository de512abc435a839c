"""``recurra export``: a run as a folder that stands alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import present
from recurra.deployment.export.formats import FORMATS, list_precisions


def export(
    run: options.Run,
    output: options.Output,
    format: Annotated[str, typer.Option("--format", "-f", help=f"One of: {', '.join(FORMATS)}.")] = "safetensors",
    precision: Annotated[
        str, typer.Option("--precision", "-p", help=f"Precision of the stored weights ({list_precisions()}).")
    ] = "fp32",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing export.")] = False,
    rows_file: Annotated[
        Path | None,
        typer.Option(
            "--rows", help="File of texts to check it on. Default: the run's validation split, else the demo's."
        ),
    ] = None,
    text_column: options.InputTextColumn = "text",
    encoding: options.Encoding = None,
    agreement: Annotated[
        float | None,
        typer.Option("--agreement", help="For a model with exits: share of labels to keep. Default: 0.99."),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            "--confidence",
            help="Choose the exit rule so that, with this confidence, the agreement also holds for new texts like the "
            "validation rows, e.g. 0.95.",
        ),
    ] = None,
    precision_of: options.PrecisionOf = None,
    answers_right: options.AnswersRight = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            "--vocabulary",
            min=0,
            help="Keep this many pieces of the vocabulary, the commonest in the training rows; 0: all that they use.",
        ),
    ] = None,
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Export a run, checked against its model on real rows: weights, tokenizer, cleaning, labels, a model card.

    Example: recurra export runs/reviews --precision fp16 --output exports/reviews-fp16
    """
    from recurra.core.progress import Reporter
    from recurra.deployment.export.build import export_run
    from recurra.deployment.export.manifest import ExportOptions
    from recurra.models.quiet import quieten_libraries
    from recurra.tasks.tables import NONE, CommandResult, Table

    quieten_libraries()
    run, reporter = options.one_run(run, quiet=quiet), Reporter(quiet=quiet)
    bounds = None
    if precision_of or answers_right is not None:
        from recurra.tasks.labelling.precision import choose_precision_thresholds, parse_precisions

        bounds, sentences = choose_precision_thresholds(run, parse_precisions(precision_of or []), answers_right)
        for sentence in sentences:
            reporter.say(sentence)
    chosen = options.chosen(ExportOptions, locals(), abstain_below=bounds)
    manifest = export_run(run, output, chosen, reporter=reporter)
    check = manifest.check
    row = {
        "Export": str(output),
        "MiB": f"{manifest.size_bytes / 2**20:.2f}",
        "Same labels": f"{check.label_agreement:.2%}",
        "Rows": f"{check.rows:,}",
        "Largest logit difference": f"{check.largest_logit_difference:.2g}",
        "Accuracy": NONE if check.accuracy is None else f"{check.accuracy:.4f}",
        "Run's accuracy": NONE if check.reference_accuracy is None else f"{check.reference_accuracy:.4f}",
    }
    table = Table("export", f"checked on {check.source}; {check.computation.describe()}", [row])
    notes = [part.describe() for part in (manifest.vocabulary, manifest.exits) if part is not None]
    notes += filter(None, [manifest.describe_size()])
    present(CommandResult({"output": str(output), **manifest.plain()}, [table, notes]), as_json=as_json)
