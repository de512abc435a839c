"""The rounds of a job on a cluster, without one; tests/integration has the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recurra.core.errors import RunError, StorageError
from recurra.core.progress import Reporter
from recurra.deployment.jobs import ray_data as module
from recurra.deployment.jobs.job import Job
from recurra.deployment.jobs.partitions import Partition
from recurra.deployment.jobs.ray_data import RayDataEngine, Worker
from recurra.deployment.jobs.run import JobOrder, Results, run_job
from reviews import train_linear


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_linear(tmp_path_factory.mktemp("ray"))


@pytest.fixture
def job(run: Path, tmp_path: Path) -> Job:
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / f"{name}.txt").write_text(f"{name} was great\n", encoding="utf-8")
    return Job(run, tmp_path / "in", tmp_path / "out")


class LostError(Exception):
    """Ray's own failure."""


class Cluster:
    """Stands in for Ray Data: one worker after the other, some of which die.

    Args:
        deaths: For each round, the files whose worker dies: at work, or before it begins with it.
    """

    def __init__(self, *deaths: dict[str, str]) -> None:
        self.deaths = list(deaths)
        self.rounds: list[list[str]] = []
        self.exceptions = SimpleNamespace(RayError=LostError, SystemException=LostError)
        self.DataContext = SimpleNamespace(get_current=SimpleNamespace)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2}

    def ActorPoolStrategy(self, **options: int) -> dict[str, int]:  # noqa: N802 - Ray's name
        assert options["max_tasks_in_flight_per_actor"] == 1
        return options

    def from_items(self, rows: list[dict[str, str]], override_num_blocks: int) -> Cluster:
        assert override_num_blocks == len(rows)
        self._rows = rows
        return self

    def map(self, worker: type[Worker], *, fn_constructor_kwargs: dict[str, Any], **_: Any) -> Cluster:
        self._worker = worker(**fn_constructor_kwargs)
        return self

    def iter_rows(self) -> Iterator[dict[str, str]]:
        deaths = self.deaths.pop(0) if self.deaths else {}
        self.rounds.append([])
        for row in self._rows:
            partition = Partition.parse(json.loads(row["part"]))
            self.rounds[-1].append(partition.name)
            if deaths.get(partition.name) == "cluster":
                raise LostError
            if deaths.get(partition.name) == "at work":
                partition.output.with_name(f".{partition.output.name}.abcdefgh.part").write_bytes(b"half")
            if partition.name not in deaths:
                yield self._worker(row)


def carry_out(job: Job, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, retries: int = 1) -> Results:
    monkeypatch.setattr(module, "_import_data", lambda: cluster)
    reporter = Reporter(quiet=True)
    ray: Any = cluster
    return run_job(job, RayDataEngine(ray, workers=0, cpus=1, retries=retries, reporter=reporter), reporter)


def test_what_was_lost_is_begun_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster({"b.txt": "at work", "c.txt": "waiting"})
    results = carry_out(job, cluster, monkeypatch)
    assert cluster.rounds == [["a.txt", "b.txt", "c.txt"], ["b.txt", "c.txt"]]
    assert (results.plain()["rows"], results.lost, results.failures) == (3, 1, [])
    assert not list(job.output.glob(".*"))


def test_a_file_that_kills_its_worker_each_time_is_given_up(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(*[{"b.txt": "at work"}] * 9)
    results = carry_out(job, cluster, monkeypatch, retries=2)
    assert [len(names) for names in cluster.rounds] == [3, 1, 1]
    assert results.failures == ["b.txt: lost 3 times with the worker that was at it; see Ray's logs"]
    assert results.plain()["files"] == 2 and not list(job.output.glob(".*"))


def test_waiting_counts_for_nothing_while_others_get_on(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    late = [{"b.txt": "waiting", "c.txt": "waiting"}, {"c.txt": "waiting"}]
    results = carry_out(job, Cluster(*late), monkeypatch, retries=0)
    assert (results.plain()["rows"], results.lost, results.failures) == (3, 0, [])


def test_a_cluster_on_which_nothing_begins_is_given_up(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = {f"{name}.txt": "waiting" for name in "abc"}
    cluster = Cluster(*[nobody] * 9)
    results = carry_out(job, cluster, monkeypatch, retries=1)
    assert len(cluster.rounds) == 2 and not results.parts
    assert results.failures[0] == "a.txt: no worker lived long enough to begin it; see Ray's logs"


def test_when_ray_itself_fails_what_is_done_stays(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RunError, match=r"the Ray cluster failed \(LostError\); what is done stays: start the same command"
    ):
        carry_out(job, Cluster({"b.txt": "cluster"}), monkeypatch)
    again = carry_out(job, Cluster(), monkeypatch)
    assert (again.made, again.plain()["rows"]) == (2, 3)


def order_of(job: Job, tmp_path: Path, **changes: Any) -> JobOrder:
    token = tmp_path / "token"
    token.write_text('"secret"', encoding="utf-8")
    return replace(JobOrder(job, job.manifest().content_hash, token, "secret"), **changes)


def row(job: Job) -> dict[str, str]:
    partition = Partition(job.source / "a.txt", "a.txt", job.output / "a.parquet")
    return {"part": json.dumps(partition.plain())}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token": "other"}, "does not see"),
        ({"token_path": Path("/nowhere/.shared")}, "does not see '/nowhere'; model, input and --output must lie where"),
        ({"job_hash": "0" * 64}, "is another model on"),
    ],
)
def test_a_node_that_sees_something_else_does_nothing(
    job: Job, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    found = Worker(order_of(job, tmp_path, **changes), 1)(row(job))
    assert found["kind"] == "unable" and said in found["said"]
    with pytest.raises(StorageError, match=r"does not see|another model"):
        RayDataEngine._note(SimpleNamespace(), found, Results())  # type: ignore[arg-type]
    assert not job.output.exists()


def test_a_defect_of_ours_is_told_without_the_text(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("my secret text")

    monkeypatch.setattr(module, "predict_partition", fail)
    found = Worker(order_of(job, tmp_path), 1)(row(job))
    assert found["kind"] == "failed" and found["said"].startswith("a.txt: ValueError in test_ray_data.py, line ")
    assert "secret" not in found["said"]
