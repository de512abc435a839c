"""``recurra predict`` from a folder into a folder, in this process or on a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from recurra.cli.output import print_json
from recurra.core.errors import RunError

if TYPE_CHECKING:
    from recurra.core.progress import Reporter
    from recurra.deployment.jobs.job import Job
    from recurra.deployment.jobs.run import Results


class EngineName(StrEnum):
    """Where the files of a folder are predicted."""

    LOCAL = "local"
    RAY = "ray"


@dataclass(frozen=True)
class Place:
    """A cluster, and what a worker gets of it.

    Attributes:
        address: Of the cluster's head, or ``auto``.
        workers: Most workers at a time; 0 takes all cores.
        cpus: Cores of a worker.
        retries: How often a file is begun again after its worker died.
    """

    address: str
    workers: int
    cpus: float
    retries: int


def predict_folder(job: Job, place: Place | None, *, as_json: bool, quiet: bool) -> None:
    """Carries out a job and says what came of it.

    Args:
        job: What is asked for.
        place: The cluster; none works in this process.
        as_json: Whether to print a document.
        quiet: Whether to say nothing else.

    Raises:
        RunError: If a file failed; the others are done.
    """
    from recurra.core.progress import Reporter

    reporter = Reporter(quiet=quiet)
    results = _here(job, reporter) if place is None else _on_a_cluster(job, place, reporter)
    for failure in results.failures[1:]:
        reporter.say(f"failed: {failure}")
    if as_json:
        print_json({"output": str(job.output), **results.plain()})
    else:
        plain = results.plain()
        there = plain["files"] - plain["made"]
        before = f" ({there:,} of them done before)" if there else ""
        failed = f"; {len(results.failures):,} files failed" if results.failures else ""
        reporter.say(f"{plain['rows']:,} rows of {plain['files']:,} files{before}{failed}: {job.output}")
    if results.failures:
        first, more = results.failures[0], len(results.failures) - 1
        others = f" (and {more:,} more files, see {job.output}/summary.json)" if more else ""
        raise RunError(f"failed: {first}{others}; start the same command again for what failed")


def _here(job: Job, reporter: Reporter) -> Results:
    from recurra.core.memory import tune_allocator
    from recurra.deployment.export.manifest import needs_torch
    from recurra.deployment.jobs.run import LocalEngine, run_job

    if needs_torch(job.model):
        from recurra.models.quiet import quieten_libraries

        quieten_libraries()
    tune_allocator()
    return run_job(job, LocalEngine(), reporter)


def _on_a_cluster(job: Job, place: Place, reporter: Reporter) -> Results:
    from recurra.deployment.jobs.ray_data import RayDataEngine
    from recurra.deployment.jobs.run import run_job
    from recurra.study.cluster import Cluster, Wording

    wording = Wording(unit="a worker", needs="--worker-cpus", switch="--engine ray", extra="batch")
    cluster = Cluster(place.address, cpus=place.cpus, wording=wording)
    # What is wrong with the job is told before a cluster is asked.
    job.manifest()
    cluster.check()
    with cluster.connected() as ray:
        engine = RayDataEngine(ray, workers=place.workers, cpus=place.cpus, retries=place.retries, reporter=reporter)
        return run_job(job, engine, reporter)
