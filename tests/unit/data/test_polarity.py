from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recurra.core.errors import DataError
from recurra.data import reviews as polarity
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.reviews import unescaped


def part(name: str, rows: int) -> dict[str, list[Any]]:
    return {"text": [f"{name} review {row}, so\\nso" for row in range(rows)], "label": [row % 2 for row in range(rows)]}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for the hub: real data sets of the library, by public name; what was asked for is noted."""
    from datasets import Dataset, DatasetDict

    asked: dict[str, Any] = {"train": part("train", 2000), "test": part("test", 400)}

    def load(name: str) -> DatasetDict:
        asked["name"] = name
        return DatasetDict({key: Dataset.from_dict(asked[key]) for key in ("train", "test")})

    monkeypatch.setattr("datasets.load_dataset", load)
    return asked


@pytest.mark.parametrize(
    ("name", "public"), [("yelp_polarity", "fancyzhx/yelp_polarity"), ("amazon_polarity", "mteb/amazon_polarity")]
)
def test_the_paper_s_sizes_are_drawn_from_the_public_release(
    name: str, public: str, hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polarity, "PAPER_SIZES", {"train": 800, "validation": 100, "test": 101})
    dataset = load_dataset(DataConfig(name=name))
    assert hub["name"] == public
    assert (dataset.name, dataset.protocol) == (name, "sst2-size")
    assert {key: len(split) for key, split in dataset.splits.items()} == {"train": 800, "validation": 100, "test": 101}
    for key, split in dataset.splits.items():
        assert all(identity.startswith("test-" if key == "test" else "train-") for identity in split.ids)
        assert abs(np.bincount(split.labels)[0] - len(split) / 2) <= 1
        for identity, text, label in zip(split.ids, split.texts, split.labels.tolist(), strict=True):
            source, row = identity.split("-")
            assert (text, label) == (f"{source} review {row}, so so", int(row) % 2)
    assert not set(dataset.splits["train"].ids) & set(dataset.splits["validation"].ids)
    assert load_dataset(DataConfig(name=name)).fingerprint == dataset.fingerprint
    assert load_dataset(DataConfig(name=name, split_seed=1)).fingerprint != dataset.fingerprint


def test_a_smaller_release_is_said_to_be_so_and_repeats_are_passed_over(hub: dict[str, Any]) -> None:
    hub["train"]["text"][10] = "Test review 4 so so!"
    hub["train"]["text"][12] = "train review 14, so\\nso"
    hub["train"]["text"][16] = " "
    dataset = load_dataset(DataConfig(name="yelp_polarity"))
    sizes = {key: len(split) for key, split in dataset.splits.items()}
    assert sizes["test"] == 400
    assert sizes["validation"] == 6_822 * 2000 // 61_398
    assert dataset.dropped == {"train: repeats a row drawn before": 2, "train: empty after cleaning": 1}
    assert sizes["train"] + sizes["validation"] == 2000 - 3
    assert any("too few rows for 54,576 / 6,822 / 6,823" in note for note in dataset.notes)


def test_official_takes_every_row(hub: dict[str, Any]) -> None:
    dataset = load_dataset(DataConfig(name="yelp_polarity", protocol="official"))
    assert {key: len(split) for key, split in dataset.splits.items()} == {"train": 1900, "validation": 100, "test": 400}
    assert hub["name"] == "fancyzhx/yelp_polarity"


def test_a_local_copy_is_preferred_and_title_and_content_are_joined(tmp_path: Path) -> None:
    folder = tmp_path / "amazon_polarity"
    folder.mkdir()
    for name, rows in (("train", 100), ("test", 20)):
        columns = {
            "title": [f"{name} title {row}" if row % 3 else None for row in range(rows)],
            "content": [f"content {row}" for row in range(rows)],
            "label": [row % 2 for row in range(rows)],
        }
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    dataset = load_dataset(DataConfig(name="amazon_polarity"), tmp_path)
    texts = dict(zip(dataset.splits["test"].ids, dataset.splits["test"].texts, strict=True))
    assert (texts["test-1"], texts["test-3"]) == ("test title 1 content 1", "content 3")


def test_other_data_under_the_name_is_refused(hub: dict[str, Any]) -> None:
    hub["train"]["label"] = [1 + row % 5 for row in range(2000)]
    with pytest.raises(DataError, match=r"fancyzhx/yelp_polarity\) is something else: label must be 0 or 1"):
        load_dataset(DataConfig(name="yelp_polarity"))
    hub["train"] = {"review": ["a"], "label": [0]}
    with pytest.raises(DataError, match="has no column text"):
        load_dataset(DataConfig(name="yelp_polarity"))


def test_the_release_s_escapes() -> None:
    assert unescaped(r"one\n\ntwo \"quoted\" back\slash") == 'one  two "quoted" back\\slash'
