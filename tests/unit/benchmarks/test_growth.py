"""The bench of growth: rows of which none shares a word with another."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.growth import read_novels, write_rows

from reviews import read_rows
from small_treebank import write_table


def test_rows_have_their_words_and_share_none(tmp_path: Path) -> None:
    texts = [" ".join(f"w{novel}x{place}" for place in range(40 + novel)) for novel in range(5)]
    years = zip(texts, (1801, 1850, 1860, 1870, 1880), strict=True)
    write_table(tmp_path / "english_novels" / "train.parquet", ["text", "year"], list(years))
    novels = read_novels(tmp_path)
    assert [label for label, _ in novels] == ["older", "older", "newer", "newer", "newer"]
    rows = read_rows(write_rows(tmp_path / "rows.csv", novels, 17, 7))
    words = [word for row in rows for word in row["text"].split()]
    assert len(rows) == 17 and len(words) == 17 * 7 == len(set(words))
    assert {row["label"] for row in rows[:5]} == {"older", "newer"}
    with pytest.raises(RuntimeError, match="no 100 texts of 7 words; give a lower --most"):
        write_rows(tmp_path / "rows.csv", novels, 100, 7)
