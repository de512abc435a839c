"""A study on a real Ray cluster of two nodes, one of which is killed in the middle: nothing lost, nothing run twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recurra.core.record import read_record
from small_study import PATIENCE_S, begun, wait_for_victim, write_small_study

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_S)]


def test_a_node_that_dies_costs_only_the_run_that_it_was_at(
    cluster: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the study names its files relative to the folder it is started in
    write_small_study(tmp_path)
    output = tmp_path / "out"
    assert isinstance(cluster.args, list)
    options = ["--executor", "ray", "--address", cluster.args[-1], "--output", str(output), "--no-latency", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "recurra", "study", "run", "study.yaml", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        finished, victim = wait_for_victim(output, driver)
        records = {run.folder: (run.folder / "record.json").read_bytes() for run in finished}
        assert cluster.stdin is not None and cluster.stdout is not None and victim.progress is not None
        cluster.stdin.write(f"{victim.progress.pid}\n")
        cluster.stdin.flush()
        assert cluster.stdout.readline() == "killed\n"
        answer, said = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 0, said
    assert said.count("its node died") == 1, said
    assert f"{victim.config.run_id}: its node died" in said

    runs = sorted((output / "runs").iterdir())
    assert len(runs) == 3
    for run in runs:
        assert read_record(run).run_id == run.name
        assert begun(run) == (2 if run.name == victim.config.run_id else 1), run.name
        assert not (run / "progress.json").exists() and not (run / "error.json").exists()
    assert all((folder / "record.json").read_bytes() == record for folder, record in records.items())
    assert answer.startswith("{"), answer
    tables = json.loads(answer)["tables"]
    assert {model["label"]: len(model["seeds"]) for model in tables[0]["models"]} == {"linear": 1, "tiny": 2}
    assert not list(output.glob(".shared-*"))
