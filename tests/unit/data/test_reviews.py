from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recurra.core.errors import DataError, UnavailableError
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextDataset
from recurra.data.reviews import text_identity


def write(root: Path, folder: str, part: str, rows: list[tuple[str, int]], column: str = "text") -> None:
    (root / folder).mkdir(exist_ok=True)
    table = pa.table(
        {column: [text for text, _ in rows], "label": [label for _, label in rows], "stars": [5] * len(rows)}
    )
    pq.write_table(table, root / folder / f"{part}.parquet")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    train = [(f"Review number {row}, it's fine.", int(row % 4 > 0)) for row in range(120)]
    test = [(f"Another <b>one</b>, number {row}!", row % 2) for row in range(40)]
    write(tmp_path, "yelp_reviews", "train", [*train, ("review number 3 it's FINE", 1), ("http://a.b", 1)])
    write(tmp_path, "yelp_reviews", "test", [*test, train[5], ("Both ways", 0), ("both ways.", 1)])
    return tmp_path


def splits_share_no_text(dataset: TextDataset) -> bool:
    identities = [text_identity(text) for split in dataset.splits.values() for text in split.texts]
    return len(identities) == len(set(identities))


def test_repeats_go_and_every_row_is_accounted_for(root: Path) -> None:
    dataset = load_dataset(DataConfig(name="yelp_reviews", protocol="all-rows"), root)
    assert dataset.dropped == {
        "empty after cleaning": 1,
        "train: repeats another of its rows": 1,
        "test: repeats a row of train": 1,
        "text stands with several labels": 2,
    }
    assert {name: len(split) for name, split in dataset.splits.items()} == {"train": 128, "validation": 16, "test": 16}
    assert splits_share_no_text(dataset)
    assert dataset.splits["train"].texts[0] == "review number 0, it's fine."
    assert dataset.record().dropped == dataset.dropped
    assert any("not the Yelp Polarity release" in note for note in dataset.notes)
    assert any("2 repeated texts" in note for note in dataset.notes)


@pytest.mark.parametrize(
    ("name", "folder", "parts", "column", "note"),
    [
        ("amazon_reviews", "amazon_fdu_mtl", ["train", "test"], "text", "not the Amazon Polarity release"),
        ("yelp_sentences", "yelp_sentences", ["upstream_dev", "upstream_test"], "text", "label of its whole review"),
        ("product_reviews", "amazon_blitzer", ["all"], "content", "without titles"),
    ],
)
def test_every_local_corpus_is_read_from_its_own_files(
    name: str, folder: str, parts: list[str], column: str, note: str, tmp_path: Path
) -> None:
    for part in parts:
        write(tmp_path, folder, part, [(f"{part} row {row}.", row % 2) for row in range(40)], column)
    dataset = load_dataset(DataConfig(name=name), tmp_path)
    assert (dataset.name, dataset.protocol, dataset.label_names) == (name, "balanced", ["negative", "positive"])
    assert sum(len(split) for split in dataset.splits.values()) == 40 * len(parts) and not dataset.dropped
    for split in dataset.splits.values():
        for identity, text, label in zip(split.ids, split.texts, split.labels, strict=True):
            part, row = identity.rsplit("-", 1)
            assert text == f"{part} row {row}." and label == int(row) % 2
    assert note in dataset.notes[0]


def test_balanced_is_the_default_and_seeds_differ(root: Path) -> None:
    dataset = load_dataset(DataConfig(name="yelp_reviews"), root)
    assert dataset.protocol == "balanced"
    counts = [np.bincount(split.labels).tolist() for split in dataset.splits.values()]
    assert counts == [[40, 40], [5, 5], [5, 5]]
    other = load_dataset(DataConfig(name="yelp_reviews", split_seed=1), root)
    assert other.fingerprint != dataset.fingerprint
    assert load_dataset(DataConfig(name="yelp_reviews"), root).fingerprint == dataset.fingerprint


def test_missing_and_damaged_copies(root: Path, tmp_path: Path) -> None:
    for place, tried in ((None, "no data root is given"), (tmp_path, f"'{tmp_path}' has no folder amazon_fdu_mtl")):
        cure = "no public name; give --data-root DIR .*amazon_fdu_mtl.* or take amazon_polarity"
        with pytest.raises(UnavailableError, match=rf"amazon_reviews: {tried} .*{cure}"):
            load_dataset(DataConfig(name="amazon_reviews"), place)
    write(root, "yelp_reviews", "test", [("three stars", 3)])
    with pytest.raises(DataError, match="label must be 0 or 1"):
        load_dataset(DataConfig(name="yelp_reviews"), root)
    (root / "yelp_reviews" / "test.parquet").unlink()
    with pytest.raises(UnavailableError, match=r"no test.parquet in .* \(there: train\).* DIR/yelp_reviews"):
        load_dataset(DataConfig(name="yelp_reviews"), root)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "sizes", "fingerprint", "repeats"),
    [
        ("yelp_reviews", [25_512, 3_189, 3_189], "a11c63ae384d8437", {}),
        (
            "amazon_reviews",
            [19_728, 2_466, 2_466],
            "b692c338bc9fd434",
            {
                "train: repeats another of its rows": 1_316,
                "test: repeats a row of train": 560,
                "test: repeats another of its rows": 49,
            },
        ),
    ],
)
def test_real_reviews(data_root: Path, name: str, sizes: list[int], fingerprint: str, repeats: dict[str, int]) -> None:
    if not (data_root / ("amazon_fdu_mtl" if name == "amazon_reviews" else name)).is_dir():
        pytest.skip(f"{name} is not in the data root")
    dataset = load_dataset(DataConfig(name=name), data_root)
    assert [len(split) for split in dataset.splits.values()] == sizes
    assert all(abs(np.bincount(split.labels)[0] - len(split) / 2) <= 1 for split in dataset.splits.values())
    assert {reason: count for reason, count in dataset.dropped.items() if "repeats" in reason} == repeats
    assert splits_share_no_text(dataset)
    assert dataset.fingerprint == fingerprint
