"""``recurra predict``: labels for texts, from arguments, a file, a pipe or a folder; to lines, JSON or files."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recurra.cli import options
from recurra.cli.output import print_json, standard_output
from recurra.core.errors import ConfigurationError, RunError

if TYPE_CHECKING:
    from recurra.core.progress import Reporter
    from recurra.data.tables import TextRows
    from recurra.deployment.classifier import Classifier
    from recurra.deployment.prediction.files import InputColumns, PredictionCounts
    from recurra.deployment.prediction.folder import FolderJob
    from recurra.models.exits.rules import ExitRule


# What options are for; anything else would ignore them.
_SINGLE = "texts and single files"
_FOLDER, _RAY = "a folder (--input FOLDER)", "a folder on a Ray cluster (--engine ray)"
_FILES, _OUTPUT = "files and standard input (--input)", "an output file (--output)"
_MEANT_FOR = {
    "abstain_below": _SINGLE,
    "precision_of": _SINGLE,
    "answers_right": _SINGLE,
    "explain": _SINGLE,
    "part_format": _FOLDER,
    "address": _RAY,
    "workers": _RAY,
    "worker_cpus": _RAY,
    "retries": _RAY,
    "text_column": _FILES,
    "encoding": _FILES,
    "no_keep_columns": _OUTPUT,
}


def predict(
    run: options.RunOrExport,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts.")] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            help="A .txt, .csv, .tsv, .jsonl, .json, .parquet or .xlsx file, a folder, or - for standard input: lines, "
            "JSON lines, or a table with a header.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A .csv, .tsv, .jsonl or .parquet file; default: lines. For a folder: a folder."
        ),
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option("--text-column", help="Column with the text, or several to join: title,body. Default: the run's."),
    ] = None,
    encoding: options.Encoding = None,
    precision: options.RunPrecision = None,
    batch_size: options.BatchSize = 64,
    engine: Annotated[
        options.Executor, typer.Option(help="For a folder: this process, or a Ray cluster (extra: batch).")
    ] = options.Executor.LOCAL,
    part_format: Annotated[
        str, typer.Option("--part-format", help="For a folder: format of its output, parquet, jsonl, csv or tsv.")
    ] = "parquet",
    address: Annotated[str, typer.Option(help="Ray: HOST:PORT of the cluster's head, or auto.")] = "auto",
    workers: Annotated[int, typer.Option(min=0, help="Ray: most workers at a time; 0 takes all cores.")] = 0,
    worker_cpus: Annotated[float, typer.Option("--worker-cpus", min=0.1, help="Ray: cores of a worker.")] = 1.0,
    retries: Annotated[int, typer.Option(min=0, help="Ray: how often to start a file again after a worker died.")] = 3,
    escape_formulas: Annotated[
        bool, typer.Option("--escape-formulas", help="In .csv and .tsv: write an apostrophe before formulas.")
    ] = False,
    no_keep_columns: Annotated[
        bool, typer.Option("--no-keep-columns", help="With --output: write only the text and the predictions.")
    ] = False,
    abstain_below: Annotated[
        float | None,
        typer.Option(
            "--abstain-below", min=0.0, max=1.0, help="Rows whose highest probability is below this get no label."
        ),
    ] = None,
    precision_of: options.PrecisionOf = None,
    answers_right: options.AnswersRight = None,
    explain: Annotated[
        int | None,
        typer.Option(
            "--explain",
            min=1,
            max=64,
            metavar="N",
            help="Show the N words of each text that its label (or each of its labels) depends on most: without such "
            "a word its probability falls.",
        ),
    ] = None,
    exit_rule: options.ExportExitRuleName = None,
    threshold: options.ExitThreshold = None,
    exit_after: options.ExitAfter = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict the labels of texts, in order and in constant memory. For a folder, the same command resumes.

    Example: recurra predict runs/reviews --input reviews.csv --output predictions.csv
    """
    on_ray = engine is options.Executor.RAY
    folder = on_ray or (source is not None and source != "-" and Path(source).is_dir())
    early = (exit_rule, threshold, exit_after) != (None, None, None)
    uses = {_SINGLE: not folder, _FOLDER: folder, _RAY: on_ray, _FILES: not texts, _OUTPUT: output is not None}
    _refuse_idle(locals(), [use for use, holds in uses.items() if not holds])
    run = options.one_run(run, quiet=quiet)
    text_column = text_column or ("text" if texts else _recorded_text_column(run))
    suffix = f".{part_format}" if folder else "" if output is None else output.suffix.lower()
    if escape_formulas and suffix not in {".csv", ".tsv"}:
        written = f"of a folder {part_format} (--part-format)" if folder else output or "no file"
        raise ConfigurationError(f"--escape-formulas is for .csv and .tsv files; the output is {written}: leave it out")
    if folder:
        job = _job(locals())
        cluster = {"address": address, "workers": workers, "cpus": worker_cpus, "retries": retries}
        _predict_folder(job, cluster if on_ray else None, as_json=as_json, quiet=quiet)
        return
    from recurra.core.environment import tune_allocator
    from recurra.core.progress import Reporter
    from recurra.deployment.classifier import Classifier
    from recurra.deployment.export.manifest import needs_torch
    from recurra.deployment.prediction.files import (
        InputColumns,
        check_output,
        source_chunks,
    )

    if output is not None:
        check_output(output, source)
    bounds, promises = _bounds(run, abstain_below, precision_of, answers_right, early=early)
    keep = output is not None and not no_keep_columns and not texts
    columns = InputColumns.of(source, text_column, encoding) if keep else None
    chunks = source_chunks(texts or [], source, text_column, columns, encoding=encoding)
    # An unreadable file is reported before the model is loaded.
    first = next(chunks, None)
    if needs_torch(run):
        from recurra.models.quiet import quieten_libraries

        quieten_libraries()
    tune_allocator()
    rule = None
    if early:
        rule = _exit_rule(exit_rule, threshold, exit_after)
        # Exits shrink batches to any size, and on a CPU half precision compiles a kernel for each size.
        if precision is None and needs_torch(run):
            precision = "fp32"
    classifier = Classifier.open(run, precision=precision, batch_size=batch_size)
    if bounds is not None:
        classifier.decision = classifier.decision.abstaining_below(bounds)
    if early:
        classifier.stop_early(rule)
    reporter = Reporter(quiet=quiet)
    rest = chunks if first is None else itertools.chain([first], chunks)
    counts = _write(classifier, rest, output, columns, reporter, escape_formulas, explain, as_json=as_json)
    reporter.say(classifier.computation.describe())
    for sentence in _remarks(counts, abstain_below, promises, columns):
        reporter.say(sentence)


def _refuse_idle(values: Mapping[str, Any], missing: Sequence[str]) -> None:
    """Refuses options that are given for a use that is missing here."""
    if values["early"] and _SINGLE in missing:
        raise ConfigurationError(f"an exit rule is for {_SINGLE}; leave it out")
    defaults = inspect.signature(predict).parameters
    for name, use in _MEANT_FOR.items():
        if use in missing and values[name] not in (defaults[name].default, []):
            raise ConfigurationError(f"--{name.replace('_', '-')} is for {use}; leave it out")


def _recorded_text_column(run: Path) -> str:
    """The text column of the run's own data; ``text`` if the run is no classifier or cannot be read."""
    from recurra.core.errors import RecurraError
    from recurra.deployment.export.manifest import read_source_record

    try:
        return str(read_source_record(run).config["data"].get("text_column", "text"))
    except (RecurraError, OSError, KeyError, AttributeError):
        return "text"


def _bounds(
    run: Path, abstain_below: float | None, precisions: Sequence[str] | None, least_right: float | None, *, early: bool
) -> tuple[float | list[float] | None, list[str]]:
    """Probabilities below which rows get no label: one for all labels or one for each; and their promises in words."""
    if not precisions and least_right is None:
        return abstain_below, []
    if early:
        option = "--precision-of" if precisions else "--answers-right"
        raise ConfigurationError(f"{option} needs all recurrences; leave the exit rule out")
    from recurra.tasks.labelling.precision import choose_precision_thresholds, parse_precisions

    thresholds, promises = choose_precision_thresholds(run, parse_precisions(precisions or []), least_right)
    return [max(threshold, abstain_below or 0.0) for threshold in thresholds], list(promises)


def _exit_rule(name: str | None, threshold: float | None, exit_after: int | None) -> ExitRule | None:
    """The requested exit rule; None stands for the rule that an export carries."""
    from recurra.models.exits.rules import CALIBRATED, make_rule

    if name != CALIBRATED:
        return make_rule(name, threshold=threshold, after=exit_after, known=[CALIBRATED])
    if (threshold, exit_after) != (None, None):
        raise ConfigurationError(f"'{CALIBRATED}' has its own threshold; leave --threshold and --recurrences out")
    return None


def _write(
    classifier: Classifier,
    chunks: Iterable[TextRows],
    output: Path | None,
    columns: InputColumns | None,
    reporter: Reporter,
    escape_formulas: bool,
    explain: int | None,
    *,
    as_json: bool,
) -> PredictionCounts:
    """Predicts into a file, or to standard output."""
    from recurra.deployment.prediction.files import line_writer, open_writer, write_stream

    decision, computation, explains = classifier.decision, classifier.computation, explain is not None
    if output is None:
        with standard_output(), line_writer(sys.stdout, decision, computation, explains, as_json=as_json) as write:
            return write_stream(classifier, chunks, write, explain_words=explain)
        raise typer.Exit  # the reader has left
    open_file = open_writer(output, decision, escape_formulas=escape_formulas, columns=columns, explains=explains)
    with reporter.task("predicting", None) as task, open_file as write:
        counts = write_stream(classifier, chunks, write, advance=task.advance, explain_words=explain)
    if as_json:
        print_json({"output": str(output), **counts.plain(), "computation": computation.plain()})
    else:
        reporter.say(f"{counts.rows:,} rows: {output}")
    return counts


def _remarks(
    counts: PredictionCounts, abstain_below: float | None, promises: Sequence[str], columns: InputColumns | None
) -> Iterator[str]:
    """Remarks that a reader of the predictions must know."""
    if counts.empty:
        yield f"{counts.empty:,} of {counts.rows:,} texts are empty; their labels mean nothing"
    if counts.abstained is not None:
        share = f" ({counts.abstained / counts.rows:.1%})" if counts.rows else ""
        reason = "below the threshold of their label that the export carries"
        if promises:
            reason = "below the threshold of their label"
        elif abstain_below is not None:
            reason = f"below {abstain_below:g}"
        yield f"{counts.abstained:,} of {counts.rows:,} rows{share} have no label: {reason}"
    yield from promises
    if columns is not None:
        yield from columns.notes
        if "label" in columns.names:
            yield "the column 'label' is the input's; the predicted labels are in 'label_predicted'"


def _job(values: Mapping[str, Any]) -> FolderJob:
    """The job on the files of a folder, from the options of `predict`."""
    from recurra.deployment.prediction.folder import FolderJob

    source, output = values["source"], values["output"]
    if values["texts"] or source is None or output is None or not Path(source).is_dir():
        files = f"--input {source}" if source is not None else "no --input"
        raise ConfigurationError(
            f"this predicts the files of a folder into another folder, but {files} with {output or 'no --output'} is "
            "given: give --input FOLDER --output FOLDER"
        )
    return options.chosen(FolderJob, values, model=values["run"], source=Path(source))


def _predict_folder(job: FolderJob, on_ray: dict[str, Any] | None, *, as_json: bool, quiet: bool) -> None:
    """Predicts a folder, on a Ray cluster if one is named, and reports the outcome; raises if a file failed."""
    from recurra.core.environment import tune_allocator
    from recurra.core.progress import Reporter
    from recurra.deployment.prediction.folder import Outcomes, predict_folder, predict_on_ray

    reporter = Reporter(quiet=quiet)
    if on_ray is None:
        tune_allocator()
        result = predict_folder(job, reporter)
    else:
        from recurra.study.ray_executor import Cluster

        cluster = Cluster(on_ray.pop("address"), cpus=on_ray["cpus"], extra="batch")

        def compute(job: FolderJob, names: list[str]) -> Outcomes:
            cluster.check()
            with cluster.connected() as ray:
                yield from predict_on_ray(job, names, ray=ray, reporter=reporter, **on_ray)

        # Errors in the job are reported before the cluster is checked.
        result = predict_folder(job, reporter, compute)
    for failure in result.failures[1:]:
        reporter.say(f"failed: {failure}")
    if as_json:
        print_json({"output": str(job.output), **result.plain()})
    else:
        failed = f"; {len(result.failures):,} files failed" if result.failures else ""
        reporter.say(f"{result.rows:,} rows of {result.made:,} files{failed}: {job.output}")
    for sentence in _remarks(result, None, (), None):
        reporter.say(sentence)
    if result.failures:
        first, more = result.failures[0], len(result.failures) - 1
        others = f" (and {more:,} more files)" if more else ""
        raise RunError(f"failed: {first}{others}; start the same command again to retry")
