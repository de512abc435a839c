"""A plan with its cost, grouped for a reader: what `recurra study plan` shows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurra.core.environment import available_cores
from recurra.core.errors import ConfigurationError, RecurraError, RunError
from recurra.core.formatting import duration, words
from recurra.core.progress import Reporter
from recurra.study.cost import CostBook
from recurra.study.estimate import Calibrate, PlanCost, cost_plan, model_key, plain_cost, training_speed
from recurra.study.executor import threads_of, workers_for
from recurra.study.export_plan import PlannedExport, exports_of
from recurra.study.plan import PlannedRun, plan_study
from recurra.study.spec import StudySpec
from recurra.study.status import plain_run
from recurra.tasks.machine import Machine
from recurra.tasks.runs import RunConfig, model_name


@dataclass(frozen=True)
class CostedPlan:
    """The runs of a study and what they cost.

    Attributes:
        name: The study.
        runs: In the order in which they are started.
        workers: Runs at once.
        cost: What they cost; none if it was not asked for or cannot be known.
        note: Why it cannot.
        exports: What is to be exported, in the runs' order.
    """

    name: str
    runs: list[PlannedRun]
    workers: int
    cost: PlanCost | None
    note: str = ""
    exports: Sequence[PlannedExport] = ()

    @property
    def pending(self) -> list[PlannedRun]:
        """Runs without a record."""
        return [run for run in self.runs if run.state not in ("done", "refused")]

    @property
    def remaining_s(self) -> float | None:
        """Seconds until all is done with as many runs at once as there are workers."""
        seconds = self.cost.seconds(self.pending) if self.cost else None
        return None if seconds is None else seconds / self.workers

    def groups(self) -> list[list[PlannedRun]]:
        """Runs that differ in the seed alone, together."""
        groups: dict[tuple[str, ...], list[PlannedRun]] = defaultdict(list)
        for run in self.runs:
            config = run.config
            groups[config.run_id.rsplit("-s", 1)[0], model_key(config), config.protocol.name].append(run)
        return list(groups.values())

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        costs = self.cost.runs if self.cost else {}
        known = {run_id: plain_cost(cost) for run_id, cost in costs.items()}
        return {
            "name": self.name,
            "counts": dict(Counter(run.state for run in self.runs)),
            "workers": self.workers,
            "training_flops": self.cost.flops(self.runs) if self.cost else None,
            "remaining_flops": self.cost.flops(self.pending) if self.cost else None,
            "remaining_s": self.remaining_s,
            "basis": list(self.cost.basis) if self.cost else [self.note],
            "runs": [{**plain_run(run), **known.get(run.config.run_id, {})} for run in self.runs],
            "exports": [export.plain() for export in self.exports],
        }


def plan_with_cost(
    spec: StudySpec,
    output: Path,
    machine: Machine,
    *,
    workers: int = 0,
    cost: bool = True,
    calibrated: bool = False,
    reporter: Reporter,
) -> CostedPlan:
    """Plans a study, counts its operations and estimates its time.

    Data that cannot be had are no error here: the plan is shown without costs, and why.

    Args:
        spec: The study.
        output: Its folder.
        machine: Where data lie; ``threads`` of one run, 0 chooses as `run` does.
        workers: Runs at once; 0 chooses as `run` does.
        cost: Whether to count and estimate.
        calibrated: Whether to time training steps of models without a record.
        reporter: For progress.

    Raises:
        ConfigurationError: If a model of the study has an impossible shape.
    """
    runs = plan_study(spec, output)
    exports = exports_of(spec, output, runs)
    waiting = sum(run.state != "done" for run in runs)
    workers = workers or workers_for(waiting, machine)
    if not cost:
        return CostedPlan(spec.name, runs, workers, None, exports=exports)
    threads = threads_of(machine, available_cores(), workers).threads

    def measure(config: RunConfig, mean_tokens: float) -> float:

        reporter.say(f"calibrating {config.model} on {threads} thread(s)")
        return training_speed(config, mean_tokens, threads=threads)

    chosen: Calibrate | None = measure if calibrated else None
    try:
        return CostedPlan(spec.name, runs, workers, cost_plan(runs, CostBook(machine), chosen), exports=exports)
    except ConfigurationError:
        # No data would cure it, and `run` refuses it too.
        raise
    except RecurraError as error:
        return CostedPlan(spec.name, runs, workers, None, f"the cost is not known: {error}", exports=exports)


def within_minutes(
    spec: StudySpec, output: Path, machine: Machine, minutes: float, *, workers: int = 0, reporter: Reporter
) -> tuple[StudySpec, str]:
    """Takes one split instead of folds, then leaves out the dearest models, until a study's training fits a budget.

    What is done already costs nothing.

    Seconds are measured here: a few training steps of each model. Controls are never left out; who learns from a model
    that is left out is left out with it. Evaluation is not in it.

    Args:
        spec: The study.
        output: Its folder.
        machine: Where it runs.
        minutes: The budget.
        workers: Runs at once; 0 chooses as `run` does.
        reporter: For progress.

    Returns:
        The study, and a line on what it will take and what was left out.

    Raises:
        ConfigurationError: If a model of the study has an impossible shape.
        RunError: If the time cannot be estimated, or the cheapest trained model alone takes longer.
    """
    planned = plan_with_cost(spec, output, machine, workers=workers, calibrated=True, reporter=reporter)
    if planned.cost is None:
        raise RunError(f"--minutes {minutes:g} cannot be kept: {planned.note}")
    seconds: dict[str, float] = {}
    teachers: dict[str, set[str]] = defaultdict(set)
    for run in planned.pending:
        config = run.config
        if config.is_repeated:
            taken = (planned.cost.runs[config.run_id].seconds or 0.0) / planned.workers
            seconds[config.model] = seconds.get(config.model, 0.0) + taken
            teachers[config.model].update(teacher.name for teacher in config.teachers)
    folded = any(len(data.every_fold) > 1 for data in spec.data)
    if folded and sum(seconds.values()) > 60 * minutes:
        one = [
            data.model_copy(update={"folds": 1, "fold": 0}) if len(data.every_fold) > 1 else data for data in spec.data
        ]
        changed = spec.model_copy(update={"data": one})
        found, said = within_minutes(changed, output, machine, minutes, workers=workers, reporter=reporter)
        return found, f"one split instead of folds for --minutes {minutes:g}; {said}"
    kept = dict(seconds)
    while kept and sum(kept.values()) > 60 * minutes:
        dearest = max(kept, key=lambda name: kept[name])
        kept = {name: each for name, each in kept.items() if name != dearest and dearest not in teachers[name]}
    told = ", ".join(f"{name} {duration(each)}" for name, each in sorted(seconds.items(), key=lambda item: item[1]))
    if seconds and not kept:
        raise RunError(f"no model can be trained within {minutes:g} minutes here: {told}; give more, or name others")
    left_out = [name for name in seconds if name not in kept]
    said = f"about {duration(sum(kept.values()))} of training ({told})"
    if not left_out:
        return spec, said
    models = [model for model in spec.models if model_name(model) not in left_out]
    return spec.model_copy(update={"models": models}), f"{said}; left out for --minutes {minutes:g}: {words(left_out)}"
