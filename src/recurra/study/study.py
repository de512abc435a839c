"""A study from specification to records: plan, execute what is missing, export, time side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recurra.core.configuration import read_yaml, write_yaml
from recurra.core.environment import available_cores
from recurra.core.errors import StorageError
from recurra.core.files import FolderLock, is_part, read_json, write_text
from recurra.core.packed import HISTORY_NAME, PREDICTIONS_NAME, RECORDS_NAME, RUNS_NAME, in_study
from recurra.core.progress import Reporter
from recurra.core.record_parts import ANSWERS
from recurra.deployment.export.formats import find_format
from recurra.deployment.export_record import WITH_EXITS
from recurra.study.estimate import Expectation, expect
from recurra.study.executor import LocalExecutor, Outcome, Tell, rough_weight, threads_of, workers_for
from recurra.study.export_plan import PlannedExport, exports_of, make_exports, plan_exports
from recurra.study.plan import PROGRESS_NAME, ROWS_NAME, SPEC_NAME, PlannedRun, plan_study, refuse_untrusted
from recurra.study.ray_executor import Cluster, RayExecutor
from recurra.study.run import preflight, refuse_unheard_texts
from recurra.study.spec import StudySpec
from recurra.study.workers import Workers
from recurra.tasks.base import task_of_data
from recurra.tasks.machine import Machine
from recurra.tasks.profile import ENCODER, part_of
from recurra.tasks.reporting import Reporting
from recurra.tasks.runs import RunConfig
from recurra.tasks.study_data import StudyData

LATENCY_NAME = "latency.json"
_OURS = {".lock", RUNS_NAME, LATENCY_NAME, ROWS_NAME, RECORDS_NAME, HISTORY_NAME, PREDICTIONS_NAME}


@dataclass(frozen=True)
class StudyOutcome:
    """What has become of a study."""

    outcomes: list[Outcome]
    exports: Sequence[PlannedExport] = ()
    timing_error: str | None = None


def run_study(
    spec: StudySpec,
    output: Path,
    data: StudyData,
    *,
    workers: int = 0,
    reporter: Reporter,
    cluster: Cluster | None = None,
    note: str = "",
    estimate: bool = False,
    tell: Tell | None = None,
) -> StudyOutcome:
    """Runs what a study lacks; the arguments are those of `recurra.reported_study.run_and_report`.

    ``tell`` gives what is said of a run that is done on this machine.

    Raises:
        CheckpointError: If a record cannot be trusted.
        StorageError: If the folder belongs to another study or is in use.
        UnavailableError: If the cluster does not answer.
        RecurraError: If data, tokenizer or a model configuration cannot be used; nothing has been started then.
    """
    machine = data.machine
    planned = plan_study(spec, output)
    refuse_untrusted(planned)
    refuse_unheard_texts(run.config for run in planned)
    # A record of an export that cannot be trusted is told before anything is started.
    asked = exports_of(spec, output, planned)
    for request in {item.request.format: item.request for item in asked if item.state != "done"}.values():
        find_format(request.format).check_packages()
    pending = [run.config for run in planned if run.state != "done"]
    if pending:
        check_measure(spec, data)
    at_once = workers or workers_for(len(pending), machine)
    threads = threads_of(machine, available_cores(), at_once).threads
    modules = dict.fromkeys(module for run in pending for module in task_of_data(run.data).training_modules(run))
    with Workers(min(at_once, len(pending)) if cluster is None else 0, threads, list(modules)) as pool:
        said = preflight(pending, data)
        if cluster is not None and pending:
            cluster.check()
        with FolderLock(output):
            refuse_folder_of_another(spec.name, output)
            write_text(output / SPEC_NAME, write_yaml(spec.plain()))
            _say_what_comes(spec, planned, [note, *said], reporter)
            if estimate and pending:
                reporter.say("estimating how long each model takes")
            expected = expect(spec, output, machine, pool, reporter) if estimate and pending else None
            for line in expected.lines() if isinstance(expected, Expectation) else filter(None, [expected]):
                reporter.say(line)
            told = None if tell is None else _with_time_left(tell, expected)
            untimed = replace(machine, latency=False)
            executor: LocalExecutor | RayExecutor
            if cluster is None:
                executor = LocalExecutor(output, replace(untimed, threads=threads), pool, reporter=reporter, tell=told)
            else:
                executor = RayExecutor(output, untimed, cluster, workers=workers, reporter=reporter)
            done_now = [outcome for wave in _waves(spec, pending) for outcome in executor.execute(wave)]
            executed = {outcome.config.config_hash: outcome for outcome in done_now}
            outcomes = [
                executed.get(run.config.config_hash) or Outcome(run.config, run.folder, run.record) for run in planned
            ]
            exports = _exports(spec, output, outcomes)
            missing = [item for item in exports if item.state in ("to do", "failed")]
            make_exports(missing, output, machine, reporter, pool)
            exports = _exports(spec, output, outcomes)
            done = [
                outcome.folder
                for outcome in outcomes
                if outcome.record is not None and outcome.record.model.kind != ANSWERS
            ]
            timing_error = None
            if done and machine.latency:
                made = [item.key for item in exports if item.state == "done"]
                timing_error = time_side_by_side(output, done, machine, reporter, pool, exports=made)
            return StudyOutcome(outcomes, exports, timing_error)


def check_measure(spec: StudySpec, data: StudyData) -> None:
    """Looks whether the data have what the study wants its models judged by.

    Raises:
        ConfigurationError: If there is no such measure, or no such label.
        RecurraError: If the data cannot be used.
    """
    if spec.measure is None:
        return
    reporting: Reporting = part_of(spec.task.name, "reporting")
    for config in spec.data:
        reporting.asked(spec.judging, spec.task.label_names(config, data))


def _say_what_comes(spec: StudySpec, planned: Sequence[PlannedRun], notes: Sequence[str], reporter: Reporter) -> None:
    """Says how far the study is, and what was chosen for it."""
    done = [run for run in planned if run.state == "done"]
    for run in done:
        # Of a worker that was ended between its record and its end.
        (run.folder / PROGRESS_NAME).unlink(missing_ok=True)
    # Encoders and controls read with tokenizers of their own.
    configs = [run.config for run in planned if not run.config.is_control]
    readers = [config for config in configs if ENCODER not in config.model_overrides]
    tokenizers = ", ".join(dict.fromkeys(config.data.tokenizer for config in readers))
    reporter.say(
        f"{spec.name}: {len(planned)} runs, {len(done)} done, {len(planned) - len(done)} to do"
        f"{f'; tokenizer: {tokenizers}' if tokenizers else ''}"
    )
    for line in filter(None, notes):
        reporter.say(line)


def _waves(spec: StudySpec, pending: Sequence[RunConfig]) -> list[list[RunConfig]]:
    """Runs in the order in which they begin: who teaches is trained before who learns."""
    taught_by = {teacher.run_id for run in pending for teacher in run.teachers}
    first = [run for run in pending if run.run_id in taught_by or (taught_by and not run.is_repeated)]
    waves = [
        sorted(wave, key=lambda run: (0 if run.is_control else spec.seeds.index(run.seed), rough_weight(run)))
        for wave in (first, [run for run in pending if run not in first])
    ]
    return [wave for wave in waves if wave]


def look_at_outcome(spec: StudySpec, output: Path) -> StudyOutcome:
    """What has become of a study so far; runs nothing.

    Raises:
        CheckpointError: If a record cannot be trusted.
    """
    planned = plan_study(spec, output)
    refuse_untrusted(planned)
    outcomes = [
        Outcome(run.config, run.folder, run.record, None if run.state == "done" else run.reason or "not run yet")
        for run in planned
    ]
    return StudyOutcome(outcomes, _exports(spec, output, outcomes))


def _exports(spec: StudySpec, output: Path, outcomes: Sequence[Outcome]) -> list[PlannedExport]:
    return plan_exports(spec, output, [(outcome.config, outcome.record) for outcome in outcomes])


def _with_time_left(tell: Tell, expected: Expectation | str | None) -> Tell:
    """Says of a run what is to be said, and how long the others will take."""

    def told(outcome: Outcome) -> str:
        left = expected.note(outcome) if isinstance(expected, Expectation) else ""
        return "; ".join(filter(None, [tell(outcome), left]))

    return told


def read_latency_file(output: Path) -> dict[str, Any] | None:
    """Content of a study's ``latency.json``, or none if there is none or it is damaged."""
    try:
        values = read_json(output / LATENCY_NAME)
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


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

    Runs train side by side, so what each of them could measure of itself would depend on its neighbours.

    Returns:
        Why it failed, in one line; none if it did not.
    """
    present = read_latency_file(output)
    if present is not None:
        timed = {name.removesuffix(WITH_EXITS) for name in present.get("exports", {})}
        if (set(present.get("runs", {})), timed) == ({run.name for run in runs}, set(exports)):
            return None
    reporter.say(f"timing {len(runs)} runs{f' and {len(exports)} exports' if exports else ''} side by side")
    names = {"runs": [run.name for run in runs], "exports": list(exports)}
    threads = machine.threads or available_cores()
    ended = workers.call("recurra.study.timing:time_all", str(output), names, machine=machine, threads=threads)
    if not ended.code:
        return None
    reason = f"the models could not be timed side by side ({ended.reason})"
    reporter.say(reason)
    return reason


def refuse_folder_of_another(name: str, output: Path) -> None:
    """Refuses a folder of another study, or with something else; a study may grow in its own (more seeds or models).

    Raises:
        StorageError: If it is one; nothing is touched then.
    """
    path = output / SPEC_NAME
    if in_study(path):
        present = read_yaml(path).get("name")
        if present != name:
            raise StorageError(f"'{output}' holds the study '{present}', not '{name}'; choose another --output")
    elif output.is_dir() and any(item.name not in _OURS and not is_part(item.name) for item in output.iterdir()):
        raise StorageError(f"'{output}' is not empty and not a study of ours; choose another --output")
