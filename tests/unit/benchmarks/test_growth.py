"""The bench of growth: rows of which none shares a word with another, and studies of a size."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.growth import read_novels, study_size, write_rows, write_study


@pytest.fixture
def root(tmp_path: Path) -> Path:
    texts = [" ".join(f"w{novel}x{place}" for place in range(40 + novel)) for novel in range(5)]
    (tmp_path / "english_novels").mkdir()
    table = pa.table({"text": texts, "year": [1801, 1850, 1860, 1870, 1880]})
    pq.write_table(table, tmp_path / "english_novels" / "train.parquet")
    return tmp_path


def test_rows_have_their_words_and_share_none(root: Path) -> None:
    novels = read_novels(root)
    assert [label for label, _ in novels] == ["older", "older", "newer", "newer", "newer"]
    with write_rows(root / "rows.csv", novels, 17, 7).open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    words = [word for row in rows for word in row["text"].split()]
    assert len(rows) == 17 and len(words) == 17 * 7 == len(set(words))
    assert {row["label"] for row in rows[:5]} == {"older", "newer"}
    with pytest.raises(RuntimeError, match="no 100 texts of 7 words; give a lower --most"):
        write_rows(root / "rows.csv", novels, 100, 7)


def test_a_study_has_at_most_as_many_runs_as_asked_and_is_written_in_its_size(tmp_path: Path) -> None:
    for asked, runs in ((10, 10), (25, 20), (100, 100), (250, 200), (10_000, 10_000)):
        assert 10 * math.prod(study_size(asked)) == runs
    write_study(tmp_path, *study_size(25))
    assert len(list(tmp_path.glob("runs/*/record.json"))) == 20
