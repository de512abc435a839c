"""Times all models of a study side by side: ``python -m recurra.study.timing OUTPUT MACHINE RUN ...``."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from recurra.core.environment import available_cores, environment_record
from recurra.core.files import write_json
from recurra.core.record import LatencyRecord, RunRecord, read_record
from recurra.study.machine import Machine

LATENCY_NAME = "latency.json"
# Enough for a stable median and 90th percentile; a whole test set is timed where it is not larger.
MOST_SAMPLES = 2_000


def main(arguments: list[str]) -> int:
    """Times the named runs over their test texts and writes ``latency.json``.

    One model stands for all seeds of its configuration: they differ in the weights' values only.
    """
    import torch

    from recurra.models.quiet import quieten_libraries

    output, machine = Path(arguments[0]), Machine.from_json(arguments[1])
    quieten_libraries()
    threads = machine.threads or available_cores()
    torch.set_num_threads(threads)
    records = {name: read_record(output / "runs" / name) for name in arguments[2:]}
    by_data: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records.values():
        by_data[record.data.fingerprint].append(record)
    timed: dict[str, dict[str, LatencyRecord]] = {}
    for members in by_data.values():
        timed |= _time_data(output, members, machine, threads)
    environment = environment_record(threads=threads, precision="mixed")
    values = {
        "environment": environment.model_dump(mode="json"),
        "runs": {
            name: {key: latency.model_dump(mode="json") for key, latency in timed[name].items()} for name in records
        },
    }
    write_json(output / LATENCY_NAME, values)
    return 0


def _shape(record: RunRecord) -> tuple[Any, ...]:
    return (record.model.preset, str(record.config.get("model_overrides")), record.environment.precision)


def _time_data(
    output: Path, members: list[RunRecord], machine: Machine, threads: int
) -> dict[str, dict[str, LatencyRecord]]:
    from recurra.data.configuration import DataConfig
    from recurra.data.corpora import load_dataset
    from recurra.deployment.classifier import Classifier
    from recurra.evaluation.latency import measure_side_by_side, synchroniser
    from recurra.models.inference import default_device
    from recurra.study.run import latency_batches

    dataset = load_dataset(DataConfig.parse(members[0].config["data"]), machine.data_root)
    texts = dataset.splits[dataset.reported_splits[-1]].texts
    step = max(1, len(texts) // MOST_SAMPLES)
    texts = texts[::step]
    representatives: dict[tuple[Any, ...], RunRecord] = {}
    for record in members:
        representatives.setdefault(_shape(record), record)
    device = str(default_device())
    calls: dict[str, Callable[[Any], Any]] = {}
    for record in representatives.values():
        classifier = Classifier.from_run(output / "runs" / record.run_id)
        calls[record.run_id] = partial(classifier.logits, clean=False)
    sizes = {1, *(int(record.config["protocol"]["evaluation_batch_size"]) for record in members)}
    measured: dict[str, dict[str, LatencyRecord]] = defaultdict(dict)
    for size in sorted(sizes):
        result = measure_side_by_side(
            calls,
            latency_batches(texts, size),
            synchronise=synchroniser(device),
            threads=threads,
            precision={record.run_id: record.environment.precision for record in representatives.values()},
            device=device,
            scope="text",
        )
        for name, latency in result.items():
            measured[name][f"batch_{size}"] = latency
    return {record.run_id: measured[representatives[_shape(record)].run_id] for record in members}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
