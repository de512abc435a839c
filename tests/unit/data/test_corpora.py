"""The one door to data: the last files are read once, and read again when they change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from recurra.core.errors import DataError
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


def test_another_data_root_is_another_data_set(tmp_path: Path) -> None:
    config = DataConfig(name=str(written(tmp_path / "rows.csv", 40)))
    first = load_dataset(config, tmp_path)
    assert load_dataset(config, tmp_path) is first
    with pytest.raises(DataError, match="is not a folder"):
        load_dataset(config, tmp_path / "nothing")


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


def test_corpora_their_protocols_and_the_files_of_their_local_copies() -> None:
    reviews, polarity = ["balanced", "all-rows"], ["sst2-size", "official"]
    domains = ["natural", "normalised", "bare-words", "pooled"]
    assert {name: (corpus.layout, list(corpus.protocols)) for name, corpus in corpora.CORPORA.items()} == {
        "sst2": (
            "DIR/sst2/{train,validation,test_labeled}.parquet (columns sentence, label, idx)", ["official", "pooled"]
        ),
        "yelp_polarity": ("DIR/yelp_polarity/{train,test}.parquet (columns text, label)", polarity),
        "amazon_polarity": ("DIR/amazon_polarity/{train,test}.parquet (columns text, label)", polarity),
        "yelp_reviews": ("DIR/yelp_reviews/{train,test}.parquet (columns text, label)", reviews),
        "amazon_reviews": ("DIR/amazon_fdu_mtl/{train,test}.parquet (columns text, label)", reviews),
        "yelp_sentences": ("DIR/yelp_sentences/{upstream_dev,upstream_test}.parquet (columns text, label)", reviews),
        "product_reviews": ("DIR/amazon_blitzer/all.parquet (columns content, label)", reviews),
        "domains": ("those of yelp_reviews, sst2 and amazon_reviews", domains),
        "domains_polarity": ("those of yelp_polarity, sst2 and amazon_polarity", domains),
        "demo": (None, ["held-out", "large"]),
    }  # fmt: skip
    assert all(name == corpus.name for name, corpus in corpora.CORPORA.items())


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({}, ""),
        ({"length_tail": "longest", "tail_fraction": 0.3}, "longest-30pct"),
        ({"fraction": 0.125}, "train-12.5pct"),
        ({"split_seed": 2}, "split-2"),
        ({"name": "sst2", "auxiliary": "treebank"}, "treebank"),
        ({"join_labels": True}, "joined-labels"),
        ({"unlabelled": "more.txt"}, "more-texts"),
        ({"windows": 4}, "4-windows"),
        ({"fraction": 0.1, "split_seed": 1, "windows": 2}, "train-10pct-split-1-2-windows"),
        ({"tokenizer": "trained", "max_length": 32}, ""),
    ],
)
def test_a_part_is_named_by_what_sets_it_apart(values: dict[str, Any], part: str) -> None:
    assert DataConfig.parse({"name": "rows.csv", **values}).part == part


def test_names_of_runs_say_how_a_corpus_is_read() -> None:
    assert (DataConfig(name="sst2").reading, DataConfig(name="sst2", protocol="pooled").reading) == (
        "default",
        "pooled",
    )
