"""A study that is killed outright, with its runs under way, goes on where it stopped."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from recurra.core.record import read_record
from recurra.study.status import find_study, look_at_study
from small_study import PATIENCE_S, begun, wait_for_victim, write_small_study

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
    while look_at_study(*find_study(output, None)).counts.get("running"):
        assert time.monotonic() < deadline, "the runs outlive the study that started them"
        time.sleep(0.05)
    status = look_at_study(*find_study(output, None))
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
