"""What a study will take, said before its first run: a few training steps of each model, in a worker."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from recurra.core.environment import available_cores
from recurra.core.formatting import count, duration
from recurra.core.memory import peak_memory_mib
from recurra.study.cost import CostBook
from recurra.study.estimate import cost_plan, model_key, training_speed
from recurra.study.executor import rough_weight, threads_of
from recurra.study.plan import plan_study
from recurra.study.spec import StudySpec
from recurra.study.workers import Workers
from recurra.tasks.base import task_of_data
from recurra.tasks.machine import Machine
from recurra.tasks.runs import RunConfig

# Of each model, after a first one that sets everything up.
TIMED_STEPS = 2
# How far what the first runs took may stretch or shrink what is expected of the others.
LARGEST_PACE = 3.0


@dataclass(frozen=True)
class Expected:
    """What the runs of one model that are not done will take.

    Attributes:
        model: Its name.
        runs: How many they are.
        seconds: Of one of them, its process and data included; none if it is not known.
        memory_mib: Peak memory of the process that timed its steps, on rows of the mean length; none if it was not
            timed.
    """

    model: str
    runs: int
    seconds: float | None
    memory_mib: float | None


@dataclass(frozen=True)
class Expectation:
    """What a study will take.

    Attributes:
        models: The cheapest first.
        seconds: Of each run, by its identifier, where it is known.
        workers: Runs at once.
        took_s: Seconds that it took to find out.
        taught: Runs that learn from others of the study, and are started once all others are done.
    """

    models: Sequence[Expected]
    seconds: Mapping[str, float]
    workers: int
    took_s: float
    taught: Collection[str] = ()

    @classmethod
    def parse(cls, values: Mapping[str, Any], took_s: float) -> Self:
        """Reads what `main` wrote."""
        models = [Expected(**each) for each in values["models"]]
        return cls(models, values["seconds"], values["workers"], took_s, values["taught"])

    def left_s(self, runs: Sequence[str]) -> float:
        """Seconds until some runs are done; each wave takes at least as long as the longest run of it."""
        waves: dict[bool, list[float]] = {False: [], True: []}
        for name in runs:
            if name in self.seconds:
                waves[name in self.taught].append(self.seconds[name])
        return sum(max(sum(wave) / self.workers, *wave) for wave in waves.values() if wave)

    def pace(self, done: Sequence[str], elapsed_s: float) -> float:
        """How many times as long as expected runs take that were carried out one after the other; 1 of several at once.

        Args:
            done: Those runs.
            elapsed_s: What they took together.
        """
        expected = sum(self.seconds.get(name, 0.0) for name in done)
        known = self.workers == 1 and expected > 0 and all(name in self.seconds for name in done)
        return min(max(elapsed_s / expected, 1 / LARGEST_PACE), LARGEST_PACE) if known else 1.0

    def lines(self) -> list[str]:
        """A line a model, and one of all."""
        found = []
        for each in self.models:
            time_of = "not known" if each.seconds is None else f"about {duration(each.seconds)}"
            runs = f"{each.runs} runs of " if each.runs > 1 else ""
            memory = "" if each.memory_mib is None else f", {count(round(each.memory_mib))} MiB of memory or more"
            found.append(f"  {each.model}: {runs}{time_of}{memory}")
        at_once = "one run at a time" if self.workers == 1 else f"{self.workers} runs at once"
        unknown = "" if all(each.seconds is not None for each in self.models) else ", beside what is not known"
        total = duration(self.left_s(list(self.seconds)))
        return [*found, f"  together: about {total}{unknown}, {at_once} (estimated in {duration(self.took_s)})"]


def expect(spec: StudySpec, output: Path, machine: Machine, workers: Workers) -> Expectation | str:
    """Finds out what a study will take; or says why it cannot be known, which stops nothing.

    Args:
        spec: The study.
        output: Its folder.
        machine: Where it runs.
        workers: The study's.
    """
    began = time.time()
    arguments = (spec.plain(), str(output), machine.to_json(), max(1, workers.count))
    ended = workers.call("recurra.study.expectation:measure", *arguments)
    if ended.code:
        return f"the time is not known: {ended.last.removeprefix('error: ')[:300] or ended.cause}"
    return Expectation.parse(ended.result, time.time() - began)


def measure(spec_values: Mapping[str, Any], output: str, machine_json: str, workers: int) -> dict[str, Any]:
    """Times a few steps of each model; returns what the study will take."""
    began = time.time()
    from recurra.models.quiet import quieten_libraries

    quieten_libraries()
    spec, machine = StudySpec.parse(spec_values), Machine.from_json(machine_json)
    planned = plan_study(spec, Path(output))
    pending = [run.config for run in planned if run.state != "done"]
    machine = threads_of(machine, available_cores(), workers)
    memory: dict[str, float] = {}
    startup: list[float] = []

    def speed_of(config: RunConfig, mean_tokens: float) -> float:
        # What a run's process does before it trains, this one has just done: libraries where they are not imported yet,
        # data, tokens.
        startup.append(time.time() - began)
        speed = training_speed(config, mean_tokens, threads=machine.threads, seconds=0.0, steps=TIMED_STEPS)
        memory[model_key(config)] = peak_memory_mib()
        return speed

    ordered = sorted(planned, key=lambda run: rough_weight(run.config))
    cost = cost_plan(ordered, CostBook(machine), speed_of)
    before = startup[0] if startup else time.time() - began
    fits: dict[str, float | None] = {}
    seconds: dict[str, float | None] = {}
    for config in pending:
        key, known = model_key(config), cost.runs[config.run_id].seconds
        if known is None and config.is_control:
            if key not in fits:
                fits[key] = task_of_data(config.data).engine.control_seconds(config, machine)
            known = fits[key]
        recorded = any(run.state == "done" and model_key(run.config) == key for run in planned)
        seconds[config.run_id] = known if known is None or recorded else known + before
    models: dict[str, list[RunConfig]] = {}
    for config in sorted(pending, key=lambda config: seconds[config.run_id] or 0.0):
        models.setdefault(config.model, []).append(config)
    found = [
        Expected(name, len(runs), seconds[runs[0].run_id], memory.get(model_key(runs[0])))
        for name, runs in models.items()
    ]
    known_seconds = {name: value for name, value in seconds.items() if value is not None}
    taught = [config.run_id for config in pending if any(teacher.run_id for teacher in config.teachers)]
    return {
        "models": [asdict(each) for each in found],
        "seconds": known_seconds,
        "workers": workers,
        "taught": taught,
    }
