"""Estimates the cost of runs: operations counted from the lengths of their rows, and seconds.

A training step is a forward pass and a backward pass of twice its operations (Kaplan et al. 2020, section 2.1); an
epoch is every training row once, at its own length and without padding. Early stopping may end a run sooner, so a run's
cost is the most that it can take. Seconds come from records of the same model in the study, or from a few steps timed
on this machine, or from the rate of other models.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from recurra.core.configuration import content_hash
from recurra.core.environment import peak_memory_mib, reset_peak_memory
from recurra.core.progress import Reporter
from recurra.core.record import AnyRecord
from recurra.core.terminal import count, duration
from recurra.study.plan import PlannedRun, plan_study
from recurra.study.spec import StudySpec
from recurra.study.workers import Workers
from recurra.tasks.base import DataCost, RunConfig, task_of_data
from recurra.tasks.study_data import Machine, StudyData

BACKWARD = 2  # passes that the backward pass costs
# Prefix of the line in which a worker names the model that it has timed.
TIMED = "timed "
# Timed steps of each model, after one step that sets everything up.
TIMED_STEPS = 3
# More records of one model would not make its rate much better.
RECORDS_A_MODEL = 3
# Largest factor by which finished runs may stretch or shrink the estimates of the others.
LARGEST_PACE = 3.0


def training_flops(run: RunConfig, data: StudyData, epochs: int | None = None) -> float | None:
    """Operations of a run's training; None for a control, whose solver decides how long it works.

    Without ``epochs``, counts the most epochs that the protocol allows.

    Raises:
        RecurraError: If the data or the model configuration cannot be used.
    """
    if run.is_control:
        return None
    cost, protocol = data_cost(run, data), run.protocol
    passes = protocol.max_epochs if epochs is None else epochs
    parts = [
        (cost.lengths, passes),
        (cost.auxiliary_lengths, protocol.auxiliary_epochs),
        (cost.unlabelled_lengths, passes if run.teachers else 0),
    ]

    def epoch_flops(lengths: Mapping[int, int]) -> float:
        # The cached data cost keeps the mapping alive, so its id stays unique.
        name = f"flops {content_hash([run.model, run.model_overrides])} {id(lengths)}"
        forward = partial(task_of_data(run.data).epoch_flops, run, lengths, cost)
        return (1 + BACKWARD) * data.once(name, run.data, forward)

    return sum(epoch_flops(lengths) * passes for lengths, passes in parts if lengths and passes)


def data_cost(run: RunConfig, data: StudyData) -> DataCost:
    """Rows, tokens and lengths of an epoch on a run's data; the data are read once.

    Raises:
        RecurraError: If the data cannot be used.
    """
    read = partial(task_of_data(run.data).data_cost, run.data, data)
    return data.once(f"cost {content_hash(run.data.plain())}", run.data, read)


# Operations a second in training (for a control: seconds of a fit) and MiB of memory; None if unknown.
Speed = tuple[float | None, float | None]
Measure = Callable[[RunConfig], Speed]


def time_model(config: RunConfig, data: StudyData, threads: int) -> Speed:
    """Times training steps on made-up rows of the mean length, or fits of a control on some rows."""
    if config.is_control:
        return task_of_data(config.data).control_seconds(config, data), None
    cost = data_cost(config, data)
    reset_peak_memory()
    return training_speed(config, cost.mean_length, threads=threads), peak_memory_mib()


def training_speed(config: RunConfig, mean_tokens: float, *, threads: int) -> float:
    """Operations a second in training, counted as in `training_flops`, from steps on made-up rows of the mean length.

    Raises:
        ConfigurationError: If the model configuration is wrong.
    """
    import torch

    from recurra.models.inference import autocast, default_device, torch_threads

    device, rows = default_device(), config.protocol.batch_size
    length = max(3, round(mean_tokens))
    elapsed = []
    with torch_threads(threads):
        model, forward, labels = task_of_data(config.data).sample_step(config, length)
        model = model.to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(1, int(model.config.vocab_size), (rows, length), generator=generator).to(device)
        batch = {"input_ids": ids, "labels": ids if labels is None else labels.to(device)}
        for _ in range(TIMED_STEPS + 1):
            start = time.perf_counter()
            with autocast(config.precision, device):
                loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if device.type != "cpu":
                torch.cuda.synchronize()
            elapsed.append(time.perf_counter() - start)
    # The first step also sets everything up.
    return float((1 + BACKWARD) * forward * rows / statistics.median(elapsed[1:]))


@dataclass(frozen=True)
class RunCost:
    """Cost of one run: operations of its training, seconds, and memory in MiB; None if unknown."""

    flops: float | None
    seconds: float | None
    memory_mib: float | None = None


@dataclass(frozen=True)
class PlanCost:
    """Cost of a plan."""

    runs: Mapping[str, RunCost]
    basis: Sequence[str]

    def flops(self, runs: Sequence[PlannedRun]) -> float:
        """Operations of some runs together."""
        return sum(self.runs[run.config.run_id].flops or 0.0 for run in runs)

    def seconds(self, runs: Sequence[PlannedRun]) -> float | None:
        """Seconds of runs one after another; None if unknown for a trained model or for all of them."""
        unknown = [run for run in runs if self.runs[run.config.run_id].seconds is None]
        if any(not run.config.is_control for run in unknown) or (runs and len(unknown) == len(runs)):
            return None
        return sum(self.runs[run.config.run_id].seconds or 0.0 for run in runs)


def cost_plan(runs: Sequence[PlannedRun], data: StudyData, measure: Measure | None = None) -> PlanCost:
    """Counts and estimates the cost of every run of a plan.

    Args:
        measure: Times a model without a record in the plan. None uses the rate of the other models, if there are
            any.

    Raises:
        RecurraError: If the data or a model configuration cannot be used.
    """
    flops = {run.config.run_id: training_flops(run.config, data) for run in runs}
    models: dict[str, list[PlannedRun]] = defaultdict(list)
    for run in runs:
        models[model_key(run.config)].append(run)
    rates = {key: _recorded_rate(members, data) for key, members in models.items()}
    known = [rate for key, (rate, _) in rates.items() if rate is not None and not models[key][0].config.is_control]
    costs, basis = {}, []
    for key, members in models.items():
        config = members[0].config
        rate, records = rates[key]
        memory = None
        if rate is not None:
            basis.append(f"{config.model}: from {records} of its own records here")
        elif measure is not None and (timed := measure(config))[0] is not None:
            rate, memory = timed
            speed = "" if config.is_control or rate is None else f" ({rate / 1e9:.3g} GFLOP/s)"
            timed_work = "fits of some rows" if config.is_control else "a few training steps"
            basis.append(f"{config.model}: calibrated with {timed_work}{speed}")
        elif config.is_control:
            basis.append(f"{config.model}: no record here yet; its time is not included")
        elif known:
            rate = statistics.median(known)
            basis.append(f"{config.model}: at the rate of the other models' records here ({rate / 1e9:.3g} GFLOP/s)")
        else:
            basis.append(f"{config.model}: no record here yet; --calibrate times a few training steps")
        for run in members:
            operations = flops[run.config.run_id]
            # For a control, the rate is its seconds.
            seconds = rate if rate is None or operations is None else operations / rate
            costs[run.config.run_id] = RunCost(operations, seconds, memory)
    return PlanCost(costs, list(dict.fromkeys(basis)))


def model_key(config: RunConfig) -> str:
    """Equal for runs of the same speed: hash of model, overrides, precision and batch size; data for a control."""
    if config.is_control:
        # Folds and splits have equally many rows.
        rows = {key: value for key, value in config.data.plain().items() if key not in ("fold", "split_seed")}
        return content_hash([config.model, rows])
    return content_hash([config.model, config.model_overrides, config.precision, config.protocol.batch_size])


def _recorded_rate(members: Sequence[PlannedRun], data: StudyData) -> tuple[float | None, int]:
    """Median operations a second over a model's records (for a control: seconds), and the number of records."""
    values: list[float] = []
    for run in members:
        if len(values) == RECORDS_A_MODEL:
            break
        if run.record is not None and (seconds := whole_seconds(run.record)) > 0:
            flops = training_flops(run.config, data, run.record.training.epochs)
            values.append(seconds if flops is None else flops / seconds)
    return (statistics.median(values), len(values)) if values else (None, 0)


def whole_seconds(record: AnyRecord) -> float:
    """Seconds of the whole run if they are recorded and it was never resumed, else seconds of its training."""
    if record.wall_s is None or record.training.resumed:
        return record.training.wall_s
    return record.wall_s


def seconds_left(runs: Iterable[tuple[RunConfig, float]], at_once: int) -> float:
    """Seconds until waiting and running runs are done, with ``at_once`` of them side by side.

    Runs that learn from runs of the study begin once the others are done; each of the two waves takes at least as long
    as its longest run.
    """
    waves: dict[bool, list[float]] = {}
    for run, seconds in runs:
        waves.setdefault(any(teacher.run_id for teacher in run.teachers), []).append(seconds)
    return sum(max(sum(wave) / at_once, *wave) for wave in waves.values())


class Expectation:
    """Expected time of the pending runs of a study, corrected as runs finish."""

    def __init__(self, runs: Sequence[RunConfig], costs: Mapping[str, RunCost], workers: int, took_s: float) -> None:
        self.costs, self.workers, self.took_s = costs, workers, took_s
        self._waiting = {run.run_id: run for run in runs}
        self._taken: dict[str, list[float]] = defaultdict(list)
        self._ratios: list[tuple[float, float]] = []

    def lines(self) -> list[str]:
        """One line per model, the cheapest first, and one for the total."""
        models: dict[str, list[RunCost]] = defaultdict(list)
        for run in self._waiting.values():
            models[run.model].append(self.costs[run.run_id])
        lines = []
        for name, costs in sorted(models.items(), key=lambda item: item[1][0].seconds or 0.0):
            time_of_one = "not known" if costs[0].seconds is None else f"about {duration(costs[0].seconds)}"
            memory = costs[0].memory_mib
            memory_needed = "" if memory is None else f", {count(round(memory))} MiB of memory or more"
            lines.append(f"  {name}: {f'{len(costs)} runs of ' if len(costs) > 1 else ''}{time_of_one}{memory_needed}")
        at_once = "one run at a time" if self.workers == 1 else f"{self.workers} runs at once"
        known = all(cost.seconds is not None for cost in self.costs.values())
        total = f"about {duration(self.left_s())}{'' if known else ', plus what is unknown'}"
        return [*lines, f"  together: {total}, {at_once} (estimated in {duration(self.took_s)})"]

    def note(self, outcome: PlannedRun) -> str:
        """Records the outcome of a run; returns how long the others will take, if known."""
        run = self._waiting.pop(outcome.config.run_id)
        if outcome.record is not None:
            seconds, expected = whole_seconds(outcome.record), self.costs[run.run_id].seconds
            self._taken[model_key(run)].append(seconds)
            if expected:
                self._ratios.append((seconds, expected))
        left = self.left_s()
        return f"about {duration(left)} left" if left else ""

    def left_s(self) -> float:
        """Seconds until all are done.

        A model with finished runs is expected to take their mean. Other estimates are corrected by a factor or by a
        number of seconds a run, whichever changes less.
        """
        pace, extra_s = 1.0, 0.0
        if self._ratios:
            taken, expected = (sum(values) for values in zip(*self._ratios, strict=True))
            pace = min(max(taken / expected, 1 / LARGEST_PACE), LARGEST_PACE)
            extra_s = (taken - expected) / len(self._ratios)
        waiting = []
        for run in self._waiting.values():
            model_seconds, seconds = self._taken.get(model_key(run)), self.costs[run.run_id].seconds
            if model_seconds:
                waiting.append((run, statistics.fmean(model_seconds)))
            elif seconds is not None:
                waiting.append((run, seconds + min((pace - 1) * seconds, extra_s, key=abs)))
        return seconds_left(waiting, self.workers)


def expect(
    spec: StudySpec,
    pending: Sequence[RunConfig],
    output: Path,
    machine: Machine,
    workers: Workers,
    *,
    reporter: Reporter,
) -> Expectation | str:
    """Estimates in a worker how long runs of a study will take; returns the reason if that is impossible."""
    started = time.monotonic()
    call_arguments = "recurra.study.estimate:costs_of_runs", spec.plain(), str(output), workers.threads
    with reporter.task("estimating", len(spec.models)) as task:

        def follow(line: str) -> None:
            if line.startswith(TIMED):
                task.advance(note=line.removeprefix(TIMED))

        ended = workers.call(*call_arguments, machine=machine, say=follow)
    if ended.code:
        return f"the time could not be estimated: {ended.last.removeprefix('error: ')[:300] or ended.cause}"
    # Runs of a file that has just changed have other names there.
    unknown = vars(RunCost(None, None))
    costs = {run.run_id: RunCost(**ended.result.get(run.run_id, unknown)) for run in pending}
    return Expectation(pending, costs, max(1, workers.count), time.monotonic() - started)


def costs_of_runs(data: StudyData, spec: Mapping[str, Any], output: str, threads: int) -> dict[str, dict[str, Any]]:
    """Cost of every run of a study, as plain values; models without a record are timed."""
    planned = plan_study(StudySpec.parse(spec), Path(output))
    if any(run.config.needs_torch for run in planned):
        from recurra.models.quiet import quieten_libraries

        quieten_libraries()

    def time_and_print(config: RunConfig) -> Speed:
        speed = time_model(config, data, threads)
        sys.stdout.write(f"{TIMED}{config.model}\n")
        sys.stdout.flush()
        return speed

    return {name: vars(cost) for name, cost in cost_plan(planned, data, time_and_print).runs.items()}
