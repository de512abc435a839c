"""Many files predicted on a Ray cluster of two nodes: the driver is killed, then a node; every row comes out once."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recurra import Classifier
from small_study import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_S)]
FILES, ROWS = 6, 20_000
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
    cluster: subprocess.Popen[str], onnx_exports: dict[str, Path], tmp_path: Path
) -> None:
    texts = write_inputs(tmp_path / "in")
    model, output = onnx_exports["fp32"], tmp_path / "out"
    assert isinstance(cluster.args, list)
    command = [sys.executable, "-m", "recurra", "predict", str(model), "--input", str(tmp_path / "in")]
    command += ["--output", str(output), "--engine", "ray", "--address", cluster.args[-1], "--json"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        wait_for_work(output, first, more_than=0)
        first.kill()
    deadline = time.monotonic() + 60
    while writers(output) and time.monotonic() < deadline:
        time.sleep(0.1)  # Ray ends the workers of a driver that is gone
    done = finished(output)
    assert 0 < len(done) < FILES

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as second:
        victim = wait_for_work(output, second, more_than=len(done))
        assert cluster.stdin is not None and cluster.stdout is not None
        cluster.stdin.write(f"{victim}\n")
        cluster.stdin.flush()
        assert cluster.stdout.readline() == "killed\n"
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
