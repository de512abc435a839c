"""One run, in the order in which it must happen."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import recurra.study.run as run_module
from recurra.core.progress import Reporter
from recurra.tasks.machine import Machine
from recurra.tasks.study_data import StudyData
from tiny_runs import tiny_run


@pytest.mark.parametrize("keep", [False, True])
def test_a_kill_leaves_no_checkpoints_beside_a_record(
    keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who finds a record does nothing any more: what is to go must be gone when it is written."""
    folder, seen = tmp_path / "run", []

    def execute(*_: object) -> Any:
        (folder / "checkpoints" / "checkpoint-1").mkdir(parents=True)
        return "record"

    monkeypatch.setattr(run_module, "task_of_data", lambda _: SimpleNamespace(execute=execute))
    monkeypatch.setattr(run_module, "write_record", lambda *_: seen.append((folder / "checkpoints").exists()))
    machine = Machine(threads=1, latency=False, keep_checkpoints=keep)
    run_module.execute_run(tiny_run(tmp_path), folder, StudyData(machine), Reporter(quiet=True))
    assert seen == [keep]
