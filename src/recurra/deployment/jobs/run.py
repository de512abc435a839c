"""Carrying out a job: part after part in this process, or on a cluster."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from recurra.core.errors import RecurraError
from recurra.core.files import write_json, write_text
from recurra.core.progress import ProgressTask, Reporter
from recurra.deployment.classifier import Classifier
from recurra.deployment.jobs.job import TOKEN_PREFIX, Job, owned_folder
from recurra.deployment.jobs.partitions import Partition, PartManifest, find_partitions, total_of
from recurra.deployment.jobs.work import carry_out, explain

SUMMARY_NAME = "summary.json"


@dataclass(frozen=True)
class JobOrder:
    """What everyone who works at a job is told.

    Attributes:
        job: What is asked for.
        job_hash: Hash of it, the model among it.
        token_path: A file in the output folder; who reads ``token`` there sees the folder.
        token: What the file holds.
    """

    job: Job
    job_hash: str
    token_path: Path
    token: str


@dataclass
class Results:
    """What became of the parts.

    Attributes:
        parts: Those that are done.
        made: How many of them there was work to do for.
        failures: A line for each of the others.
        lost: How often a part was lost with its worker and begun again.
    """

    parts: list[PartManifest] = field(default_factory=list)
    made: int = 0
    failures: list[str] = field(default_factory=list)
    lost: int = 0

    def add(self, manifest: PartManifest, *, made: bool) -> None:
        """Adds a part that is done."""
        self.parts.append(manifest)
        self.made += made

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {**total_of(self.parts), "made": self.made, "lost": self.lost, "failures": self.failures}


class JobEngine(Protocol):
    """What carries out the parts of a job."""

    def carry_out(self, order: JobOrder, partitions: Sequence[Partition], results: Results, task: ProgressTask) -> None:
        """Carries out all parts and adds what became of each; one that fails does not stop the others."""
        ...


class LocalEngine:
    """Carries out one part after the other in this process.

    Args:
        classifier: The model, if it is loaded already.
    """

    def __init__(self, classifier: Classifier | None = None) -> None:
        self._classifier = classifier

    def carry_out(self, order: JobOrder, partitions: Sequence[Partition], results: Results, task: ProgressTask) -> None:
        """Carries out all parts."""
        job = order.job
        classifier = self._classifier or Classifier.open(job.model, precision=job.precision, batch_size=job.batch_size)
        for partition in partitions:
            try:
                manifest, made = carry_out(partition, order.job_hash, job.text_column, classifier)
                results.add(manifest, made=made)
            except RecurraError as error:
                results.failures.append(explain(partition, error))
            task.advance(1, note=partition.name)


def run_job(job: Job, engine: JobEngine, reporter: Reporter) -> Results:
    """Predicts the files of a folder into a folder; what an earlier start has finished is not done again.

    Args:
        job: What is asked for.
        engine: Who carries it out.
        reporter: For progress.

    Returns:
        What became of every file; ``summary.json`` of the output folder says the same.

    Raises:
        ConfigurationError: If the output folder holds predictions that were asked for differently.
        DataError: If there is nothing to predict.
        StorageError: If the output folder cannot be had.
    """
    started = time.monotonic()
    wanted = job.manifest()
    partitions = find_partitions(job.source, job.output, f".{job.part_format}")
    results = Results()
    with owned_folder(job, wanted), _token(job.output) as (path, token):
        order = JobOrder(job, wanted.content_hash, path, token)
        with reporter.task("files", len(partitions)) as task:
            engine.carry_out(order, partitions, results, task)
        results.parts.sort(key=lambda part: part.name)
        results.failures.sort()
        wall_s = round(time.monotonic() - started, 3)
        write_json(job.output / SUMMARY_NAME, {**results.plain(), "model": wanted.model, "wall_s": wall_s})
    return results


@contextmanager
def _token(folder: Path) -> Iterator[tuple[Path, str]]:
    path, token = folder.resolve() / f"{TOKEN_PREFIX}{secrets.token_hex(8)}", secrets.token_hex(16)
    write_text(path, json.dumps(token))
    try:
        yield path, token
    finally:
        path.unlink(missing_ok=True)
