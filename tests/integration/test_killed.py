"""Studies and predictions that are killed, and nodes of their cluster that die: nothing lost, nothing done twice."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recurra import Classifier
from recurra.core.record import read_record
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
    assert all((run / "record.json").read_bytes() == record and begun(run) == 1 for run, record in records.items())


def test_nodes_that_die_twice_under_a_run_cost_only_that_run(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the study names its files relative to the folder it is started in
    write_small_study(tmp_path)
    output = tmp_path / "out"
    command = [sys.executable, "-m", "recurra", "study", "run", "study.yaml", "--executor", "ray", "--no-latency"]
    command += ["--address", cluster.address, "--output", str(output), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as driver:
        finished, victim = wait_for_victim(output, driver)
        records = {run.folder: (run.folder / "record.json").read_bytes() for run in finished}
        assert victim.progress is not None
        cluster.kill_node_of(victim.progress.pid)
        again = wait_for_another_start(output, driver, victim)
        assert again.progress is not None
        cluster.kill_node_of(again.progress.pid)
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
    tables = json.loads(answer)["tables"]
    assert {model["label"]: len(model["seeds"]) for model in tables[0]["models"]} == {"linear": 1, "tiny": 2}
    assert not list(output.glob(".shared-*"))


# More than two for each node: another part is begun after some are done, for either driver.
FILES, ROWS = 9, 14_000
# Predictions are written a chunk of 4,096 rows at a time: a smaller file holds none yet.
FIRST_ROWS_BYTES = 4096


def write_inputs(folder: Path) -> dict[str, list[str]]:
    """JSONL and Parquet; no two rows are alike."""
    folder.mkdir()
    found = {}
    for number in range(FILES):
        texts = [f"film {number}-{row} was {('good', 'bad')[row % 2]}" for row in range(ROWS)]
        if number % 2:
            name = f"part-{number}.parquet"
            pq.write_table(pa.table({"text": texts}), folder / name)
        else:
            name = f"part-{number}.jsonl"
            lines = (json.dumps({"text": text}) for text in texts)
            (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        found[name] = texts
    return found


def finished(output: Path) -> dict[str, int]:
    """Files of predictions and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in output.glob("[!.]*.parquet")}


def writers(output: Path) -> dict[int, int]:
    """Processes that have an unfinished file of predictions open, with its size."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for link in (process / "fd").iterdir():
                target = link.readlink()
                if target.parent == output and target.name.endswith(".part"):
                    found[int(process.name)] = target.stat().st_size
    return found


def wait_for_work(output: Path, driver: subprocess.Popen[str], more_than: int) -> int:
    """Waits until more parts are done and another is just begun; returns the process that writes it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert driver.poll() is None, driver.communicate()
        begun = [pid for pid, size in writers(output).items() if size < FIRST_ROWS_BYTES]
        if len(finished(output)) > more_than and begun:
            return begun[0]
        time.sleep(0.02)
    raise TimeoutError("no part was ever seen at work")


def test_a_killed_driver_and_a_killed_node_cost_only_what_was_under_way(
    cluster: Any, onnx_exports: dict[str, Path], tmp_path: Path
) -> None:
    texts = write_inputs(tmp_path / "in")
    model, output = onnx_exports["fp32"], tmp_path / "out"
    command = [sys.executable, "-m", "recurra", "predict", str(model), "--input", str(tmp_path / "in")]
    command += ["--output", str(output), "--engine", "ray", "--address", cluster.address, "--json"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        wait_for_work(output, first, more_than=0)
        first.kill()
    deadline = time.monotonic() + 60
    while writers(output) and time.monotonic() < deadline:
        time.sleep(0.1)  # Ray ends the workers of a driver that is gone
    done = finished(output)
    assert 0 < len(done) < FILES

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as second:
        cluster.kill_node_of(wait_for_work(output, second, more_than=len(done)))
        answer, said = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, said
    summary = json.loads(answer)
    assert (summary["made"], summary["skipped"], summary["failures"]) == (FILES - len(done), len(done), [])
    assert summary["rows"] == summary["made"] * ROWS and "was lost because its worker died; it is started again" in said
    now = finished(output)
    assert {name: now[name] for name in done} == done

    classifier = Classifier.open(model, threads=1)
    for name, expected in texts.items():
        table = pq.read_table(output / f"{name}.parquet")
        assert table.column("text").to_pylist() == expected, name
        assert np.array_equal(table.column("label").to_pylist()[:200], classifier.predict(expected[:200]))
    assert set(now) == {f"{name}.parquet" for name in texts}
