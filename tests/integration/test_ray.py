"""A study on a real Ray cluster of two nodes, one of which is killed in the middle: nothing lost, nothing run twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from recurra.core.record import read_record
from recurra.study.status import StudyStatus, find_study, look_at_study
from reviews import write_reviews, write_tiny_model

pytest.importorskip("ray")
# Far beyond what it takes: a busy machine is no failure.
PATIENCE_S = 600
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_S)]

STUDY = """
name: cluster
data: [{name: reviews.csv, tokenizer: trained, trained_vocab_size: 200, max_length: 24}]
models: [linear, tiny.yaml]
protocols: [paper]
protocol_overrides: [max_epochs=6, early_stopping_patience=0, batch_size=16, learning_rate=1e-2]
seeds: [0, 1]
"""


@pytest.fixture
def cluster() -> Iterator[subprocess.Popen[str]]:
    """The process that holds the cluster; its first line was the address, kept as ``args[-1]``."""
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(Path(__file__).parents[1] / "ray_cluster.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the cluster did not start"
        process.args = [*command, address]
        yield process
        process.stdin.close()
        process.wait(timeout=60)


def wait_for(output: Path, driver: subprocess.Popen[str], wanted: dict[str, int]) -> StudyStatus:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if (output / "study.yaml").exists():
            status = look_at_study(*find_study(output, None))
            if all(status.counts.get(state, 0) >= number for state, number in wanted.items()):
                return status
        assert driver.poll() is None, driver.stderr.read() if driver.stderr else ""
        time.sleep(0.05)
    raise TimeoutError(f"never {wanted}")


def test_a_node_that_dies_costs_only_the_run_that_it_was_at(
    cluster: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the study names its files relative to the folder it is started in
    write_reviews(tmp_path / "reviews.csv")
    write_tiny_model(tmp_path / "tiny.yaml")
    (tmp_path / "study.yaml").write_text(STUDY, encoding="utf-8")
    output = tmp_path / "out"
    assert isinstance(cluster.args, list)
    options = ["--executor", "ray", "--address", cluster.args[-1], "--output", str(output), "--no-latency", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "recurra", "study", "run", "study.yaml", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        status = wait_for(output, driver, {"done": 1, "running": 2})
        finished = {run.config.run_id for run in status.runs if run.state == "done"}
        records = {name: (output / "runs" / name / "record.json").read_bytes() for name in finished}
        assert cluster.stdin is not None and cluster.stdout is not None
        cluster.stdin.write("kill\n")
        cluster.stdin.flush()
        assert cluster.stdout.readline() == "killed\n"
        answer, said = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 0, said
    assert said.count("its node died") == 1, said

    runs = sorted((output / "runs").iterdir())
    assert len(runs) == 3
    begun = Counter({run.name: (run / "log.txt").read_text().count(f"{run.name}: loading data") for run in runs})
    tried = Counter({run.name: said.count(f"{run.name}: its node died") for run in runs})
    for run in runs:
        assert read_record(run).run_id == run.name
        # The one that was lost may have died before its first line.
        assert begun[run.name] in ({1, 2} if tried[run.name] else {1}), run.name
        assert not (run / "progress.json").exists() and not (run / "error.json").exists()
    assert all((output / "runs" / name / "record.json").read_bytes() == text for name, text in records.items())
    assert answer.startswith("{"), answer
    tables = json.loads(answer)["tables"]
    assert {model["label"]: len(model["seeds"]) for model in tables[0]["models"]} == {"linear": 1, "tiny": 2}
    assert not list(output.glob(".shared-*"))
