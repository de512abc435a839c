"""Executes and reports studies: their runs, the page, the tables, and the recommended run."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from recurra.core.best_run import BEST_NAME, BestRunRecord
from recurra.core.configuration import read_yaml, write_yaml
from recurra.core.environment import available_cores
from recurra.core.errors import RecurraError, RunError, StorageError
from recurra.core.files import is_part, locked_folder, write_text
from recurra.core.packed import (
    HISTORY_NAME,
    LATENCY_NAME,
    PREDICTIONS_NAME,
    RECORDS_NAME,
    RUNS_NAME,
    SPEC_NAME,
    in_study,
)
from recurra.core.progress import Reporter
from recurra.core.record import (
    RECORD_NAME,
    TRAINED_ON_TEST_ROWS,
    AnyRecord,
    EpochRecord,
    LabelRunRecord,
    holds_any_record,
)
from recurra.core.record_parts import ANSWERS
from recurra.core.terminal import duration
from recurra.data.configuration import DataConfig
from recurra.data.splits import texts_as_written
from recurra.deployment.classifier import Classifier
from recurra.deployment.export.formats import find_format
from recurra.deployment.export_record import EXPORTS_NAME, WITH_EXITS, load_export_records
from recurra.report.render import results_frame, results_text, write_study_report
from recurra.report.summary import (
    group_tables,
    load_runs,
    read_latency_file,
    read_study,
    reporting_of,
    study_file_of,
    summarise,
    word_counts,
)
from recurra.study.estimate import Expectation, expect, whole_seconds
from recurra.study.executor import RUN_MODULE, Executor, LocalExecutor, threads_of, waves, workers_for
from recurra.study.export_plan import PlannedExport, make_exports, plan_exports
from recurra.study.final import final_run, gains_rows, train_again
from recurra.study.plan import PROGRESS_NAME, ROWS_NAME, PlannedRun, finished_run, plan_study, refuse_untrusted
from recurra.study.ray_executor import Cluster, RayExecutor
from recurra.study.run import preflight, refuse_unlabelled_without_teacher
from recurra.study.spec import StudySpec, load_study
from recurra.study.status import check_measure
from recurra.study.workers import Workers
from recurra.tasks.base import ENCODER, RunConfig, task, task_of_data
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.measures import StudyLatency
from recurra.tasks.study_data import Machine, StudyData
from recurra.tasks.summary import Summary, plain

_OURS = {".lock", RUNS_NAME, LATENCY_NAME, ROWS_NAME, RECORDS_NAME, HISTORY_NAME, PREDICTIONS_NAME}


def say_what_comes(spec: StudySpec, planned: Sequence[PlannedRun], notes: Sequence[str], reporter: Reporter) -> None:
    """Prints the progress of the study, and notes on its choices."""
    done = [run for run in planned if run.state == "done"]
    for run in done:
        # A worker that was killed right after it wrote its record leaves this file.
        (run.folder / PROGRESS_NAME).unlink(missing_ok=True)
    # Encoders and controls read with tokenizers of their own.
    readers = [run.config for run in planned if not run.config.is_control and ENCODER not in run.config.model_overrides]
    tokenizers = ", ".join(dict.fromkeys(config.data.tokenizer for config in readers))
    reporter.say(
        f"{spec.name}: {len(planned)} {'run' if len(planned) == 1 else 'runs'}, {len(done)} done, "
        f"{len(planned) - len(done)} to do"
        f"{f'; tokenizer: {tokenizers}' if tokenizers else ''}"
    )
    for line in filter(None, notes):
        reporter.say(line)


def time_side_by_side(
    output: Path,
    runs: Sequence[Path],
    machine: Machine,
    reporter: Reporter,
    workers: Workers,
    *,
    exports: Sequence[str] = (),
) -> str | None:
    """Times all models and exports of a study in one process, in turns, unless that was done for exactly these.

    Runs train side by side, so times that each measures itself would depend on its neighbours. Packed runs have no
    model: they keep their earlier times. Returns the reason of a failure in one line, else None.
    """
    earlier = read_latency_file(output) or StudyLatency()
    with_model = [run.name for run in runs if _has_model(run)]
    packed = {run.name for run in runs}.difference(with_model)
    names = {"runs": with_model, "exports": [name for name in exports if (output / EXPORTS_NAME / name).is_dir()]}
    if untimed := len(packed.difference(earlier.runs)):
        reporter.say(f"not timed: {untimed} packed {'run' if untimed == 1 else 'runs'}, whose models were not kept")
    if not with_model and not names["exports"]:
        return None
    timed = (name.removesuffix(WITH_EXITS) for name in (*earlier.runs, *earlier.exports))
    if {name for name in timed if name.partition("/")[0] not in packed} == {*with_model, *names["exports"]}:
        return None
    exported = f" and {len(names['exports'])} exports" if names["exports"] else ""
    reporter.say(f"timing {len(with_model)} runs{exported} side by side")
    kept_times, threads = earlier.times_of(packed), machine.threads or available_cores()
    timing = "recurra.study.timing:time_all"
    ended = workers.call(timing, str(output), names, kept_times, machine=machine, threads=threads)
    if not ended.code:
        return None
    reason = f"the models could not be timed side by side ({ended.reason})"
    reporter.say(reason)
    return reason


def refuse_folder_of_another(name: str, output: Path) -> None:
    """Refuses a folder of another study, or with something else; a study may grow in its own (more seeds or models).

    Raises:
        StorageError: If it is such a folder; nothing is touched then.
    """
    path = output / SPEC_NAME
    if in_study(path):
        present = read_yaml(path).get("name")
        if present != name:
            raise StorageError(f"'{output}' holds the study '{present}', not '{name}'; choose another --output")
    elif output.is_dir() and any(item.name not in _OURS and not is_part(item.name) for item in output.iterdir()):
        raise StorageError(f"'{output}' is not empty and not a study of ours; choose another --output")


# A larger file of the user is not read again to show some of its rows.
LARGEST_SHOWN_BYTES = 2**26
# A run that took fewer seconds is trained once more without a request.
QUICK_S = 60.0


@dataclass(frozen=True)
class BestRun:
    """The recommended run.

    Attributes:
        folder: Its folder, or that of the final run if the model was trained once more.
        seed: The seed that did best on the rows that choose the epoch; test rows are not used.
    """

    model: str
    folder: Path
    seed: int
    why: str

    def classifier(self, **options: Any) -> Classifier:
        """Loads it; ``options`` are those of `recurra.deployment.classifier.Classifier.from_run`."""
        return Classifier.from_run(self.folder, **options)


@dataclass(frozen=True, repr=False)
class StudyResult:
    """Result of a study.

    Attributes:
        report: The HTML file, if there is at least one record.
        content: From which every table of the report is made.
        timing_error: Why models could not be timed side by side; None if they were, or were not to be timed.
        ships: Text on the training rows of the model that predict and export take; empty if unknown.
    """

    output: Path
    outcomes: list[PlannedRun]
    report: Path | None
    content: Summary
    exports: Sequence[PlannedExport] = ()
    timing_error: str | None = None
    ships: str = ""

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Plain values behind every table, for ``--json``; folders of runs as they can be opened here."""
        values = plain(self.content)
        folders = {outcome.config.run_id: outcome.folder for outcome in self.outcomes}
        for table in values["tables"]:
            for model in table["models"]:
                for run in model["runs"]:
                    run["folder"] = folders[run["run_id"]].as_posix()
        return values

    @property
    def commands(self) -> list[str]:
        """Commands that use the recommended model; none if there is no such model, or its record is packed."""
        try:
            path = shlex.quote(str(self.best_path))
        except RunError:
            return []
        command, argument = task(self.content.task).usage
        commands = [f"recurra {command} {path} {argument}"]
        if command == "predict":
            exported = shlex.quote(str(Path("exports", self.output.name)))
            commands += [f"recurra predict {path} --input new.csv --output labels.csv"]
            commands += [f"recurra export {path} --output {exported}"]
        return commands

    @property
    def best_path(self) -> Path:
        """Path that stands for the recommended run in commands: the study's folder, if it has one table.

        Raises:
            RunError: If none can be recommended, or its record is packed.
        """
        folder = self.best.folder
        if not _has_model(folder):
            raise RunError(f"there is no model in '{folder}': its record was packed without one")
        return self.output if len(self.content.tables) == 1 and folder.is_relative_to(self.output) else folder

    @property
    def best(self) -> BestRun:
        """The recommended run of the first table; see `recurra.tasks.reporting.Reporting.advise`.

        Raises:
            RunError: If no run is finished, every model failed an audit of its own or is no classifier, or no model
                stays within the limits.
        """
        model, why, judged = self.recommendation
        assert judged.record is not None
        folder = final_run(judged.config, self.output) or judged.folder
        return BestRun(model, folder, judged.record.seed, why)

    @cached_property
    def recommendation(self) -> tuple[str, str, PlannedRun]:
        """The recommended model, why, and its run as it was judged.

        Raises:
            RunError: As `best` does.
        """
        table = next(iter(self.content.tables), None)
        advice = None if table is None else table.recommended
        if table is None or advice is None:
            raise RunError(
                f"no run of '{self.output}' can be recommended: none is finished, passed its audits and learned its "
                "task"
            )
        if advice.choice is None:
            raise RunError(f"no run of '{self.output}' can be recommended: {advice.why.rstrip('.')}")
        model = next(model for model in table.models if model.label == advice.choice)
        run_ids = {run.record.run_id for run in model.runs}
        finished = [(candidate.record, candidate) for candidate in self.outcomes if candidate.record is not None]
        _, outcome = max((pair for pair in finished if pair[0].run_id in run_ids), key=lambda pair: _merit(pair[0]))
        return model.label, advice.why, outcome

    @property
    def table(self) -> Any:
        """The results as a pandas ``DataFrame``, a row a model; see `recurra.report.render.results_frame`."""
        return results_frame(self.content)

    def __repr__(self) -> str:
        lines = [f"failed: {outcome.config.run_id}: {outcome.error}" for outcome in self.failed_runs]
        lines += [f"audit failed: {name}" for name in self.failed_audits]
        with contextlib.suppress(RunError):
            lines.append(f"best: {self.best.model} ({self.best.why.rstrip('.')}), in {self.best.folder}")
        lines.append(f"report: {self.report}" if self.report else "no report: no run is finished")
        return results_text(self.content, lines)

    @property
    def unmet_limits(self) -> list[str]:
        """For each table in which no model stays within the limits: which model comes nearest."""
        recommended = [table.recommended for table in self.content.tables if table.recommended is not None]
        return [advice.why.rstrip(".") for advice in recommended if advice.choice is None]

    @property
    def failed_exports(self) -> list[PlannedExport]:
        """Exports of finished runs that could not be made."""
        return [export for export in self.exports if export.state == "failed"]

    @property
    def failed_runs(self) -> list[PlannedRun]:
        """Runs without a record."""
        return [outcome for outcome in self.outcomes if outcome.record is None]

    @property
    def failed_audits(self) -> list[str]:
        """Names of failed audits, each once, with the data they concern."""
        failed = [
            f"{table.data} ({table.protocol}): {line.name}"
            for table in self.content.tables
            for line in table.audits
            if line.status == "failed"
        ]
        return list(dict.fromkeys(failed))


def _has_model(run: Path) -> bool:
    """Whether a finished run is on disk with its model; of a packed run there is only the record."""
    return (run / RECORD_NAME).is_file()


def _merit(record: AnyRecord) -> tuple[float, float]:
    """Result of a run on the rows that chose its epoch, by the measure that chose it; the lower seed wins a tie."""
    best = next((epoch for epoch in record.training.history if epoch.epoch == record.training.best_epoch), None)
    if best is None:
        return 0.0, -record.seed
    if isinstance(best, EpochRecord) and record.config["protocol"].get("selection") == "accuracy":
        return best.validation_accuracy, -record.seed
    return -best.validation_loss, -record.seed


def run_and_report(
    spec: StudySpec,
    output: Path,
    data: StudyData,
    *,
    workers: int = 0,
    reporter: Reporter,
    command: str,
    cluster: Cluster | None = None,
    note: str = "",
    estimate: bool = False,
    final: bool | None = False,
) -> StudyResult:
    """Plans a study, executes its missing runs, exports, times side by side, and writes the report.

    Args:
        workers: Runs at once; 0 chooses.
        command: The command line, shown in the report.
        cluster: Where to run; None is this machine.
        note: Choices for the study, printed before the first run starts.
        estimate: Whether time and memory of each model are printed before the first run; a budget did it before.
        final: Whether the recommended model is trained once more on test rows too, if they were split off a file; None
            does it if it was trained in less than `QUICK_S`.

    Raises:
        CheckpointError: If a record cannot be trusted.
        StorageError: If the folder belongs to another study or is in use.
        UnavailableError: If the cluster does not answer.
        RecurraError: If data, tokenizer or a model configuration cannot be used; nothing was started then.
    """
    machine = data.machine
    planned = plan_study(spec, output)
    refuse_untrusted(planned)
    refuse_unlabelled_without_teacher(run.config for run in planned)
    # A record of an export that cannot be trusted is reported before anything starts.
    planned_exports = plan_exports(spec, output, planned)
    for request in {item.request.format: item.request for item in planned_exports if item.state != "done"}.values():
        find_format(request.format).check_packages()
    pending = [run.config for run in planned if run.state != "done"]
    if pending:
        check_measure(spec, data)
    at_once = workers or workers_for(len(pending), machine)
    threads = threads_of(machine, available_cores(), at_once).threads
    modules = dict.fromkeys(module for run in pending for module in task_of_data(run.data).training_modules(run))
    with Workers(min(at_once, len(pending)) if cluster is None else 0, threads, [RUN_MODULE, *modules]) as pool:
        check_notes = preflight(pending, data)
        if cluster is not None and pending:
            cluster.check()
        with locked_folder(output):
            refuse_folder_of_another(spec.name, output)
            write_text(output / SPEC_NAME, write_yaml(spec.plain()))
            say_what_comes(spec, planned, [note, *check_notes], reporter)
            expected: Expectation | str | None = None
            if estimate and pending and not reporter.quiet:
                reporter.say("estimating how long each model takes")
                expected = expect(spec, pending, output, machine, pool, reporter=reporter)
                for line in [expected] if isinstance(expected, str) else expected.lines():
                    reporter.say(line)
            untimed = replace(machine, latency=False)
            executor: Executor
            if cluster is None:
                tell = partial(_run_message, spec, expected)
                executor = LocalExecutor(output, replace(untimed, threads=threads), pool, reporter=reporter, tell=tell)
            else:
                executor = RayExecutor(output, untimed, workers, cluster, reporter=reporter)
            done_now = [outcome for wave in waves(spec, pending) for outcome in executor.execute(wave)]
            executed = {outcome.config.config_hash: outcome for outcome in done_now}
            outcomes = [executed.get(run.config.config_hash, run) for run in planned]
            missing = [item for item in plan_exports(spec, output, outcomes) if item.state in ("to do", "failed")]
            make_exports(missing, output, machine, reporter, pool)
            models = [run for run in outcomes if run.record is not None and run.record.model.kind != ANSWERS]
            timing_error = None
            if models and machine.latency:
                exported = [item.key for item in plan_exports(spec, output, outcomes) if item.state == "done"]
                folders = [outcome.folder for outcome in models]
                timing_error = time_side_by_side(output, folders, machine, reporter, pool, exports=exported)

        def again(judged: RunConfig, note: str, so_far: Path | None) -> tuple[AnyRecord | None, str]:
            reporter.say(f"report so far: {so_far}")
            return train_again(judged, note, output, machine, reporter=reporter, workers=pool)

        return _report(
            spec, output, outcomes, command=command, data=data, final=final, again=again, timing_error=timing_error
        )


def _run_message(spec: StudySpec, expected: Expectation | str | None, outcome: PlannedRun) -> str:
    """The headline of a run, and how long the others will take."""
    left = expected.note(outcome) if isinstance(expected, Expectation) else ""
    return "; ".join(filter(None, [_headline(spec, outcome), left]))


def _ship(
    result: StudyResult,
    final: bool | None = False,
    again: Callable[[RunConfig, str], tuple[AnyRecord | None, str]] | None = None,
) -> str:
    """Trains the recommended model once more if wanted; returns a text on the training rows of the model to use."""
    try:
        label, _, judged = result.recommendation
    except RunError:
        return ""
    record = judged.record
    if len(result.content.tables) != 1 or not isinstance(record, LabelRunRecord):
        return ""
    counts = {name: split.rows for name, split in record.data.splits.items()}
    train, selection, rows = counts.get("train", 0), counts.get(record.data.selection_split, 0), sum(counts.values())
    folds = record.config["data"].get("folds") or 1
    sentence = "The model judged" if folds == 1 else f"The model of one of {folds} folds (the figures are of all folds)"
    sentence += f", trained on {train:,} of {rows:,} rows"
    if not gains_rows(judged.config):
        return "" if folds == 1 else f"{sentence}."
    took_s = whole_seconds(record)
    if final_run(judged.config, result.output) is None:
        if again is None or not (took_s < QUICK_S if final is None else final):
            estimate = duration(took_s * (rows - selection) / max(1, train))
            more = "" if final is False else f" --final trains it on test rows too, in about {estimate}."
            return f"{sentence}.{more}"
        final_record, reason = again(judged.config, _how_judged(result, label, train))
        if final_record is None:
            return f"{sentence}: it could not be trained once more ({reason})."
    earlier = "the one judged here" if folds == 1 else f"those judged here, one of each of {folds} folds,"
    return (
        f"The same model, trained once more on {rows - selection:,} rows, including test rows; {earlier} had "
        f"{train:,}. The other {selection:,} rows set its probabilities and thresholds."
    )


def _how_judged(result: StudyResult, label: str, train: int) -> str:
    """Quality of the judged model, for the card of the final model; over all folds if there are several."""
    table = result.content.tables[0]
    model = next(model for model in table.models if model.label == label)
    measure, split = table.judged_by, table.headline_split
    return (
        f"{TRAINED_ON_TEST_ROWS} The one that was judged had {train:,} training rows; "
        f"on {model.scores[split].rows:,} {split} rows: {measure.in_text} {measure.text(measure.of(model, split))}."
    )


def _headline(spec: StudySpec, outcome: PlannedRun) -> str:
    """Result of a run by the measure of the study, and its time."""
    record = outcome.record
    if record is None:
        return f"failed: {outcome.error}"
    reporting = reporting_of(record.task)
    (table,) = group_tables([LoadedRun(outcome.folder, record)], reporting)
    took = duration(whole_seconds(record))
    if not table.headline:
        return f"done in {took}"
    measure = reporting.measure_of(table, spec.questions)
    value = measure.value(measure.of_run(record.metrics[table.headline]))
    return f"{measure.in_text} {value} on {table.headline}, {took}"


def report_study(
    spec: StudySpec, output: Path, *, command: str, by_length: bool = False, data_root: Path | None = None
) -> StudyResult:
    """Writes the report of finished runs and runs nothing; ``by_length`` reads the data again, for lengths of texts.

    Raises:
        CheckpointError: If a record cannot be trusted.
    """
    planned = plan_study(spec, output)
    refuse_untrusted(planned)
    return _report(spec, output, planned, command=command, data=StudyData(Machine(data_root)), by_length=by_length)


def report_records(
    folder: Path, output: Path | None = None, *, command: str, by_length: bool = False, data_root: Path | None = None
) -> StudyResult:
    """Writes the report of the records in a study's folder, packed or not; missing runs are not mentioned.

    Raises:
        CheckpointError: If a record cannot be trusted.
        ConfigurationError: If there is no study file, or it is wrong.
    """
    outcomes = [finished_run(run) for run in read_study(folder) if holds_any_record(run)]
    spec = load_study(study_file_of(folder) or folder / SPEC_NAME)
    runs, summary = _summarise(spec, folder, outcomes, StudyData(Machine(data_root)), by_length)
    judged = StudyResult(output or folder, outcomes, None, summary)
    return _write_report(replace(judged, ships=_ship(judged) if judged.commands else ""), spec, runs, command)


def _report(
    spec: StudySpec,
    output: Path,
    outcomes: list[PlannedRun],
    *,
    command: str,
    data: StudyData,
    final: bool | None = False,
    again: Callable[[RunConfig, str, Path | None], tuple[AnyRecord | None, str]] | None = None,
    timing_error: str | None = None,
    by_length: bool = False,
) -> StudyResult:
    """Reports finished runs; ``again`` trains a run once more on test rows too, after a first report."""
    exports = plan_exports(spec, output, outcomes)
    runs, summary = _summarise(spec, output, outcomes, data, by_length)
    judged = StudyResult(output, outcomes, None, summary, exports, timing_error)

    def report_and_train(run: RunConfig, note: str) -> tuple[AnyRecord | None, str]:
        """Trains once more behind a first report: the answer need not wait for the model to use."""
        assert again is not None
        so_far = _write_report(judged, spec, runs, command).report
        _keep_best(judged)
        return again(run, note, so_far)

    ships = _ship(judged, final, report_and_train if again else None)
    result = _write_report(replace(judged, ships=ships if judged.commands else ""), spec, runs, command)
    _keep_best(result)
    return result


def _write_report(result: StudyResult, spec: StudySpec, runs: Sequence[LoadedRun], command: str) -> StudyResult:
    """Writes report, figures and tables, if there is a run to report."""
    if len(result.failed_runs) == len(result.outcomes):
        return result
    title = spec.title or spec.name
    page = write_study_report(result.output, result.content, runs, title=title, command=command, answer=result)
    return replace(result, report=page)


def _keep_best(result: StudyResult) -> None:
    """Writes down which run is recommended; with several tables, as of several data sets, none is."""
    try:
        best = result.best if result.best_path == result.output else None
    except RunError:
        best = None
    path = result.output / BEST_NAME
    if best is None:
        path.unlink(missing_ok=True)
        return
    folder = best.folder.relative_to(result.output).as_posix()
    BestRunRecord(folder=folder, model=best.model, seed=best.seed, why=best.why).write(path)


def _summarise(
    spec: StudySpec, folder: Path, outcomes: Sequence[PlannedRun], data: StudyData, by_length: bool
) -> tuple[list[LoadedRun], Summary]:
    """The finished runs of a study, and the summary for their report."""
    failures = {outcome.config.run_id: outcome.error for outcome in outcomes if outcome.error is not None}
    texts, fingerprint = _own_texts(spec, data)
    records = {outcome.folder: outcome.record for outcome in outcomes if outcome.record is not None}
    runs, failed = load_runs([outcome.folder for outcome in outcomes], failures, records)
    words = word_counts(runs, reporting_of(spec.task.name), data.machine.data_root) if by_length else {}
    questions = replace(spec.questions, texts=texts, fingerprint=fingerprint, words=words)
    exports = load_export_records(folder) if spec.exports else []
    latency = read_latency_file(folder)
    summary = summarise(runs, latency, failed, base=folder, questions=questions, exports=exports)
    if latency is None and (folder / LATENCY_NAME).exists():
        summary.warnings.append(
            f"'{LATENCY_NAME}' is damaged: its times are not shown. Delete it and start the study again; nothing is "
            "trained again."
        )
    return runs, summary


def _own_texts(spec: StudySpec, data: StudyData) -> tuple[dict[str, dict[str, str]], str]:
    """Texts of a user's only file, as the file has them, by split and identity, and the fingerprint of these data.

    Empty for other data; folds have no fingerprint, because every split has all texts.
    """
    config = spec.data[0]
    path = Path(config.name)
    if len(spec.data) > 1 or not isinstance(config, DataConfig):
        return {}, ""
    if not path.is_file() or path.stat().st_size > LARGEST_SHOWN_BYTES:
        return {}, ""
    try:
        dataset = data.rows(config)
        files = {name: file for name in ("validation", "test") if (file := getattr(config, name)) is not None}
        written = {name: texts_as_written(files.get(name, config.name), config) for name in {"", *files}}
    except RecurraError:
        return {}, ""
    texts = {
        name: {
            row: written.get(name, written[""]).get(row, text) for row, text in zip(split.ids, split.texts, strict=True)
        }
        for name, split in dataset.splits.items()
    }
    if config.cross_validated:
        # Every row of the file is a test row of one fold.
        all_texts = {row: text for split_texts in texts.values() for row, text in split_texts.items()}
        return dict.fromkeys(texts, all_texts), ""
    return texts, dataset.fingerprint
