"""A study that is killed, with its runs under way, or nodes of whose cluster are: nothing lost, nothing done twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recurra.core.record import read_record
from recurra.study.plan import PlannedRun
from recurra.study.status import find_study, study_status
from small_study import PATIENCE_S, begun, wait_for_another_start, wait_for_victim, write_small_study

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_S)]


def test_a_killed_study_goes_on_and_does_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_small_study(tmp_path)
    output = tmp_path / "out"
    command = [sys.executable, "-m", "recurra", "study", "run", "study.yaml", "--output", "out", "--no-latency"]
    command += ["--workers", "1", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True) as study:
        finished, victim = wait_for_victim(output, study)
        records = {run.folder: (run.folder / "record.json").read_bytes() for run in finished}
        study.kill()
    deadline = time.monotonic() + 60
    while study_status(*find_study(output, None)).counts.get("running"):
        assert time.monotonic() < deadline, "the runs outlive the study that started them"
        time.sleep(0.05)
    status = study_status(*find_study(output, None))
    states = {run.config.run_id: run.state for run in status.runs}
    assert states[victim.config.run_id] == "interrupted"
    assert "failed" not in states.values()

    again = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert again.returncode == 0, again.stderr
    runs = sorted((output / "runs").iterdir())
    assert len(runs) == 3 and all(read_record(run).run_id == run.name for run in runs)
    assert begun(victim.folder) == 2
    assert all(
        (folder / "record.json").read_bytes() == record and begun(folder) == 1 for folder, record in records.items()
    )


def kill_its_node(cluster: subprocess.Popen[str], run: PlannedRun) -> None:
    """Kills the node that a run is on."""
    assert cluster.stdin is not None and cluster.stdout is not None and run.progress is not None
    cluster.stdin.write(f"{run.progress.pid}\n")
    cluster.stdin.flush()
    assert cluster.stdout.readline() == "killed\n"


def test_nodes_that_die_twice_under_a_run_cost_only_that_run(
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
        kill_its_node(cluster, victim)
        kill_its_node(cluster, wait_for_another_start(output, driver, victim))
        answer, said = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 0, said
    assert said.count("its node died") == said.count(f"{victim.config.run_id}: its node died") == 2, said

    runs = sorted((output / "runs").iterdir())
    assert len(runs) == 3
    for run in runs:
        assert read_record(run).run_id == run.name
        assert begun(run) == (3 if run.name == victim.config.run_id else 1), run.name
        assert not (run / "progress.json").exists() and not (run / "error.json").exists()
    assert all((folder / "record.json").read_bytes() == record for folder, record in records.items())
    assert answer.startswith("{"), answer
    tables = json.loads(answer)["tables"]
    assert {model["label"]: len(model["seeds"]) for model in tables[0]["models"]} == {"linear": 1, "tiny": 2}
    assert not list(output.glob(".shared-*"))
