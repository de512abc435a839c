"""What a study knows of its data is read once, by whoever asks first."""

from __future__ import annotations

from pathlib import Path

import pytest

import recurra.tasks.study_data as module
from recurra.data.configuration import DataConfig
from recurra.tasks.study_data import StudyData
from reviews import write_reviews


def test_rows_are_read_once_however_they_are_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DataConfig(name=str(write_reviews(tmp_path / "reviews.csv")), tokenizer="trained")
    data = StudyData()
    rows = data.rows(config)
    assert data.rows(config.model_copy(update={"max_length": 64, "windows": 2})) is rows
    assert data.rows(config.model_copy(update={"split_seed": 1})) is not rows
    counts = [data.token_lengths(config, "trained", ["train"])[0]["train"] for _ in range(2)]
    assert counts[0] is counts[1]
    monkeypatch.setattr(module, "MOST_CHARACTERS", 10)
    few = StudyData()
    assert few.rows(config) is not few.rows(config)
    few.hold(config, rows)
    assert few.rows(config) is rows
