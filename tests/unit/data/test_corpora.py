"""The one door to data: the last files are read once, and read again when they change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recurra.data import corpora
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset


def written(path: Path, rows: int, word: str = "row") -> Path:
    lines = [f"{word} {number} of the file,{'ab'[number % 2]}" for number in range(rows)]
    path.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_file_is_read_once_whatever_reads_its_texts(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.csv", 40)
    first = load_dataset(DataConfig(name=str(path), max_length=64))
    assert load_dataset(DataConfig(name=str(path), max_length=128, tokenizer="trained")) is first
    # What changes rows or splits is another data set, and so is another file.
    assert load_dataset(DataConfig(name=str(path), split_seed=1)).fingerprint != first.fingerprint
    other = written(tmp_path / "other.csv", 40)
    assert load_dataset(DataConfig(name=str(other))).name != first.name


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.csv", 40)
    config = DataConfig(name=str(path))
    first = load_dataset(config)
    state = path.stat()
    written(path, 40, "new")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert load_dataset(config).fingerprint != first.fingerprint
    test = written(tmp_path / "test.csv", 10, "other")
    assert load_dataset(DataConfig(name=str(path), test=str(test))).splits["test"].texts[0].startswith("other")


def test_large_files_are_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "_REMEMBERED_BYTES", 10)
    config = DataConfig(name=str(written(tmp_path / "rows.csv", 40)))
    assert load_dataset(config) is not load_dataset(config)
    assert not corpora._remembered
