"""Carrying out a job, here or on a cluster: part after part, each written whole and then noted as done."""

from __future__ import annotations

import json
import platform
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from recurra.core.errors import DataError, RecurraError
from recurra.core.files import write_json, write_text
from recurra.core.progress import ProgressTask, Reporter
from recurra.data.tables import stream_rows
from recurra.deployment.classifier import Classifier
from recurra.deployment.jobs.job import TOKEN_PREFIX, Job, owned_folder
from recurra.deployment.jobs.partitions import Partition, PartManifest, find_partitions, finished, hash_of, total_of
from recurra.deployment.prediction.files import open_writer
from recurra.deployment.prediction.stream import write_stream


def predict_partition(
    partition: Partition, job: str, text_column: str, classifier: Classifier
) -> tuple[PartManifest, bool]:
    """Predicts one file, unless that is done already.

    The predictions take their place when they are whole, the manifest after them: killed at any moment, a part is
    done, or it is made again.

    Args:
        partition: The part.
        job: Hash of what is asked for.
        text_column: Column with the text.
        classifier: What predicts.

    Returns:
        The manifest, and whether there was work to do.

    Raises:
        DataError: If the file cannot be read, or was changed meanwhile.
        StorageError: If the predictions cannot be written.
    """
    done = finished(partition, job)
    if done is not None:
        return done, False
    started = time.monotonic()
    partition.manifest.unlink(missing_ok=True)
    before, digest = _stamp(partition.source), hash_of(partition.source)
    with open_writer(partition.output, classifier.decision) as writer:
        chunks = stream_rows(partition.source, text_column, ())
        counts = write_stream(classifier, chunks, writer)
        if _stamp(partition.source) != before:
            raise DataError(f"'{partition.source}' was changed while it was read; start again when nobody writes to it")
    made = PartManifest(
        name=partition.name,
        source_bytes=before[0],
        source_sha256=digest,
        job=job,
        output=partition.output.name,
        output_bytes=partition.output.stat().st_size,
        rows=counts.rows,
        empty=counts.empty,
        labels=dict(sorted(counts.labels.items())),
        node=platform.node(),
        wall_s=round(time.monotonic() - started, 3),
    )
    return made.write(partition.manifest), True


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}; every worker must see it under this path") from error
    return status.st_size, status.st_mtime_ns


def explain(partition: Partition, error: RecurraError) -> str:
    """What became of a part that failed, in one line."""
    return f"{partition.name}: {' '.join(str(error).split())}"


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
                manifest, made = predict_partition(partition, order.job_hash, job.text_column, classifier)
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
