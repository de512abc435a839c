"""A job on a Ray cluster, through Ray Data: actors hold the model, a part is a row of a data set.

What travels is the order to predict a file, not its rows: a worker reads the file and writes its predictions itself.
Ray Data hands parts to whoever is free. A part whose worker died is not tried again by Ray, which would wait for that
very worker to come back: the data set of the next round holds what the last one lost.
"""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from recurra.core.errors import RecurraError, RunError, StorageError
from recurra.core.progress import ProgressTask, Reporter
from recurra.deployment.classifier import Classifier
from recurra.deployment.export.manifest import needs_torch
from recurra.deployment.jobs.job import Job
from recurra.deployment.jobs.partitions import Partition, PartManifest, forget_unfinished
from recurra.deployment.jobs.run import JobOrder, Results, explain, predict_partition


class Worker:
    """Holds the model on a node of the cluster, and carries out one part at a time.

    Args:
        order: What everyone is told.
        threads: Threads of a computation.
    """

    def __init__(self, order: JobOrder, threads: int) -> None:
        self._order = order
        self._threads = threads
        self._classifier: Classifier | None = None

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """Carries out a part; says what became of it instead of failing, which would take the others down too."""
        partition = Partition.parse(json.loads(row["part"]))
        try:
            classifier = self._loaded()
        except RecurraError as error:
            return {"name": partition.name, "kind": "unable", "said": str(error)}
        try:
            manifest, made = predict_partition(partition, self._order.job_hash, self._order.job.text_column, classifier)
        except RecurraError as error:
            return {"name": partition.name, "kind": "failed", "said": explain(partition, error)}
        except Exception as error:  # noqa: BLE001 - a defect of ours is no worker that died; what it says may hold a text
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{partition.name}: {type(error).__name__} in {Path(where.filename).name}, line {where.lineno}"
            return {"name": partition.name, "kind": "failed", "said": said}
        return {"name": partition.name, "kind": "made" if made else "there", "said": manifest.model_dump_json()}

    def _loaded(self) -> Classifier:
        if self._classifier is None:
            self._check_folder()
            job = self._order.job
            if job.manifest().content_hash != self._order.job_hash:
                raise StorageError(f"'{job.model}' is another model on {platform.node()}; all nodes must have the same")
            self._classifier = _open(job, self._threads)
        return self._classifier

    def _check_folder(self) -> None:
        path = self._order.token_path
        try:
            seen = json.loads(path.read_text(encoding="utf-8")) == self._order.token
        except (OSError, ValueError):
            seen = False
        if not seen:
            raise StorageError(
                f"the node {platform.node()} does not see '{path.parent}'; model, input and --output "
                "must lie where all nodes see them, under one path"
            )


def _open(job: Job, threads: int) -> Classifier:
    if needs_torch(job.model):
        import torch

        from recurra.models.quiet import quieten_libraries

        quieten_libraries()
        torch.set_num_threads(threads)
    return Classifier.open(job.model, precision=job.precision, batch_size=job.batch_size, threads=threads)


class RayDataEngine:
    """Carries out a job on the cluster that Ray is connected to.

    Args:
        ray: The connected package.
        workers: Most workers at a time; 0 takes as many as the cluster has cores for.
        cpus: Cores of a worker.
        retries: How often a part is begun again after its worker died.
        reporter: Says what was lost.
    """

    def __init__(self, ray: ModuleType, *, workers: int, cpus: float, retries: int, reporter: Reporter) -> None:
        self._ray = ray
        self._workers = workers or max(1, int(ray.cluster_resources().get("CPU", 0) / cpus))
        self._cpus = cpus
        self._retries = retries
        self._reporter = reporter

    def carry_out(self, order: JobOrder, partitions: Sequence[Partition], results: Results, task: ProgressTask) -> None:
        """Carries out all parts, in rounds.

        Raises:
            StorageError: If a node sees neither model nor folder, or another model.
            RunError: If Ray itself fails.
        """
        order = replace(order, job=_absolute(order.job))
        left = {partition.name: partition for partition in partitions}
        lost: Counter[str] = Counter()
        idle_rounds = 0
        while left:
            waiting = len(left)
            self._round(order, left, results, task)
            # Those that were only waiting for a worker that died are begun for the first time in the next round.
            died = [name for name, partition in left.items() if forget_unfinished(partition)]
            idle_rounds = 0 if died or len(left) < waiting else idle_rounds + 1
            results.lost += len(died)
            lost.update(died)
            if died:
                self._reporter.say(f"{len(died)} lost with a worker that died: {', '.join(sorted(died)[:5])}")
            for name in list(left):
                if lost[name] > self._retries or idle_rounds > self._retries:
                    del left[name]
                    results.failures.append(f"{name}: {_gave_up(lost[name])}; see Ray's logs")

    def _round(self, order: JobOrder, left: dict[str, Partition], results: Results, task: ProgressTask) -> None:
        data = _import_data()
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        # What a dead worker was at is missing from the answer, and nothing else.
        context.max_errored_blocks = -1
        rows = [{"part": json.dumps(partition.plain())} for partition in left.values()]
        data_set = data.from_items(rows, override_num_blocks=len(rows)).map(
            Worker,
            fn_constructor_kwargs={"order": order, "threads": max(1, int(self._cpus))},
            # A part that waits for a worker that dies would be lost with the one that it is at.
            compute=data.ActorPoolStrategy(
                min_size=1, max_size=min(self._workers, len(rows)), max_tasks_in_flight_per_actor=1
            ),
            num_cpus=self._cpus,
            max_task_retries=0,
        )
        with _failures_explained(self._ray, data):
            for row in data_set.iter_rows():
                self._note(row, results)
                del left[row["name"]]
                task.advance(1, note=row["name"])

    def _note(self, row: dict[str, Any], results: Results) -> None:
        if row["kind"] == "unable":
            raise StorageError(row["said"])
        if row["kind"] == "failed":
            results.failures.append(row["said"])
        else:
            results.add(PartManifest.model_validate_json(row["said"]), made=row["kind"] == "made")


@contextlib.contextmanager
def _failures_explained(ray: ModuleType, data: Any) -> Iterator[None]:
    try:
        yield
    except (ray.exceptions.RayError, data.exceptions.SystemException) as error:
        raise RunError(
            f"the Ray cluster failed ({type(error).__name__}); what is done stays: start the same command "
            "again when the cluster works; see Ray's logs"
        ) from error


def _gave_up(lost: int) -> str:
    if not lost:
        return "no worker lived long enough to begin it"
    return f"lost {'once' if lost == 1 else f'{lost} times'} with the worker that was at it"


def _absolute(job: Job) -> Job:
    """Paths that mean the same in a worker, whose working folder is another."""
    return replace(job, model=job.model.resolve(), source=job.source.resolve(), output=Path(job.output).resolve())


def _import_data() -> Any:
    for name in ("ray.data", "ray"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import ray.data
    import ray.data.exceptions

    return ray.data
