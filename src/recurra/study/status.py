"""A study seen from outside while it runs: each run's state and pace, and when all will be done. Takes no lock."""

from __future__ import annotations

import contextlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurra.core.errors import ConfigurationError, RecurraError, StorageError
from recurra.core.files import LOCK_NAME
from recurra.core.packed import in_study
from recurra.study.estimate import RECORDS_A_MODEL, model_key, whole_seconds
from recurra.study.export_plan import PlannedExport, exports_of
from recurra.study.plan import SPEC_NAME, PlannedRun, plan_study
from recurra.study.spec import StudySpec, load_study


@dataclass(frozen=True)
class StudyStatus:
    """A study at one moment.

    Attributes:
        spec: The study.
        output: Its folder.
        runs: Its runs in the plan's order.
        remaining_s: Seconds until all are done, as things go; none while there is nothing to judge by.
        exports: What is to be exported, in the runs' order.
    """

    spec: StudySpec
    output: Path
    runs: list[PlannedRun]
    remaining_s: float | None
    exports: Sequence[PlannedExport] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Number of runs in each state that occurs."""
        return dict(Counter(run.state for run in self.runs))

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {
            "name": self.spec.name,
            "output": str(self.output),
            "counts": self.counts,
            "remaining_s": self.remaining_s,
            "runs": [plain_run(run) for run in self.runs],
            "exports": [export.plain() for export in self.exports],
        }


def plain_run(run: PlannedRun) -> dict[str, Any]:
    """One run as plain JSON values."""
    return {
        "run_id": run.config.run_id,
        "state": run.state,
        "done": run.state == "done",
        "reason": run.reason,
        "folder": str(run.folder),
        "progress": None if run.progress is None else run.progress.plain(),
    }


def find_study(path: Path, output: Path | None) -> tuple[StudySpec, Path]:
    """Reads a study from its file or from its folder.

    Args:
        path: A study file, or a folder that a study was run in.
        output: The study's folder; none takes the folder itself, or ``runs/NAME`` for a file.

    Raises:
        StorageError: If the folder holds no study.
        ConfigurationError: If the study file is wrong.
    """
    if not path.is_dir():
        spec = load_study(path)
        return spec, output or Path("runs") / spec.name
    if not in_study(path / SPEC_NAME):
        raise StorageError(
            f"'{path}' holds no study ('{SPEC_NAME}' is missing); give a study file, or the --output folder of a study"
        )
    return load_study(path / SPEC_NAME), output or path


def look_at_study(spec: StudySpec, output: Path) -> StudyStatus:
    """What has become of every run of a study, and how long the rest will take.

    Names of files in a study are relative to the folder that it was started in; while it runs that one is taken.

    Raises:
        ConfigurationError: If a file that the study names is not there: its runs cannot be told then.
    """
    folder = output.resolve()
    with contextlib.chdir(_started_in(folder) or Path.cwd()):
        missing = [data.name for data in spec.data if Path(data.name).suffix and not Path(data.name).exists()]
        if missing:
            raise ConfigurationError(
                f"the study's file '{missing[0]}' is not in '{Path.cwd()}'; "
                "call this in the folder that the study was started in"
            )
        runs = plan_study(spec, folder)
        return StudyStatus(spec, output, runs, _remaining(runs), exports_of(spec, folder, runs))


def _started_in(output: Path) -> Path | None:
    """Working folder of the process that runs the study now, where the system tells."""
    try:
        pid = (output / LOCK_NAME).read_text(encoding="ascii").strip()
        return Path(f"/proc/{int(pid)}/cwd").readlink()
    except (OSError, ValueError):
        return None


def _remaining(runs: Sequence[PlannedRun]) -> float | None:
    """Seconds left if the runs under way keep their pace and as many go on side by side.

    A run that has not begun is taken to last as long as finished runs of its model, or else as the mean of all.
    """
    running = [run for run in runs if run.state == "running"]
    waiting = [run for run in runs if run.state in ("to do", "interrupted")]
    if not running and not waiting:
        return 0.0
    durations = _durations(runs)
    everything = [value for values in durations.values() for value in values]
    if not everything or not running:
        return None
    mean = statistics.fmean(everything)
    left = []
    for run in running:
        progress = run.progress
        own = progress.remaining_s if progress else None
        whole = statistics.fmean(durations.get(model_key(run.config), [mean]))
        left.append(max(0.0, whole - (progress.elapsed_s if progress else 0.0)) if own is None else own)
    to_come = sum(statistics.fmean(durations.get(model_key(run.config), [mean])) for run in waiting)
    return max(*left, (sum(left) + to_come) / len(running))


def _durations(runs: Sequence[PlannedRun]) -> dict[str, list[float]]:
    """Seconds of finished runs, and what runs under way will come to, by model."""
    durations: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        values = durations[model_key(run.config)] if run.state in ("done", "running") else []
        if run.state == "running" and run.progress is not None and run.progress.remaining_s is not None:
            values.append(run.progress.elapsed_s + run.progress.remaining_s)
        elif run.state == "done" and len(values) < RECORDS_A_MODEL:
            try:
                record = run.record
            except RecurraError:
                continue
            if record is not None:
                values.append(whole_seconds(record))
    return {key: values for key, values in durations.items() if values}
