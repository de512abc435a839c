"""Small trained runs, made once for all tests here, and a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from interrupted import execute, in_a_process
from reviews import train_tiny, write_reviews
from tiny_encoder import write_tiny_encoder
from tiny_runs import TrainedRun, tiny_run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A run in FP32, its checkpoints kept."""
    root = tmp_path_factory.mktemp("trained")
    run = TrainedRun(tiny_run(root), root / "run")
    assert in_a_process(execute, run.config.plain(), run.folder, [], True) == 0
    return run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with exits and one without; nobody writes into them."""
    keys = {"exits": ("model.exits=[1]", "max_epochs=3", "learning_rate=3e-3"), "plain": ()}
    return {name: train_tiny(tmp_path_factory.mktemp(name), *more) for name, more in keys.items()}


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled rows, and an encoder that knows their words."""
    folder = tmp_path_factory.mktemp("pretrained")
    rows = write_reviews(folder / "reviews.csv", rows=240)
    write_tiny_encoder(folder / "encoder", rows.read_text(encoding="utf-8").splitlines())
    return folder


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster in a process of its own."""

    address: str
    asked: IO[str]
    said: IO[str]

    def kill_node_of(self, pid: int) -> None:
        """Kills the node that a process belongs to."""
        self.asked.write(f"{pid}\n")
        self.asked.flush()
        assert self.said.readline() == "killed\n"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).parents[1] / "ray_cluster.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the cluster did not start"
        yield Cluster(address, process.stdin, process.stdout)
        process.stdin.close()
        process.wait(timeout=60)
