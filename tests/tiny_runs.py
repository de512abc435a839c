"""Runs of a tiny model on a small file, killed and started again or trained by two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interrupted import execute, in_a_process
from recurra.core.record import read_any_record
from recurra.data.configuration import DataConfig
from recurra.study.plan import claim_folder
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine
from recurra.training.protocols import load_protocol
from reviews import snapshot, write_reviews, write_tiny_model


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its configuration, its folder, and where data and cache lie."""

    config: RunConfig
    folder: Path

    @property
    def root(self) -> Path:
        """Folder of the data file and of the cache."""
        return self.folder.parent


def history(folder: Path) -> list[dict[str, Any]]:
    """The epochs of a run, but for their time."""
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "wall_s"} for line in lines]


def assert_same_result(folder: Path, other: Path) -> None:
    """Weights, tokenizer, predictions, history and figures are equal, bit for bit; nothing else is left."""
    for part in ("model", "predictions"):
        assert snapshot(folder / part) == snapshot(other / part)
    assert history(folder) == history(other)
    ours, theirs = read_any_record(folder), read_any_record(other)
    for name in ("run_id", "config", "config_hash", "seed", "data", "model", "metrics", "audits", "mistakes"):
        assert getattr(ours, name, None) == getattr(theirs, name, None), name
    assert not (folder / "checkpoints").exists() and not (folder / ".lock").exists()


def assert_goes_on_after(moments: list[str], trained: TrainedRun, folder: Path) -> None:
    """Killed at each moment and started again, the run ends as if nothing had been."""
    for moment in moments:
        assert in_a_process(execute, trained.config.plain(), folder, [moment]) == -signal.SIGKILL
        assert not (folder / "record.json").exists()
    assert in_a_process(execute, trained.config.plain(), folder, []) == 0
    assert_same_result(folder, trained.folder)


def train_in_two_processes(config: RunConfig, folder: Path) -> str:
    """Trains a run in the processes that torchrun starts; returns what they wrote to stderr."""
    folder.mkdir()
    claim_folder(config, folder)
    machine = Machine(threads=1, latency=False, cache_dir=folder.parent / "cache")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = folder.parent / "execute.py"
    script.write_text(
        "import sys\nfrom recurra.study.run import execute_run\n"
        "from recurra.tasks.study_data import Machine, StudyData\n"
        "execute_run(StudyData(Machine.from_json(sys.argv[2])), sys.argv[1])\n"
    )
    done = subprocess.run(
        [*launch, str(script), str(folder), machine.to_json()],
        capture_output=True, text=True, check=False, timeout=220, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    script.unlink()
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def tiny_run(root: Path, **values: Any) -> RunConfig:
    """Configuration of a tiny model on a small file, a second or two to train; 24 steps an epoch."""
    data, model = root / "reviews.csv", root / "tiny.yaml"
    if not data.exists():
        write_reviews(data, rows=240)
        write_tiny_model(model)
    settings = DataConfig(name=str(data), tokenizer="trained", trained_vocab_size=200, max_length=24)
    changes = {"max_epochs": 3, "learning_rate": 5e-3, "batch_size": 8}
    return make_run(str(model), settings, load_protocol("paper", changes), **{"seed": 0, "precision": "fp32", **values})
