"""What a study does around its runs: says what comes, orders them, times all models side by side, keeps its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recurra.core.configuration import read_yaml
from recurra.core.environment import available_cores
from recurra.core.errors import StorageError
from recurra.core.files import is_part, read_json
from recurra.core.packed import HISTORY_NAME, PREDICTIONS_NAME, RECORDS_NAME, RUNS_NAME, in_study
from recurra.core.progress import Reporter
from recurra.deployment.export_record import WITH_EXITS
from recurra.study.executor import rough_weight
from recurra.study.plan import PROGRESS_NAME, ROWS_NAME, SPEC_NAME, PlannedRun
from recurra.study.spec import StudySpec
from recurra.study.workers import Workers
from recurra.tasks.machine import Machine
from recurra.tasks.profile import ENCODER, part_of
from recurra.tasks.reporting import Reporting
from recurra.tasks.runs import RunConfig
from recurra.tasks.study_data import StudyData

LATENCY_NAME = "latency.json"
_OURS = {".lock", RUNS_NAME, LATENCY_NAME, ROWS_NAME, RECORDS_NAME, HISTORY_NAME, PREDICTIONS_NAME}


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


def say_what_comes(spec: StudySpec, planned: Sequence[PlannedRun], notes: Sequence[str], reporter: Reporter) -> None:
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


def waves(spec: StudySpec, pending: Sequence[RunConfig]) -> list[list[RunConfig]]:
    """Runs in the order in which they begin: who teaches is trained before who learns."""
    taught_by = {teacher.run_id for run in pending for teacher in run.teachers}
    first = [run for run in pending if run.run_id in taught_by or (taught_by and not run.is_repeated)]
    ordered = [
        sorted(wave, key=lambda run: (0 if run.is_control else spec.seeds.index(run.seed), rough_weight(run)))
        for wave in (first, [run for run in pending if run not in first])
    ]
    return [wave for wave in ordered if wave]


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
