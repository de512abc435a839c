"""Cost and progress of a study, and models that fit a budget. Takes no lock and runs nothing."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recurra.core.environment import available_cores
from recurra.core.errors import ConfigurationError, RecurraError, RunError, StorageError
from recurra.core.packed import SPEC_NAME, in_study
from recurra.core.progress import Reporter
from recurra.core.terminal import duration, words
from recurra.data.configuration import ALIASES
from recurra.data.corpora import CORPORA, IN_MEMORY
from recurra.data.language.corpora import SOURCES
from recurra.study.estimate import (
    RECORDS_A_MODEL,
    PlanCost,
    Speed,
    cost_plan,
    model_key,
    seconds_left,
    time_model,
    whole_seconds,
)
from recurra.study.executor import threads_of, workers_for
from recurra.study.export_plan import PlannedExport, plan_exports
from recurra.study.plan import PlannedRun, plan_study
from recurra.study.spec import StudySpec, expand, load_study
from recurra.tasks import part_of
from recurra.tasks.base import RunConfig
from recurra.tasks.reporting import Reporting
from recurra.tasks.runs import model_name
from recurra.tasks.study_data import StudyData


@dataclass(frozen=True)
class StudyView:
    """A study at one moment: its runs, its exports, and how long the rest will take.

    Attributes:
        workers: Runs at once; 0 for a study that is only looked at.
        cost: Cost of its runs; None if not requested, or unknown for the reason in ``note``.
    """

    name: str
    output: Path
    runs: list[PlannedRun]
    exports: Sequence[PlannedExport]
    remaining_s: float | None
    workers: int = 0
    cost: PlanCost | None = None
    note: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Number of runs in each state that occurs."""
        return dict(Counter(run.state for run in self.runs))

    @property
    def pending(self) -> list[PlannedRun]:
        """Runs without a record."""
        return _pending(self.runs)

    def groups(self) -> list[tuple[str, list[PlannedRun]]]:
        """Groups of runs that differ only in the seed, each with the part of the name that they share."""
        groups: dict[tuple[str, ...], list[PlannedRun]] = defaultdict(list)
        for run in self.runs:
            config = run.config
            name = config.run_id.removesuffix(f"-{config.config_hash[:8]}").removesuffix(f"-s{config.seed}")
            groups[name, model_key(config), config.protocol.name].append(run)
        return [(key[0], runs) for key, runs in groups.items()]

    def plain(self) -> dict[str, Any]:
        """Plain JSON values; costs if there are any."""
        values = {
            "name": self.name,
            "output": str(self.output),
            "counts": self.counts,
            "remaining_s": self.remaining_s,
            "runs": [self._plain_run(run) for run in self.runs],
            "exports": [export.plain() for export in self.exports],
        }
        if not self.workers:
            return values
        return {
            **values,
            "workers": self.workers,
            "training_flops": self.cost.flops(self.runs) if self.cost else None,
            "remaining_flops": self.cost.flops(self.pending) if self.cost else None,
            "basis": list(self.cost.basis) if self.cost else [self.note],
        }

    def _plain_run(self, run: PlannedRun) -> dict[str, Any]:
        cost = self.cost.runs.get(run.config.run_id) if self.cost else None
        return {
            "run_id": run.config.run_id,
            "state": run.state,
            "done": run.state == "done",
            "reason": run.reason,
            "folder": str(run.folder),
            "progress": None if run.progress is None else asdict(run.progress),
            **({} if cost is None else {"training_flops": cost.flops, "seconds": cost.seconds}),
        }


def _pending(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    return [run for run in runs if run.state not in ("done", "refused")]


def find_study(path: Path, output: Path | None) -> tuple[StudySpec, Path]:
    """Reads a study from its file or from its folder.

    Args:
        output: The study's folder; None takes the folder itself, or ``runs/NAME`` for a file.

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


def study_status(spec: StudySpec, output: Path) -> StudyView:
    """State of every run of a study, and how long the rest will take.

    Raises:
        ConfigurationError: If a file that the study names is missing: its runs cannot be identified then.
    """
    corpora = {*CORPORA, *SOURCES, *ALIASES, IN_MEMORY}
    missing = [name for data in spec.data for name in data.files if name not in corpora and not Path(name).exists()]
    if missing:
        raise ConfigurationError(
            f"the study's file '{missing[0]}' is not in '{Path.cwd()}'; run this command in the folder where the "
            "study was started"
        )
    folder = output.resolve()
    runs = plan_study(spec, folder)
    return StudyView(spec.name, folder, runs, plan_exports(spec, folder, runs), _remaining(runs))


def _remaining(runs: Sequence[PlannedRun]) -> float | None:
    """Seconds left if running runs keep their pace and the same number stays under way.

    A run that has not begun is expected to take the mean of its model's finished and running runs, or else of all
    runs.
    """
    running = [run for run in runs if run.state == "running"]
    waiting = [run for run in runs if run.state in ("to do", "interrupted")]
    if not running and not waiting:
        return 0.0
    durations: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        model_durations = durations[model_key(run.config)]
        if run.state == "running" and run.progress is not None and run.progress.remaining_s is not None:
            model_durations.append(run.progress.elapsed_s + run.progress.remaining_s)
        elif len(model_durations) < RECORDS_A_MODEL and run.record is not None:
            model_durations.append(whole_seconds(run.record))
    known = [seconds for model_durations in durations.values() for seconds in model_durations]
    if not known or not running:
        return None
    expected = {key: statistics.fmean(model_durations or known) for key, model_durations in durations.items()}
    under_way = []
    for run in running:
        left, elapsed = (run.progress.remaining_s, run.progress.elapsed_s) if run.progress else (None, 0.0)
        under_way.append((run.config, max(0.0, expected[model_key(run.config)] - elapsed) if left is None else left))
    return seconds_left([*under_way, *((run.config, expected[model_key(run.config)]) for run in waiting)], len(running))


def check_measure(spec: StudySpec, data: StudyData) -> None:
    """Checks that the data support the measure that the study judges its models by.

    Raises:
        ConfigurationError: If there is no such measure, or no such label.
        RecurraError: If the data cannot be used.
    """
    if spec.measure is None:
        return
    reporting: Reporting = part_of(spec.task.name, "reporting")
    for config in spec.data:
        reporting.requested_measure(spec.questions, spec.task.label_names(config, data))


def plan_with_cost(
    spec: StudySpec,
    output: Path,
    data: StudyData,
    *,
    workers: int = 0,
    cost: bool = True,
    calibrated: bool = False,
    reporter: Reporter,
) -> StudyView:
    """Plans a study, counts its operations and estimates its time.

    Unavailable data are no error here: the plan is shown without costs, and with the reason.

    Raises:
        ConfigurationError: If a model of the study has an impossible shape, or there is no such measure.
    """
    runs = plan_study(spec, output)
    exports = plan_exports(spec, output, runs)
    waiting = sum(run.state != "done" for run in runs)
    workers = workers or workers_for(waiting, data.machine)
    threads = threads_of(data.machine, available_cores(), workers).threads

    def measure(config: RunConfig) -> Speed:
        if config.is_control:
            # A control is never left out for its time.
            return None, None
        reporter.say(f"calibrating {config.model}")
        return time_model(config, data, threads)

    costs, note = None, ""
    try:
        if cost:
            check_measure(spec, data)
        costs = cost_plan(runs, data, measure if calibrated else None) if cost else None
    except ConfigurationError:
        # Other data would not help, and `run` refuses it too.
        raise
    except RecurraError as error:
        note = f"the cost is not known: {error}"
    left = None
    if costs and costs.seconds(pending := _pending(runs)) is not None:
        left = seconds_left([(run.config, costs.runs[run.config.run_id].seconds or 0.0) for run in pending], workers)
    return StudyView(spec.name, output, runs, exports, left, workers, costs, note)


def within_minutes(
    spec: StudySpec, output: Path, data: StudyData, minutes: float, *, workers: int = 0, reporter: Reporter
) -> tuple[StudySpec, str]:
    """Takes one split instead of folds, then leaves out expensive models, until training fits a budget.

    Finished runs count with the time in their records. Models of which a run was begun are not left out, nor are
    controls; a model that learns from a left-out model is left out too.

    Seconds come from records, or are measured here: a few training steps of each model. The time of evaluation is
    not counted.

    Raises:
        ConfigurationError: If a model of the study has an impossible shape.
        RunError: If the time cannot be estimated, or no model is left.
    """
    at_once = workers or workers_for(len(expand(spec)), data.machine)
    planned = plan_with_cost(spec, output, data, workers=at_once, calibrated=True, reporter=reporter)
    if planned.cost is None:
        raise RunError(f"--minutes {minutes:g} cannot be kept: {planned.note}")
    seconds: dict[str, float] = {}
    teachers: dict[str, set[str]] = defaultdict(set)
    begun: set[str] = set()
    for run in planned.runs:
        config = run.config
        if config.is_repeated and run.state != "refused":
            cost_s = whole_seconds(run.record) if run.record else planned.cost.runs[config.run_id].seconds
            taken = (cost_s or 0.0) / planned.workers
            seconds[config.model] = seconds.get(config.model, 0.0) + taken
            teachers[config.model].update(teacher.name for teacher in config.teachers)
            begun |= {config.model} if run.state in ("done", "interrupted") else set()
    if not seconds:
        return spec, ""
    folded = any(len(config.every_fold) > 1 for config in spec.data)
    if folded and not begun and sum(seconds.values()) > 60 * minutes:
        unfolded = [
            config.model_copy(update={"folds": 1, "fold": 0}) if len(config.every_fold) > 1 else config
            for config in spec.data
        ]
        unfolded_spec = spec.model_copy(update={"data": unfolded})
        smaller, note = within_minutes(unfolded_spec, output, data, minutes, workers=workers, reporter=reporter)
        # If only controls remain, they keep the folds, which cost them seconds.
        if any(model_name(model) in seconds for model in smaller.models):
            return smaller, f"one split instead of folds for --minutes {minutes:g}; {note}"
    trained = dict(seconds)
    while sum(trained.values()) > 60 * minutes and (unbegun := [name for name in trained if name not in begun]):
        slowest = max(unbegun, key=lambda name: trained[name])
        trained = {name: time for name, time in trained.items() if name != slowest and slowest not in teachers[name]}
    times = ", ".join(f"{name} {duration(time)}" for name, time in sorted(seconds.items(), key=lambda item: item[1]))
    left_out = [name for name in seconds if name not in trained]
    models = [model for model in spec.models if model_name(model) not in left_out]
    if not models:
        raise RunError(f"no model can be trained within {minutes:g} minutes here: {times}; give more, or name others")
    total = duration(sum(trained.values()))
    note = f"about {total} of training ({times})" if trained else f"training takes {times}"
    if not left_out:
        return spec, note
    changes = {
        "models": models,
        "prices": {name: price for name, price in spec.prices.items() if name not in left_out},
    }
    return spec.model_copy(update=changes), f"{note}; left out for --minutes {minutes:g}: {words(left_out)}"
