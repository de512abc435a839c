"""A small trained run, made once for all tests here."""

from __future__ import annotations

import pytest

from interrupted import execute, in_a_process
from tiny_runs import TrainedRun, tiny_run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A run in FP32, its checkpoints kept."""
    root = tmp_path_factory.mktemp("trained")
    run = TrainedRun(tiny_run(root), root / "run")
    assert in_a_process(execute, run.config.plain(), run.folder, [], True) == 0
    return run
