"""The one door to data, and how its parts are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recurra.core.errors import DataError
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset


def test_a_data_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        load_dataset(DataConfig(name="rows.csv"), tmp_path / "nothing")


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
