"""``recurra compare``: from a labelled file to a report; ``recurra demo``: the same on sentences of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import command_line, present_study
from recurra.core.configuration import names_in


@options.with_data_options()
def compare(
    context: typer.Context,
    data: options.Data,
    assignments: options.StudyOverrides = None,
    models: Annotated[
        str | None,
        typer.Option(
            "--models",
            "-m",
            help="Presets, controls, encoders or model files, separated by commas. Default: linear-tuned, "
            "words-and-encoder, recurra-small, minilm, and setfit (recurra[peers]) up to 400 training rows, 100 "
            "with folds. With --from, these are added to the default models.",
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option("--from", help="The encoder: recurra-small, minilm, e5 for other languages, or a folder."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan",
            help="Train a student made of these layers of the encoder, e.g. '0 3 4 5', in place of recurra-small.",
        ),
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(
            "--teacher",
            help="The teacher of that student, or of recurra-small: a run, an export or a Hugging Face folder; "
            "separate several by commas. Default: the fine-tuned encoder for the student, none for recurra-small.",
        ),
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Without pretrained weights: linear models, baseline and recurrent.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            min=1,
            help="How often to train each model, with the seeds 0, 1, ... Default: 1; 3 for models from scratch.",
        ),
    ] = None,
    max_mib: Annotated[
        float | None, typer.Option("--max-mib", min=0.001, help="Most MiB for the files of the recommended model.")
    ] = None,
    max_ms: Annotated[
        float | None,
        typer.Option("--max-ms", min=0.001, help="Most milliseconds it takes for one text (batch 1)."),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(
            "--measure",
            help="Measure to compare models by: accuracy, macro_f1, balanced_accuracy, average_precision, f1:LABEL, "
            "average_precision:LABEL, or cost:FILE (CSV or JSON, true by predicted label). Default: accuracy, or "
            "macro_f1 if classes are unequal in size.",
        ),
    ] = None,
    predictions: Annotated[
        list[str] | None,
        typer.Option(
            "--predictions",
            metavar="NAME=FILE",
            help="File of answers from elsewhere, such as a large language model, to compare with the models: a label "
            "or probabilities for each row, found by id or text. May be repeated.",
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            "--price",
            metavar="NAME=PRICE",
            help="Price of a text with a model, shown beside its figures. May be repeated.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            help="Limit of the training time, in minutes: the most expensive models are left out until the others "
            "fit. Linear models and words-and-encoder always run.",
        ),
    ] = None,
    final: Annotated[
        bool | None,
        typer.Option(
            "--final/--no-final",
            help="Train the recommended model once more, on test rows too; predict and export use this model. "
            "Default: if it takes less than a minute.",
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", help="Heading of the report. Default: the name of the output folder.")
    ] = None,
    output: options.Output = Path("runs/compare"),
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            "-p",
            help="Training protocol by name or file. Default: chosen by the number of rows; from scratch: tuned.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            help="Precision of matrix products: fp32 or bf16. Default: fp32; bf16 if all trained models start from a "
            "pretrained encoder and this machine has instructions for it.",
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            "--folds",
            min=1,
            help="Folds of the cross-validation: each model is trained once a fold, and every row is tested once. "
            "Default: 5 for a file of fewer than 2,000 short rows, else 1, a single split.",
        ),
    ] = None,
    data_root: options.DataRoot = None,
    cache_dir: options.CacheDir = None,
    workers: options.Workers = 0,
    threads: options.Threads = 0,
    latency: Annotated[bool, typer.Option(help="Time all models side by side at the end.")] = True,
    estimate: Annotated[bool, typer.Option(help="Estimate time and memory of each model before the first run.")] = True,
    wide: options.Wide = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train and compare models on a corpus or a file, and write the report.

    The same command again does only what is missing. The report recommends the smallest model within a point of the
    best one.

    Example: recurra compare reviews.csv --output runs/reviews
    """
    from recurra.comparison import CompareRequest, named_values
    from recurra.core.progress import Reporter
    from recurra.reported_study import run_and_report
    from recurra.tasks.study_data import Machine, StudyData

    _, values, assigned = options.read_keys(data, options.data_keys(context), assignments)
    study_data = StudyData(Machine(data_root=data_root, cache_dir=cache_dir, threads=threads, latency=latency))
    parsed = {
        "models": None if models is None else names_in(models),
        "predictions": named_values(predictions or [], "--predictions", "gpt=answers.csv"),
    }
    prices = named_values(price or [], "--price", "gpt=0.002")
    request = options.chosen(CompareRequest, locals() | parsed, protocol_keys=assigned.protocol)
    reporter = Reporter(quiet=quiet)
    spec, note = request.plan_study(study_data, output, reporter)
    result = run_and_report(
        spec, output, study_data, workers=workers, reporter=reporter, command=command_line(), note=note,
        estimate=estimate and minutes is None, final=final,
    )  # fmt: skip
    present_study(result, as_json=as_json, wide=wide)


def demo(
    output: options.Output = Path("runs/demo"),
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings of each model that uses a seed.")] = 1,
    cache_dir: options.CacheDir = None,
    workers: options.Workers = 1,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare three models on sentences that come with the package, in a few minutes.

    The models learn from which period a sentence of an American president is. For your own file use 'recurra compare'.

    Example: recurra demo --output runs/demo
    """
    from recurra.comparison import demonstration
    from recurra.core.progress import Reporter
    from recurra.reported_study import run_and_report
    from recurra.tasks.study_data import Machine, StudyData

    reporter, study_data = Reporter(quiet=quiet), StudyData(Machine(cache_dir=cache_dir))
    spec, note = demonstration(seeds=seeds).plan_study(study_data, output, reporter)
    result = run_and_report(
        spec, output, study_data, workers=workers, reporter=reporter, command=command_line(), note=note, estimate=False
    )
    present_study(result, as_json=as_json)
