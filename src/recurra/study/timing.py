"""Times all models and exports of a study side by side, in a worker, and measures the memory of exports."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurra.core.environment import available_cores, environment_record, waited_s
from recurra.core.errors import RunError
from recurra.core.files import write_json
from recurra.core.packed import LATENCY_NAME, RUNS_NAME
from recurra.core.record import AnyRecord, LatencyRecord, read_any_record
from recurra.deployment.export_record import EXPORTS_NAME, WITH_EXITS
from recurra.study.footprint import measure_footprint
from recurra.tasks.base import Task, task
from recurra.tasks.study_data import StudyData


@dataclass(frozen=True)
class Timed:
    """A run, or an export of a run, that is timed."""

    name: str
    folder: Path
    record: AnyRecord
    shape: tuple[Any, ...]


def time_all(
    data: StudyData, study: str, names: dict[str, list[str]], kept: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Times the named runs and exports over their test texts and writes ``latency.json``, with times to be ``kept``.

    One model stands for all seeds of its configuration: they differ only in the values of their weights.
    """
    kept = kept or {}
    output = Path(study)
    threads = data.machine.threads or available_cores()
    timed_items = list(_named(output, names))
    if any(_takes_torch(item) for item in timed_items):
        import torch

        from recurra.models.quiet import quieten_libraries

        quieten_libraries()
        torch.set_num_threads(threads)
    by_data: dict[tuple[str, str], list[Timed]] = defaultdict(list)
    for item in timed_items:
        by_data[item.record.task, task(item.record.task).timing_key(item.record)].append(item)
    timed: dict[str, dict[str, LatencyRecord]] = {}
    memory: dict[str, float] = {}
    waited, started = waited_s(), time.perf_counter()
    for (name, _), members in by_data.items():
        timed_task = task(name)
        inputs = timed_task.timing_inputs(members[0].record, members[0].folder, data)
        timed |= _time_data(timed_task, members, inputs, threads)
        memory |= _memory_of(members, inputs, threads)
    environment = environment_record(threads=threads, precision="mixed")
    values: dict[str, Any] = {"environment": environment.model_dump(mode="json")}
    if waited is not None and (now := waited_s()) is not None:
        values["waited"] = max(0.0, now - waited) / (time.perf_counter() - started) / threads
    if kept.get("waited") is not None:
        values["waited"] = max(kept["waited"], values.get("waited", 0.0))
    exports = [f"{name}{suffix}" for name in names["exports"] for suffix in ("", WITH_EXITS)]
    for kind, wanted in (("runs", names["runs"]), ("exports", exports)):
        values[kind] = {**kept.get(kind, {})} | {
            name: {key: latency.model_dump(mode="json") for key, latency in timed[name].items()}
            for name in wanted
            if name in timed
        }
    values["memory_mib"] = {**kept.get("memory_mib", {}), **memory}
    if kept.get("runs"):
        values["earlier"] = list(kept["runs"])
    write_json(output / LATENCY_NAME, values)


def _named(output: Path, names: dict[str, list[str]]) -> Iterator[Timed]:
    records: dict[str, AnyRecord] = {}
    for name in names["runs"]:
        record = records[name] = read_any_record(output / RUNS_NAME / name)
        yield Timed(name, output / RUNS_NAME / name, record, _shape(record))
    for name in names["exports"]:
        run_id, _, export = name.partition("/")
        yield Timed(name, output / EXPORTS_NAME / name, records[run_id], (*_shape(records[run_id]), export))


# Keys of the data that say how much of a text a model reads, and in which pieces.
_READING = ("max_length", "windows", "tokenizer", "trained_vocab_size")


def _shape(record: AnyRecord) -> tuple[Any, ...]:
    reading = (record.config["data"].get(key) for key in _READING)
    return record.model.preset, str(record.config.get("model_overrides")), record.environment.precision, *reading


def _representatives(members: list[Timed]) -> dict[tuple[Any, ...], Timed]:
    first: dict[tuple[Any, ...], Timed] = {}
    for item in members:
        first.setdefault(item.shape, item)
    return first


def _memory_of(members: list[Timed], texts: Sequence[str], threads: int) -> dict[str, float]:
    """Peak memory of each export, one after the other, if it can be measured; on representatives as in timing."""
    exports = [item for item in members if "/" in item.name]
    peaks: dict[tuple[Any, ...], float] = {}
    for shape, item in _representatives(exports).items():
        with contextlib.suppress(RunError):
            peaks[shape] = measure_footprint(item.folder, texts, threads)
    return {item.name: peaks[item.shape] for item in exports if item.shape in peaks}


def _takes_torch(item: Timed) -> bool:
    return item.record.model.kind != "linear" or item.record.model.encoder is not None


def _time_data(
    task: Task, members: list[Timed], inputs: Sequence[Any], threads: int
) -> dict[str, dict[str, LatencyRecord]]:
    representatives = _representatives(members)
    competitors = [
        competitor
        for item in representatives.values()
        for competitor in task.competitors(item.name, item.folder, item.record, threads=threads)
    ]
    sizes = {1, *(int(item.record.config["protocol"]["evaluation_batch_size"]) for item in members)}
    on_device = any(_takes_torch(item) for item in members)
    measured = task.time_models(competitors, inputs, sizes, threads, on_device=on_device)
    return {
        f"{item.name}{suffix}": measured[f"{representatives[item.shape].name}{suffix}"]
        for item in members
        for suffix in ("", WITH_EXITS)
        if f"{representatives[item.shape].name}{suffix}" in measured
    }
