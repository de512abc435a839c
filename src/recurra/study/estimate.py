"""How long runs will take, from what the study's own took or from a few training steps timed on this machine."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recurra.core.configuration import content_hash
from recurra.core.errors import RecurraError
from recurra.core.record import AnyRecord
from recurra.study.cost import BACKWARD, CostBook
from recurra.study.plan import PlannedRun
from recurra.tasks.base import task_of_data
from recurra.tasks.runs import RunConfig

MEASURED_S = 2.0
LEAST_STEPS = 3


def training_speed(
    config: RunConfig, mean_tokens: float, *, threads: int, seconds: float = MEASURED_S, steps: int = LEAST_STEPS
) -> float:
    """Times training steps on made-up rows of the mean length.

    Args:
        config: The run whose model, batch size and precision are taken.
        mean_tokens: Mean length of its rows.
        threads: Threads of one run.
        seconds: How long steps are timed.
        steps: How many are timed at least, after one that is not.

    Returns:
        Operations a second, counted as in `recurra.study.cost`.

    Raises:
        ConfigurationError: If the model configuration is wrong.
    """
    from recurra.models.inference import torch_threads

    with torch_threads(threads):
        forward, step_s = _step(config, mean_tokens, seconds, steps)
    return (1 + BACKWARD) * forward * config.protocol.batch_size / step_s


def _step(config: RunConfig, mean_tokens: float, seconds: float, steps: int) -> tuple[float, float]:
    """Operations of a forward pass over one row, and the median seconds of a step."""
    import torch

    from recurra.models.inference import default_device

    device = default_device()
    length, rows = max(3, round(mean_tokens)), config.protocol.batch_size
    model, forward, labels = task_of_data(config.data).engine.sample_step(config, length)
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, int(model.config.vocab_size), (rows, length), generator=generator).to(device)
    batch = {"input_ids": ids, "labels": ids if labels is None else labels.to(device)}
    precisions = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = precisions.get(config.precision, torch.bfloat16)
    elapsed: list[float] = []
    began = time.perf_counter()
    while len(elapsed) <= steps or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        with torch.autocast(device.type, dtype, enabled=config.precision in precisions):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type != "cpu":
            torch.cuda.synchronize()
        elapsed.append(time.perf_counter() - start)
    # The first step also sets everything up.
    return forward, statistics.median(elapsed[1:])


# More records of one model would not make its rate much better, and reading them takes time.
RECORDS_A_MODEL = 3

Calibrate = Callable[[RunConfig, float], float]


@dataclass(frozen=True)
class RunCost:
    """Cost of one run: operations of its training, and seconds; none where it is not known."""

    flops: float | None
    seconds: float | None


@dataclass(frozen=True)
class PlanCost:
    """Cost of a plan.

    Attributes:
        runs: Cost of each run by its identifier.
        basis: Where the seconds come from, one sentence each.
    """

    runs: Mapping[str, RunCost]
    basis: Sequence[str]

    def flops(self, runs: Sequence[PlannedRun]) -> float:
        """Operations of some runs together."""
        return sum(self.runs[run.config.run_id].flops or 0.0 for run in runs)

    def seconds(self, runs: Sequence[PlannedRun]) -> float | None:
        """Seconds of some runs one after the other; none if that of a trained model is not known."""
        known = [self.runs[run.config.run_id].seconds for run in runs if not run.config.is_control]
        if any(value is None for value in known):
            return None
        return sum(self.runs[run.config.run_id].seconds or 0.0 for run in runs)


def cost_plan(runs: Sequence[PlannedRun], book: CostBook, calibrate: Calibrate | None = None) -> PlanCost:
    """Counts and estimates the cost of every run of a plan.

    Args:
        runs: The plan.
        book: Counts the operations.
        calibrate: Measures a run's operations a second at a mean length of its rows; used for models without a record
            of theirs in the plan. None takes the rate of the other models, if there are any.

    Raises:
        RecurraError: If the data or a model configuration cannot be used.
    """
    flops = {run.config.run_id: book.training_flops(run.config) for run in runs}
    models: dict[str, list[PlannedRun]] = defaultdict(list)
    for run in runs:
        models[model_key(run.config)].append(run)
    measured = {key: _rate(members, book) for key, members in models.items()}
    known = [rate for key, (rate, _) in measured.items() if rate is not None and not models[key][0].config.is_control]
    rates: dict[str, float | None] = {}
    basis = []
    for key, members in models.items():
        config = members[0].config
        rate, records = measured[key]
        if rate is not None:
            basis.append(f"{config.model}: from {records} of its own records here")
        elif config.is_control:
            basis.append(f"{config.model}: no record here yet; its seconds are left out")
        elif calibrate is not None:
            data = book.data(config)
            rate = calibrate(config, data.tokens / data.rows)
            basis.append(f"{config.model}: calibrated with a few training steps ({rate / 1e9:.3g} GFLOP/s)")
        elif known:
            rate = statistics.median(known)
            basis.append(f"{config.model}: at the rate of the other models' records here ({rate / 1e9:.3g} GFLOP/s)")
        else:
            basis.append(f"{config.model}: no record here yet; --calibrate times a few training steps")
        rates[key] = rate
    return PlanCost(
        {
            run.config.run_id: RunCost(
                flops[run.config.run_id], _seconds(flops[run.config.run_id], rates[model_key(run.config)])
            )
            for run in runs
        },
        basis,
    )


def model_key(config: RunConfig) -> str:
    """Equal for runs whose speed is the same: model, overrides, precision, batch size; data for a control."""
    if config.is_control:
        return content_hash([config.model, config.data.plain()])
    return content_hash([config.model, config.model_overrides, config.precision, config.protocol.batch_size])


def _seconds(flops: float | None, rate: float | None) -> float | None:
    # The linear control's rate is its seconds.
    return None if rate is None else rate if flops is None else flops / rate


def _rate(members: Sequence[PlannedRun], book: CostBook) -> tuple[float | None, int]:
    """Operations a second of a model over its records (seconds, for a control), and how many those were."""
    values = []
    for run in (run for run in members if run.state == "done"):
        record = _readable(run)
        if record is None:
            continue
        epochs = record.training.epochs
        flops = book.training_flops(run.config, epochs)
        seconds = whole_seconds(record)
        if seconds > 0:
            values.append(seconds if flops is None else flops / seconds)
        if len(values) == RECORDS_A_MODEL:
            break
    return (statistics.median(values), len(values)) if values else (None, 0)


def _readable(run: PlannedRun) -> AnyRecord | None:
    try:
        return run.record
    except RecurraError:
        return None


def whole_seconds(record: AnyRecord) -> float:
    """Seconds of a whole run where they are recorded and in one piece, else those of its training."""
    whole = record.wall_s is not None and not record.training.resumed
    return record.wall_s if whole and record.wall_s is not None else record.training.wall_s


def plain_cost(cost: RunCost) -> dict[str, Any]:
    """Plain JSON values."""
    return {"training_flops": cost.flops, "seconds": cost.seconds}
