"""A study of a linear and of two tiny runs, waiting for the moment to kill something, and workers without processes."""

from __future__ import annotations

import importlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recurra.core.errors import RecurraError
from recurra.study.plan import PlannedRun
from recurra.study.status import find_study, study_status
from recurra.study.workers import Ended, Workers
from recurra.tasks.study_data import Machine, StudyData
from reviews import write_reviews, write_tiny_model

# Far beyond what it takes: a busy machine is no failure.
PATIENCE_S = 600

# Many short epochs: long enough to be met in the middle.
STUDY = """
name: small
data: [{name: reviews.csv, tokenizer: trained, trained_vocab_size: 200, max_length: 24}]
models: [linear, tiny.yaml]
protocols: [paper]
protocol_overrides: [max_epochs=30, early_stopping_patience=0, batch_size=16, learning_rate=1e-2]
seeds: [0, 1]
"""


def write_small_study(folder: Path) -> None:
    """Writes ``study.yaml`` and what it names, relative to the folder."""
    write_reviews(folder / "reviews.csv")
    write_tiny_model(folder / "tiny.yaml")
    (folder / "study.yaml").write_text(STUDY, encoding="utf-8")


def wait_for_victim(output: Path, driver: subprocess.Popen[str]) -> tuple[list[PlannedRun], PlannedRun]:
    """Waits until some run is finished and another is in the first half of its training; returns both."""
    return _wait(output, driver, lambda run: run.progress is not None and run.progress.step < run.progress.steps / 2)


def wait_for_another_start(output: Path, driver: subprocess.Popen[str], victim: PlannedRun) -> PlannedRun:
    """Waits until a run that was killed trains again, in another process."""

    def again(run: PlannedRun) -> bool:
        assert victim.progress is not None and run.progress is not None
        return run.config.run_id == victim.config.run_id and run.progress.pid != victim.progress.pid

    return _wait(output, driver, again)[1]


def _wait(
    output: Path, driver: subprocess.Popen[str], fits: Callable[[PlannedRun], bool]
) -> tuple[list[PlannedRun], PlannedRun]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        runs = study_status(*find_study(output, None)).runs if (output / "study.yaml").exists() else []
        done = [run for run in runs if run.state == "done"]
        for run in runs:
            if done and run.state == "running" and run.progress and run.progress.step > 0 and fits(run):
                return done, run
        assert driver.poll() is None, driver.stderr.read() if driver.stderr else ""
        time.sleep(0.05)
    raise TimeoutError("no run was ever seen at work")


def begun(run: Path) -> int:
    """How often a run was begun."""
    return (run / "log.txt").read_text(encoding="utf-8").count(f"{run.name}: loading data")


class Inline(Workers):
    """Workers that take their calls in this process, which has imported everything."""

    def __init__(self, count: int, threads: int, *_: Any) -> None:
        super().__init__(0, threads)
        self.count = max(1, count)

    def call(self, function: str, *arguments: Any, machine: Machine | None = None, **_: Any) -> Ended:
        """Calls the function."""
        module, name = function.split(":")
        data = [] if machine is None else [StudyData(machine)]
        try:
            return Ended(0, result=getattr(importlib.import_module(module), name)(*data, *arguments))
        except RecurraError as error:
            return Ended(error.exit_code, f"error: {error}")
