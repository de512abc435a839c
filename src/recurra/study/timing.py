"""Times all models and exports of a study side by side, and measures what exports take of memory.

``python -m recurra.study.timing OUTPUT MACHINE``.
"""

from __future__ import annotations

import copy
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurra.core.environment import available_cores, environment_record
from recurra.core.files import write_json
from recurra.core.record import LatencyRecord, RunRecord, read_record
from recurra.study.export_record import EXPORTS_NAME, WITH_EXITS
from recurra.study.machine import Machine
from recurra.study.plan import RUNS_NAME

if TYPE_CHECKING:
    from recurra.deployment.classifier import Classifier

LATENCY_NAME = "latency.json"
# Enough for a stable median and 90th percentile; a whole test set is timed where it is not larger.
MOST_SAMPLES = 2_000


@dataclass(frozen=True)
class Timed:
    """What is timed: a run, or an export of one.

    Attributes:
        name: The run's identifier, or ``RUN/EXPORT``.
        folder: Where it lies.
        record: The run's.
        shape: Equal for what differs in the weights' values only: one stands for all.
    """

    name: str
    folder: Path
    record: RunRecord
    shape: tuple[Any, ...]


def main(arguments: list[str], names: dict[str, list[str]]) -> int:
    """Times the named runs and exports over their test texts and writes ``latency.json``.

    One model stands for all seeds of its configuration: they differ in the weights' values only.

    Args:
        arguments: The study's folder, and the machine as JSON.
        names: ``runs`` by identifier, and ``exports`` as ``RUN/EXPORT``.
    """
    import torch

    from recurra.models.quiet import quieten_libraries

    output, machine = Path(arguments[0]), Machine.from_json(arguments[1])
    quieten_libraries()
    threads = machine.threads or available_cores()
    torch.set_num_threads(threads)
    by_data: dict[str, list[Timed]] = defaultdict(list)
    for item in _named(output, names):
        by_data[item.record.data.fingerprint].append(item)
    timed: dict[str, dict[str, LatencyRecord]] = {}
    memory: dict[str, float] = {}
    for members in by_data.values():
        texts = _texts(members[0], machine)
        timed |= _time_data(members, texts, threads)
        memory |= _memory_of(members, texts, threads)
    environment = environment_record(threads=threads, precision="mixed")
    values = {"environment": environment.model_dump(mode="json")}
    exports = [f"{name}{suffix}" for name in names["exports"] for suffix in ("", WITH_EXITS)]
    for kind, wanted in (("runs", names["runs"]), ("exports", exports)):
        values[kind] = {
            name: {key: latency.model_dump(mode="json") for key, latency in timed[name].items()}
            for name in wanted
            if name in timed
        }
    values["memory_mib"] = memory
    write_json(output / LATENCY_NAME, values)
    return 0


def _named(output: Path, names: dict[str, list[str]]) -> Iterator[Timed]:
    records: dict[str, RunRecord] = {}
    for name in names["runs"]:
        record = records[name] = read_record(output / RUNS_NAME / name)
        yield Timed(name, output / RUNS_NAME / name, record, _shape(record))
    for name in names["exports"]:
        run_id, _, export = name.partition("/")
        yield Timed(name, output / EXPORTS_NAME / name, records[run_id], (*_shape(records[run_id]), export))


def _shape(record: RunRecord) -> tuple[Any, ...]:
    return (record.model.preset, str(record.config.get("model_overrides")), record.environment.precision)


def _texts(item: Timed, machine: Machine) -> list[str]:
    """Rows of the last reported split of a run's data."""
    from recurra.data.configuration import DataConfig
    from recurra.data.corpora import load_dataset

    dataset = load_dataset(DataConfig.parse(item.record.config["data"]), machine.data_root)
    texts = list(dataset.splits[dataset.reported_splits[-1]].texts)
    return texts[:: max(1, len(texts) // MOST_SAMPLES)]


def _representatives(members: list[Timed]) -> dict[tuple[Any, ...], Timed]:
    found: dict[tuple[Any, ...], Timed] = {}
    for item in members:
        found.setdefault(item.shape, item)
    return found


def _memory_of(members: list[Timed], texts: list[str], threads: int) -> dict[str, float]:
    """Peak memory of each export, one after the other; what stands for it is as in timing."""
    from recurra.study.footprint import measure_footprint

    exports = [item for item in members if "/" in item.name]
    found = {shape: measure_footprint(item.folder, texts, threads) for shape, item in _representatives(exports).items()}
    return {item.name: found[item.shape] for item in exports}


def _time_data(members: list[Timed], texts: list[str], threads: int) -> dict[str, dict[str, LatencyRecord]]:
    from recurra.deployment.classifier import Classifier
    from recurra.evaluation.latency import measure_side_by_side, synchroniser
    from recurra.models.inference import default_device
    from recurra.study.run import latency_batches

    representatives = _representatives(members)
    device = str(default_device())
    calls: dict[str, Callable[[Any], Any]] = {}
    precision: dict[str, str] = {}
    for item in representatives.values():
        classifier = Classifier.open(item.folder, threads=threads)
        assert classifier.computation is not None
        of_run = item.record.environment.precision
        computed = classifier.computation.compute_precision if "/" in item.name else of_run
        for name, competitor in _competitors(item.name, classifier):
            calls[name] = partial(competitor.logits, clean=False)
            precision[name] = computed
    sizes = {1, *(int(item.record.config["protocol"]["evaluation_batch_size"]) for item in members)}
    measured: dict[str, dict[str, LatencyRecord]] = defaultdict(dict)
    for size in sorted(sizes):
        result = measure_side_by_side(
            calls,
            latency_batches(texts, size),
            synchronise=synchroniser(device),
            threads=threads,
            precision=precision,
            device=device,
            scope="text",
        )
        for name, latency in result.items():
            measured[name][f"batch_{size}"] = latency
    return {
        f"{item.name}{suffix}": measured[f"{representatives[item.shape].name}{suffix}"]
        for item in members
        for suffix in ("", WITH_EXITS)
        if f"{representatives[item.shape].name}{suffix}" in measured
    }


def _competitors(name: str, classifier: Classifier) -> Iterator[tuple[str, Classifier]]:
    """A model, and if it carries an exit rule, the same one with texts leaving early."""
    yield name, classifier
    if classifier.calibrated_rule is not None:
        early = copy.copy(classifier)
        early.stop_early()
        yield f"{name}{WITH_EXITS}", early


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], json.loads(sys.stdin.read())))
