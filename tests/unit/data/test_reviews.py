from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import DataError, UnavailableError
from recurra.data import reviews as polarity
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextDataset, TextSplit, joined
from recurra.data.reviews import balanced, cut_by_label, one_pool
from recurra.data.words import text_identity
from small_treebank import write_table


def write(root: Path, folder: str, part: str, rows: list[tuple[str, int]], column: str = "text") -> None:
    write_table(root / folder / f"{part}.parquet", (column, "label", "stars"), [(*row, 5) for row in rows])


def sizes(dataset: TextDataset) -> list[int]:
    return [len(split) for split in dataset.splits.values()]


def test_repeats_go_every_row_is_accounted_for_and_balanced_is_the_default(tmp_path: Path) -> None:
    train = [(f"Review number {row}, it's fine.", int(row % 4 > 0)) for row in range(120)]
    test = [(f"Another <b>one</b>, number {row}!", row % 2) for row in range(40)]
    write(tmp_path, "yelp_reviews", "train", [*train, ("review number 3 it's FINE", 1), ("http://a.b", 1)])
    write(tmp_path, "yelp_reviews", "test", [*test, train[5], test[1], ("Both ways", 0), ("both ways.", 1)])
    dataset = load_dataset(DataConfig(name="yelp_reviews", protocol="all-rows"), tmp_path)
    assert dataset.dropped == {
        "empty after cleaning": 1,
        "train: repeats another of its rows": 1,
        "test: repeats a row of train": 1,
        "test: repeats another of its rows": 1,
        "text stands with several labels": 2,
    }
    assert dataset.record().dropped == dataset.dropped
    assert sizes(dataset) == [128, 16, 16] and dataset.splits["train"].texts[0] == "review number 0, it's fine."
    identities = [text_identity(text) for split in dataset.splits.values() for text in split.texts]
    assert len(identities) == len(set(identities))
    assert "not the Yelp Polarity release" in dataset.notes[0] and "3 repeated texts" in dataset.notes[1]
    dataset, again, other = (load_dataset(DataConfig(name="yelp_reviews", split_seed=n), tmp_path) for n in (0, 0, 1))
    assert dataset.protocol == "balanced"
    counts = [np.bincount(split.labels).tolist() for split in dataset.splits.values()]
    assert counts == [[40, 40], [5, 5], [5, 5]]
    assert other.fingerprint != dataset.fingerprint == again.fingerprint


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
    assert sum(sizes(dataset)) == 40 * len(parts) and not dataset.dropped
    for split in dataset.splits.values():
        for identity, text, label in zip(split.ids, split.texts, split.labels, strict=True):
            part, row = identity.rsplit("-", 1)
            assert text == f"{part} row {row}." and label == int(row) % 2
    assert note in dataset.notes[0]


def test_missing_and_damaged_copies(tmp_path: Path) -> None:
    for place, tried in ((None, "no data root is given"), (tmp_path, f"'{tmp_path}' has no folder amazon_fdu_mtl")):
        cure = "no public name; give --data-root DIR .*amazon_fdu_mtl.* or take amazon_polarity"
        with pytest.raises(UnavailableError, match=rf"amazon_reviews: {tried} .*{cure}"):
            load_dataset(DataConfig(name="amazon_reviews"), place)
    write(tmp_path, "yelp_reviews", "train", [("three stars", 3)])
    with pytest.raises(UnavailableError, match=r"no test.parquet in .* \(there: train\).* DIR/yelp_reviews"):
        load_dataset(DataConfig(name="yelp_reviews"), tmp_path)
    write(tmp_path, "yelp_reviews", "test", [("fine", 1)])
    with pytest.raises(DataError, match="label must be 0 or 1"):
        load_dataset(DataConfig(name="yelp_reviews"), tmp_path)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "rows", "fingerprint", "repeats"),
    [
        ("yelp_reviews", [25_512, 3_189, 3_189], "a11c63ae384d8437", []),
        ("amazon_reviews", [19_728, 2_466, 2_466], "b692c338bc9fd434", [1_316, 560, 49]),
    ],
)
def test_real_reviews(data_root: Path, name: str, rows: list[int], fingerprint: str, repeats: list[int]) -> None:
    if not (data_root / ("amazon_fdu_mtl" if name == "amazon_reviews" else name)).is_dir():
        pytest.skip(f"{name} is not in the data root")
    dataset = load_dataset(DataConfig(name=name), data_root)
    assert (sizes(dataset), dataset.fingerprint) == (rows, fingerprint)
    # Of train, in test of train, and within test.
    assert sorted((count for reason, count in dataset.dropped.items() if "repeats" in reason), reverse=True) == repeats


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for the hub, with the escapes of the release; the name that was asked for is noted."""
    asked: dict[str, Any] = {}
    for name, rows in (("train", 2000), ("test", 400)):
        texts = [rf"{name} review {row}, so\n\nso \"quoted\" back\slash" for row in range(rows)]
        asked[name] = {"text": texts, "label": [row % 2 for row in range(rows)]}

    def load(name: str) -> datasets.DatasetDict:
        asked["name"] = name
        return datasets.DatasetDict({key: datasets.Dataset.from_dict(asked[key]) for key in ("train", "test")})

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
    assert sizes(dataset) == [800, 100, 101]
    for key, split in dataset.splits.items():
        assert {identity.split("-")[0] for identity in split.ids} == {"test" if key == "test" else "train"}
        assert abs(np.bincount(split.labels)[0] - len(split) / 2) <= 1
        for identity, text, label in zip(split.ids, split.texts, split.labels.tolist(), strict=True):
            source, row = identity.split("-")
            assert (text, label) == (rf'{source} review {row}, so so "quoted" back\slash', int(row) % 2)
    assert not set(dataset.splits["train"].ids) & set(dataset.splits["validation"].ids)
    assert load_dataset(DataConfig(name=name)).fingerprint == dataset.fingerprint
    assert load_dataset(DataConfig(name=name, split_seed=1)).fingerprint != dataset.fingerprint


def test_a_smaller_release_is_said_to_be_so_and_repeats_are_passed_over(hub: dict[str, Any]) -> None:
    hub["train"]["text"][10] = "Test review 4 so so quoted back slash!"
    hub["train"]["text"][12] = hub["train"]["text"][14]
    hub["train"]["text"][16] = " "
    dataset = load_dataset(DataConfig(name="yelp_polarity"))
    validation = 6_822 * 2000 // 61_398
    assert sizes(dataset) == [2000 - 3 - validation, validation, 400]
    assert dataset.dropped == {"train: repeats a row drawn before": 2, "train: empty after cleaning": 1}
    assert any("too few rows for 54,576 / 6,822 / 6,823" in note for note in dataset.notes)
    assert sizes(load_dataset(DataConfig(name="yelp_polarity", protocol="official"))) == [1897, 100, 400]
    # Other data under the name are refused.
    hub["train"]["label"] = [1 + row % 5 for row in range(2000)]
    with pytest.raises(DataError, match=r"fancyzhx/yelp_polarity\) has another layout: label must be 0 or 1"):
        load_dataset(DataConfig(name="yelp_polarity"))
    hub["train"] = {"review": ["a"], "label": [0]}
    with pytest.raises(DataError, match="has no column text"):
        load_dataset(DataConfig(name="yelp_polarity"))


def test_a_local_copy_is_preferred_and_title_and_content_are_joined(tmp_path: Path) -> None:
    for name, count in (("train", 100), ("test", 20)):
        rows = [(f"{name} title {row}" if row % 3 else None, f"content {row}", row % 2) for row in range(count)]
        write_table(tmp_path / "amazon_polarity" / f"{name}.parquet", ("title", "content", "label"), rows)
    dataset = load_dataset(DataConfig(name="amazon_polarity"), tmp_path)
    texts = dict(zip(dataset.splits["test"].ids, dataset.splits["test"].texts, strict=True))
    assert (texts["test-1"], texts["test-3"]) == ("test title 1 content 1", "content 3")


ROWS = st.lists(st.tuples(st.sampled_from(["a b", "A, b!", "c", "c d", "C  D.", "...", "é", "É"]), st.integers(0, 1)))


def pool(rows: list[tuple[str, int]]) -> TextSplit:
    labels = np.array([label for _, label in rows], dtype=np.int64)
    return TextSplit("pool", [text for text, _ in rows], labels, [f"train-{row}" for row in range(len(rows))])


def numbered(counts: list[int]) -> TextSplit:
    return pool([(f"{label} {row}", label) for label, count in enumerate(counts) for row in range(count)])


@given(ROWS, st.data())
def test_one_row_of_each_text_and_none_of_an_opposed_one(rows: list[tuple[str, int]], data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.sampled_from(["train", "test"]), min_size=len(rows), max_size=len(rows)))
    rows_of: defaultdict[str, list[int]] = defaultdict(list)
    for row, (text, _) in enumerate(rows):
        rows_of[text_identity(text)].append(row)
    whole = pool(rows)
    splits = [whole.select([row], name=part) for row, part in enumerate(parts)]
    kept, counts = one_pool(splits or [whole])
    # The first of each text that has one label.
    agreed = [same for same in rows_of.values() if len({rows[row][1] for row in same}) == 1]
    assert sorted(kept.ids) == sorted(f"train-{same[0]}" for same in agreed)
    assert len(kept) + sum(counts.values()) == len(rows)


@given(st.lists(st.integers(3, 120), min_size=2, max_size=4), st.integers(0, 3))
def test_a_cut_keeps_every_row_once_and_proportions(counts: list[int], seed: int) -> None:
    rows = numbered(counts)
    splits = cut_by_label(rows, seed)
    assert sorted(identity for split in splits.values() for identity in split.ids) == sorted(rows.ids)
    for label, count in enumerate(counts):
        of_label = {name: int((split.labels == label).sum()) for name, split in splits.items()}
        assert min(of_label.values()) >= 1
        assert max(abs(of_label[name] - count / 10) for name in ("validation", "test")) <= 1
    again = cut_by_label(rows, seed)
    assert all(split.fingerprint == again[name].fingerprint for name, split in splits.items())


@given(st.lists(st.integers(1, 30), min_size=2, max_size=3), st.integers(0, 3))
def test_balanced_takes_what_the_rarest_class_has(counts: list[int], seed: int) -> None:
    rows = numbered(counts)
    kept, left_out = balanced(rows, seed)
    assert np.bincount(kept.labels).tolist() == [min(counts)] * len(counts)
    assert sum(left_out.values()) == len(rows) - len(kept)
    assert kept.ids == [identity for identity in rows.ids if identity in set(kept.ids)]


def test_empty_rows_and_joining() -> None:
    kept, counts = one_pool([pool([("a", 0), ("", 1), ("b", 1)])])
    assert (kept.texts, counts) == (["a", "b"], {"empty after cleaning": 1})
    grouped = TextSplit("x", ["c"], np.array([1]), ["x-0"], [(7,)])
    both = joined("both", [kept, grouped])
    assert both.texts == ["a", "b", "c"]
    assert both.groups == [(), (), (7,)]
    assert joined("plain", [kept]).groups is None
