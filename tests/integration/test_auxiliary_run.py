"""A run on data with auxiliary labels and hidden tokens, from configuration to record, also after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from recurra.core.progress import Reporter
from recurra.data.configuration import DataConfig
from recurra.study.assignments import read_assignments
from recurra.study.run import execute_run
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.protocols import load_protocol
from reviews import write_tiny_model
from small_treebank import write_treebank


def run_of(root: Path, *changes: str) -> RunConfig:
    write_treebank(root)
    data = DataConfig(name="sst2", tokenizer="trained", trained_vocab_size=100, auxiliary="treebank")
    protocol = load_protocol("tuned-treebank", {"batch_size": 8, **read_assignments(changes).protocol})
    return make_run(str(write_tiny_model(root / "tiny.yaml")), data, protocol, seed=0, precision="fp32")


def test_a_run_trains_on_them_first_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = run_of(tmp_path)
    assert config.run_id.startswith("sst2-default-treebank-tiny-tuned-treebank-s0-")
    machine = Machine(threads=1, latency=False, cache_dir=tmp_path / "cache", data_root=tmp_path)
    record = execute_run(StudyData(machine), tmp_path / "run", config, reporter=Reporter())
    assert record is not None and not record.failed_audits()
    said = capsys.readouterr().err
    assert said.index("auxiliary epoch 1") < said.index("epoch 1: train loss")
    assert any("five-class labels" in note for note in record.data.notes)
    assert record.data.splits.keys() == {"train", "held_out", "validation", "test"}
    assert (record.training.protocol, record.training.epochs, record.training.resumed) == ("tuned-treebank", 1, 0)
    assert not (tmp_path / "run" / "checkpoints").exists()
