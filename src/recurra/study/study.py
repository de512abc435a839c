"""A study from specification to report: plan, execute what is missing, time side by side, write the report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recurra.core.configuration import read_yaml, write_yaml
from recurra.core.errors import StorageError
from recurra.core.files import FolderLock, read_json, write_text
from recurra.core.progress import Reporter
from recurra.deployment.formats import check_packages
from recurra.study.cluster import Cluster
from recurra.study.executor import Executor, LocalExecutor
from recurra.study.export_plan import PlannedExport, exports_of, make_exports, plan_exports
from recurra.study.export_record import WITH_EXITS, load_export_records
from recurra.study.machine import Machine
from recurra.study.plan import RUNS_NAME, SPEC_NAME, plan_study, refuse_untrusted
from recurra.study.preflight import preflight
from recurra.study.process import Outcome
from recurra.study.ray_executor import RayExecutor
from recurra.study.spec import StudySpec

LATENCY_NAME = "latency.json"


@dataclass(frozen=True)
class StudyResult:
    """What a study gave.

    Attributes:
        output: The study's folder.
        outcomes: What became of each planned run, in the plan's order.
        report: The HTML file, if there is at least one record.
        summary: Plain values behind every table, for ``--json``.
        exports: What became of each export that the study asks for.
    """

    output: Path
    outcomes: list[Outcome]
    report: Path | None
    summary: dict[str, Any]
    exports: Sequence[PlannedExport] = ()

    @property
    def failed_exports(self) -> list[PlannedExport]:
        """Exports of finished runs that could not be made."""
        return [export for export in self.exports if export.state == "failed"]

    @property
    def failed_runs(self) -> list[Outcome]:
        """Runs without a record."""
        return [outcome for outcome in self.outcomes if outcome.record is None]

    @property
    def failed_audits(self) -> list[str]:
        """Names of failed audits, each once, with the data they concern."""
        names: dict[str, None] = {}
        for outcome in self.outcomes:
            if outcome.record is not None:
                for audit in outcome.record.failed_audits():
                    names[f"{outcome.record.data.name} ({outcome.record.data.protocol}): {audit.name}"] = None
        return list(names)


def run_study(
    spec: StudySpec,
    output: Path,
    machine: Machine,
    *,
    workers: int = 0,
    reporter: Reporter,
    command: str,
    cluster: Cluster | None = None,
) -> StudyResult:
    """Runs what a study lacks and writes its report.

    Args:
        spec: What to run.
        output: The study's folder; held by this process meanwhile.
        machine: Where data lie, threads of a run.
        workers: Runs at once; 0 chooses.
        reporter: For progress.
        command: The command line, shown in the report.
        cluster: Where to run; none is this machine.

    Raises:
        CheckpointError: If a record cannot be trusted.
        StorageError: If the folder belongs to another study or is in use.
        UnavailableError: If the cluster does not answer.
        RecurraError: If data, tokenizer or a model configuration cannot be used; nothing has been started then.
    """
    planned = plan_study(spec, output)
    refuse_untrusted(planned)
    # A record of an export that cannot be trusted is told before anything is started.
    asked = exports_of(spec, output, planned)
    for request in {item.request.format: item.request for item in asked if item.state != "done"}.values():
        check_packages(request.format)
    pending = [run.config for run in planned if run.state != "done"]
    preflight(pending, machine)
    if cluster is not None and pending:
        cluster.check()
    with FolderLock(output):
        _claim(spec, output)
        tokenizers = ", ".join(dict.fromkeys(data.tokenizer for data in spec.data))
        reporter.say(
            f"{spec.name}: {len(planned)} runs, {len(planned) - len(pending)} done, {len(pending)} to do; "
            f"tokenizer: {tokenizers}"
        )
        executor = _executor(output, replace(machine, latency=False), cluster, workers, reporter)
        executed = {outcome.config.config_hash: outcome for outcome in executor.execute(pending)}
        outcomes = [
            executed.get(run.config.config_hash) or Outcome(run.config, run.folder, run.record) for run in planned
        ]
        done = [outcome.folder for outcome in outcomes if outcome.record is not None]
        exports = _exports(spec, output, outcomes)
        make_exports([item for item in exports if item.state in ("to do", "failed")], output, machine, reporter)
        if done and machine.latency and not spec.models_language:
            made = [item.key for item in _exports(spec, output, outcomes) if item.state == "done"]
            time_side_by_side(output, done, machine, reporter, exports=made)
        return _finish(spec, output, outcomes, command)


def _exports(spec: StudySpec, output: Path, outcomes: Sequence[Outcome]) -> list[PlannedExport]:
    return plan_exports(spec, output, [(outcome.config, outcome.record) for outcome in outcomes])


def _executor(output: Path, machine: Machine, cluster: Cluster | None, workers: int, reporter: Reporter) -> Executor:
    if cluster is None:
        return LocalExecutor(output, machine, workers=workers, reporter=reporter)
    return RayExecutor(output, machine, cluster, workers=workers, reporter=reporter)


def read_latency_file(output: Path) -> dict[str, Any] | None:
    """Content of a study's ``latency.json``, or none if there is none or it is damaged."""
    try:
        values = read_json(output / LATENCY_NAME)
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def time_side_by_side(
    output: Path, runs: Sequence[Path], machine: Machine, reporter: Reporter, *, exports: Sequence[str] = ()
) -> None:
    """Times all models and exports of a study in one process, in turns, unless that was done for exactly these.

    Runs train side by side, so what each of them could measure of itself would depend on its neighbours.
    """
    present = read_latency_file(output)
    if present is not None:
        timed = {name.removesuffix(WITH_EXITS) for name in present.get("exports", {})}
        if (set(present.get("runs", {})), timed) == ({run.name for run in runs}, set(exports)):
            return
    reporter.say(f"timing {len(runs)} runs{f' and {len(exports)} exports' if exports else ''} side by side")
    done = subprocess.run(
        [sys.executable, "-m", "recurra.study.timing", str(output), machine.to_json()],
        input=json.dumps({"runs": [run.name for run in runs], "exports": list(exports)}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        reporter.say(f"timing failed: {done.stderr.strip().splitlines()[-1:]}")


def study_report(
    spec: StudySpec, output: Path, *, command: str, outcomes: Sequence[Outcome]
) -> tuple[Path | None, dict[str, Any]]:
    """Writes report, figures and tables from the records of a study; returns the page's path and the plain summary."""
    from recurra.study.report.aggregate import Questions, summarise
    from recurra.study.report.html import write_study_report
    from recurra.study.report.runs import load_runs, uncollected

    failures = {outcome.config.run_id: outcome.error or "no record" for outcome in outcomes if outcome.record is None}
    if spec.models_language:
        return _language_report(spec, output, command=command, outcomes=outcomes, failures=failures)
    questions = Questions(spec.contrasts, spec.published)
    with uncollected():
        runs, failed = load_runs([outcome.folder for outcome in outcomes], failures)
        exports = load_export_records(output) if spec.exports else []
        summary = summarise(runs, read_latency_file(output), failed, base=output, questions=questions, exports=exports)
        values = summary.plain()
    for table in values["tables"]:
        for model in table["models"]:
            for run in model["runs"]:
                run["folder"] = (output / run["folder"]).as_posix()
    if len(failures) == len(outcomes):
        return None, values
    return write_study_report(output, summary, runs, title=spec.title or spec.name, command=command), values


def _language_report(
    spec: StudySpec, output: Path, *, command: str, outcomes: Sequence[Outcome], failures: Mapping[str, str]
) -> tuple[Path | None, dict[str, Any]]:
    from recurra.study.report.language_aggregate import load_language_runs, summarise_language
    from recurra.study.report.language_html import write_language_report

    runs, failed = load_language_runs([outcome.folder for outcome in outcomes], failures)
    summary = summarise_language(runs, failed)
    if not runs:
        return None, summary.plain()
    return write_language_report(output, summary, title=spec.title or spec.name, command=command), summary.plain()


def _finish(spec: StudySpec, output: Path, outcomes: list[Outcome], command: str) -> StudyResult:
    report, summary = study_report(spec, output, command=command, outcomes=outcomes)
    return StudyResult(output, outcomes, report, summary, _exports(spec, output, outcomes))


def _claim(spec: StudySpec, output: Path) -> None:
    """Refuses a folder of another study; a study may grow (more seeds or models) in its own folder."""
    path = output / SPEC_NAME
    if path.exists():
        present = read_yaml(path).get("name")
        if present != spec.name:
            raise StorageError(f"'{output}' holds the study '{present}', not '{spec.name}'; choose another --output")
    elif any(item.name not in {".lock", RUNS_NAME, LATENCY_NAME} for item in output.iterdir()):
        raise StorageError(f"'{output}' is not empty and not a study of ours; choose another --output")
    write_text(path, write_yaml(spec.plain()))


def report_study(spec: StudySpec, output: Path, *, command: str) -> StudyResult:
    """Writes the report of what is done and runs nothing.

    Raises:
        CheckpointError: If a record cannot be trusted.
    """
    planned = plan_study(spec, output)
    refuse_untrusted(planned)
    outcomes = [
        Outcome(run.config, run.folder, run.record, None if run.state == "done" else run.reason or "not run yet")
        for run in planned
    ]
    return _finish(spec, output, outcomes, command)
