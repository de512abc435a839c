from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.comparison import cross_validated
from recurra.core.errors import ConfigurationError, DataError
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextDataset, TextSplit, summarise_lengths
from recurra.data.labels import order_labels
from recurra.data.splits import fold_rows, length_tail, rows_of_each_label, split_rows, stratified_fraction
from recurra.tasks.study_data import StudyData
from reviews import write_csv

SHARES = {"validation": 0.1, "test": 0.1}


def many(count: int = 200, offset: int = 0) -> list[tuple[str, ...]]:
    return [(f"text number {index + offset}", "good" if index % 4 else "bad") for index in range(count)]


def assert_apart(parts: Mapping[str, Any], *columns: list[str]) -> None:
    for values in columns:
        sides = [{values[row] for row in part} - {""} for part in parts.values()]
        assert sum(map(len, sides)) == len(set().union(*sides))


# Numbers of text, label and group.
NUMBERS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 7), st.integers(0, 40)), min_size=1, max_size=150)


@given(NUMBERS, st.integers(0, 3))
def test_no_text_and_no_group_is_on_two_sides(rows: list[tuple[int, int, int]], seed: int) -> None:
    texts, labels = [f"t{text}" for text, _, _ in rows], np.array([label % 3 for _, label, _ in rows])
    groups = [f"g{group}" if group else "" for _, _, group in rows]
    parts = split_rows(texts, labels, groups, SHARES, seed)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(rows)))
    assert_apart(parts, texts, groups)


def test_sizes_are_stratified_and_do_not_depend_on_the_order() -> None:
    texts, labels = [f"text {index}" for index in range(1000)], (np.arange(1000) % 5 == 0).astype(int)
    parts = split_rows(texts, labels, None, SHARES, 0)
    assert {name: Counter(labels[rows].tolist()) for name, rows in parts.items()} == {
        "train": {0: 640, 1: 160}, "validation": {0: 80, 1: 20}, "test": {0: 80, 1: 20},
    }  # fmt: skip
    order = random.Random(1).sample(range(1000), 1000)
    shuffled = split_rows([texts[row] for row in order], labels[order], None, SHARES, 0)
    for name, rows in parts.items():
        assert {order[row] for row in shuffled[name]} == set(rows.tolist())
    assert set(parts["test"].tolist()) != set(split_rows(texts, labels, None, SHARES, 1)["test"].tolist())


@given(NUMBERS, st.integers(2, 6), st.integers(0, 3), st.booleans())
def test_every_row_is_tested_in_one_fold_and_no_text_or_group_is_cut(
    rows: list[tuple[int, int, int]], folds: int, seed: int, several: bool
) -> None:
    texts, labels = [f"t{text}" for text, _, _ in rows], np.array([label % 3 for _, label, _ in rows])
    groups = [f"g{group}" if group else "" for _, _, group in rows]
    if several:
        # Three labels, as the bits of a number.
        labels = np.array([[number >> bit & 1 for bit in range(3)] for _, number, _ in rows])
    every = [fold_rows(texts, labels, groups, folds, fold=fold, seed=seed) for fold in range(folds)]
    for parts in every:
        assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(rows)))
        assert_apart(parts, texts, groups)
    tested = Counter(np.concatenate([parts["test"] for parts in every]).tolist())
    chosen = Counter(np.concatenate([parts["validation"] for parts in every]).tolist())
    assert set(tested.values()) <= {1} and set(chosen.values()) <= {1}
    # What is never tested belongs to a class of too few different units, and is trained on in every fold.
    left = set(range(len(rows))) - set(tested)
    assert not (several and left)
    assert all(row in set(parts["train"].tolist()) for parts in every for row in left) and not left & set(chosen)


@pytest.mark.parametrize("several", [False, True])
def test_folds_are_stratified_and_do_not_depend_on_the_order(several: bool) -> None:
    texts, rows = [f"text {index}" for index in range(1003)], np.arange(1003)
    # Of several labels 502, 201 and 50 texts have them, in all mixtures.
    kinds = [rows % 2 == 0, rows % 5 == 0, rows % 20 == 3] if several else [rows % 5 == 0]
    columns = np.stack(kinds, axis=1).astype(np.int64)
    labels = columns if several else columns[:, 0]
    every = [fold_rows(texts, labels, None, 5, fold=fold, seed=0) for fold in range(5)]
    assert all(199 <= len(parts["test"]) <= 202 and 99 <= len(parts["validation"]) <= 102 for parts in every)
    for label, total in enumerate(columns.sum(axis=0)):
        assert all(abs(int(columns[parts["test"], label].sum()) - total / 5) <= 2 for parts in every)
    assert sorted(np.concatenate([parts["test"] for parts in every]).tolist()) == list(range(1003))
    order = random.Random(1).sample(range(1003), 1003)
    shuffled = fold_rows([texts[row] for row in order], labels[order], None, 5, fold=2, seed=0)
    for name, part in every[2].items():
        assert {order[row] for row in shuffled[name]} == set(part.tolist())
    assert set(every[0]["test"].tolist()) != set(fold_rows(texts, labels, None, 5, fold=0, seed=1)["test"].tolist())


@given(st.integers(2, 6), st.integers(0, 20), st.booleans(), st.booleans())
def test_every_fold_trains_on_a_label_of_three_texts_or_groups(
    folds: int, seed: int, several: bool, grouped: bool
) -> None:
    labels = np.array([0] * 40 + [1] * 40 + [2] * 3 + [3] * 3)
    texts, groups = [f"text {index}" for index in range(86)], None
    if grouped:
        texts, labels = [f"{text} {part}" for text in texts for part in "ab"], labels.repeat(2)
        groups = [f"author {row // 2}" for row in range(len(labels))]
    given = np.eye(4, dtype=int)[labels] if several else labels
    for fold in range(folds):
        train = fold_rows(texts, given, groups, folds, fold=fold, seed=seed)["train"]
        assert set(labels[train]) == {0, 1, 2, 3}


Rows = list[tuple[str, ...]]
# Writes rows as a file, others beside it, and loads them.
Load = Callable[..., TextDataset]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(
        rows: Rows, header: str = "text,label", others: Mapping[str, Rows] | None = None, **keys: Any
    ) -> TextDataset:
        files = {name: str(write_csv(tmp_path / f"{name}.csv", more)) for name, more in (others or {}).items()}
        path = write_csv(tmp_path / "a.csv", rows, header.split(","))
        return load_dataset(DataConfig(name=str(path), **files, **keys))

    return load


def sizes(dataset: TextDataset) -> list[int]:
    return [len(split) for split in dataset.splits.values()]


def test_a_fold_of_a_file(load: Load) -> None:
    folds = [load(many(), folds=4, fold=fold) for fold in range(4)]
    assert {len(each.splits["test"]) for each in folds} == {50} and len({each.fingerprint for each in folds}) == 4
    assert len({row for each in folds for row in each.splits["test"].ids}) == 200
    assert load(many(), folds=1).fingerprint == load(many()).fingerprint
    with pytest.raises(DataError, match=r"too few rows to split off .* for fold 3 of 3"):
        load(many(5), folds=3, fold=2)
    with pytest.raises(ConfigurationError, match="'folds' is for your own files"):
        load_dataset(DataConfig(name="demo", folds=3))
    one, demo = (load_dataset(DataConfig(name="demo", folds=folds)) for folds in (1, None))
    assert one.fingerprint == demo.fingerprint


def test_rows_that_no_fold_tests_are_noted(tmp_path: Path) -> None:
    note = "2 rows are in train in every fold and never tested: their labels have fewer than 3 different texts."
    for rows, notes in (([*many(60), ("rare", "odd"), ("rarer", "odd")], [note]), (many(60), [])):
        config = DataConfig(name=str(write_csv(tmp_path / "data.csv", rows)))
        dataset = load_dataset(config.model_copy(update={"folds": 5}))
        assert [found for found in dataset.notes if "never tested" in found] == notes
        _, why = cross_validated(config, StudyData())
        assert ("every row is tested once" if not notes else "62 rows are few: 60 of them are tested once") in why
        assert not any("never tested" in found for found in load_dataset(config).notes)


@pytest.mark.parametrize("shares", [{"validation": 0.9}, {"validation": 0.9, "test": 0.05}, {"a": 0.5, "b": 0.5}])
def test_train_keeps_a_text_of_a_label_whatever_the_shares(shares: dict[str, float]) -> None:
    labels = np.array([0] * 40 + [1] * 3)
    parts = split_rows([*map(str, range(43))], labels, None, shares, 0)
    assert all({*labels[rows]} == {0, 1} for rows in parts.values())


def test_a_giant_group_goes_to_train_and_makes_no_room_for_its_labels() -> None:
    texts = [f"text {index}" for index in range(163)]
    groups = ["giant"] * 60 + [f"g{index}" for index in range(40)]
    # Also where it has rows of another label than its commonest.
    for labels, each in ((np.zeros(100, dtype=np.int64), [10]), (np.array([0, 0, 1] * 20 + [0, 0, 1, 1] * 10), [6, 4])):
        parts = split_rows(texts[:100], labels, groups, SHARES, 0)
        assert set(range(60)) <= set(parts["train"].tolist())
        assert [np.bincount(labels[parts[name]]).tolist() for name in ("validation", "test")] == [each, each]
    # Every label keeps most of its own groups to train on.
    labels = np.array([0, 0, 1] * 40 + [1] * 3 + [0] * 40)
    groups = ["giant"] * 120 + [f"g{row}" for row in range(43)]
    parts = split_rows(texts, labels, groups, SHARES, 0)
    for name in ("validation", "test"):
        of_label = np.bincount(labels[parts[name]], minlength=2)
        assert 1 <= of_label[0] <= 13 and of_label[1] == 1


def test_a_text_that_joins_all_groups_is_named(load: Load) -> None:
    rows = [(text, label, f"g{index // 4}") for index, (text, label) in enumerate(many(40))]
    rows += [("thank you", "good", f"g{group}") for group in range(10)]
    with pytest.raises(DataError, match=r"in 10 groups of 'author', 1 where .*'thank you', stands in 10; leave"):
        load(rows, header="text,label,author", group_column="author")


def test_a_file_becomes_three_splits_and_given_files_are_taken_whole(load: Load) -> None:
    dataset = load(many())
    assert list(dataset.splits) == ["train", "validation", "test"] and sizes(dataset) == [160, 20, 20]
    assert (dataset.label_names, dataset.protocol, dataset.name) == (["bad", "good"], "split", "a.csv")
    assert (dataset.selection_split, dataset.reported_splits) == ("validation", ["validation", "test"])
    assert set(load(many()[::-1]).splits["test"].texts) == set(dataset.splits["test"].texts)
    assert load(many(), split_seed=1).fingerprint != dataset.fingerprint
    others = {"test": many(40, offset=190), "validation": many(20, offset=170)}
    assert sizes(load(many(180), others={"test": others["test"]})) == [160, 20, 40]
    repeated = [*many(176), *[("same words", "good")] * 3, ("same words", "bad")]
    dataset = load(repeated, others=others)
    assert sizes(dataset) == [180, 20, 40]
    assert "6 of 20 rows of the given validation file have a text that train has too." in dataset.notes
    assert "3 train rows repeat the text of another; 1 texts have more than one label." in dataset.notes


def test_rows_that_no_classifier_can_be_made_of(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"one class only: all 2 rows have the label 'good'.*at least two"):
        load([("a", "good"), ("b", "good")])
    with pytest.raises(DataError, match=r"30 different labels in 30 rows.*--label-column"):
        load([(f"text {n}", f"unique {n}") for n in range(30)])
    with pytest.raises(DataError, match=r"too few rows to split off validation and test: 2 rows.*--validation"):
        load([("a", "good"), ("b", "bad")])
    with pytest.raises(DataError, match=r"test.csv' line 3 has the label 'goood' \(did you mean 'good'\?\).*bad, good"):
        load(many(), others={"test": [("a", "good"), ("b", "goood")]})
    dataset = load([*many(100), ("rare", "so so")])
    assert np.any(dataset.splits["train"].labels == dataset.label_names.index("so so"))
    assert "Split 'test' has no row of the class so so." in dataset.notes
    monkeypatch.setattr("recurra.data.labels.MOST_LABELS", 2)
    with pytest.raises(DataError, match="has 3 different labels in column 'label', and a record holds at most 2"):
        load([*many(100), ("rare", "so so")])


@pytest.mark.parametrize(
    ("labels", "ordered"),
    [
        ({"pass", "fail"}, ["fail", "pass"]),
        ({"Positive", "negative"}, ["negative", "Positive"]),
        ({"spam", "ham"}, ["ham", "spam"]),
        ({"10", "9", "-1"}, ["-1", "9", "10"]),
        ({"positive", "negative", "neutral"}, ["negative", "neutral", "positive"]),
    ],
)
def test_order_of_classes(labels: set[str], ordered: list[str]) -> None:
    assert order_labels(labels) == ordered


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"name": "sst-2"}, ConfigurationError, r"unknown corpus 'sst-2' \(did you mean 'sst2'\?\); allowed: sst2, "),
        ({"name": "missing.csv"}, DataError, "does not exist"),
        ({"name": "sst2", "protocol": "poled"}, ConfigurationError, r"'pooled'\?\); allowed: official, pooled"),
        ({"name": "a.csv", "protocol": "pooled"}, ConfigurationError, "'pooled'; allowed: split"),
        ({"name": "sst2", "test": "t.csv"}, ConfigurationError, "'test' is for your own files"),
    ],
)
def test_unknown_names(keys: dict[str, str], error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        load_dataset(DataConfig.parse(keys))
    with pytest.raises(DataError, match=r"data root .* is not a folder"):
        load_dataset(DataConfig.parse(keys), tmp_path / "missing")


def test_a_fold_that_trains_on_one_class_is_told_without_a_subset(load: Load) -> None:
    mixed = [("good text", "good", "a"), *[(f"bad {row}", "bad", f"b{row}") for row in range(9)], ("other", "bad", "a")]
    said = set()
    for fold in range(3):
        try:
            load(mixed, header="text,label,author", group_column="author", folds=3, fold=fold)
        except DataError as error:
            said.add(str(error))
    # The author who wrote the only good text is tested in one fold, and chooses the epoch of another.
    assert len(said) == 2
    for message in said:
        assert "'a.csv' has one class only in train: 'bad' for fold" in message and "(folds 1)" in message
        assert "tail_fraction" not in message and "subset" not in message


def test_subsets_of_a_dataset(load: Load) -> None:
    rows = [("word " * (1 + index // 20) + str(index), "good" if index % 2 else "bad") for index in range(200)]
    whole, tenth = load(rows), load(rows, fraction=0.1)
    assert len(tenth.splits["train"]) == 16
    assert tenth.splits["test"].fingerprint == whole.splits["test"].fingerprint
    tail = load(rows, length_tail="longest", fraction=0.5)
    assert sizes(tail) == [24, 6, 6] and len(tail.notes) == 2
    short = load(rows, length_tail="shortest", whole_test=True)
    assert short.splits["test"].fingerprint == whole.splits["test"].fingerprint
    longest = [max(split.word_counts) for split in short.splits.values()]
    assert max(longest[:2]) < longest[2]
    with pytest.raises(DataError, match="one class only in train"):
        load(rows, length_tail="longest", tail_fraction=0.001)
    with pytest.raises(DataError, match=r"fraction 0.001 of the 160 train rows .* fewer rows than the 2 classes"):
        load(rows, fraction=0.001)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "sst2", "fration": 0.5}, r"did you mean 'fraction'\?"),
        ({"name": "sst2", "max_length": 513}, "less than or equal to 512"),
        ({"name": "sst2", "whole_test": True}, "whole_test is given without length_tail"),
        ({"name": " "}, "must not be empty"),
        ({"name": "a.csv", "folds": 3, "fold": 3}, "fold is 3 of 3; allowed: 0 to 2"),
        ({"name": "a.csv", "folds": 3, "test": "b.csv"}, "folds is 3 beside a file of test rows"),
        ({"name": "demo", "auxiliary": "treebank"}, "belongs to sst2 under official, not to 'demo'; leave it out"),
        ({"name": "sst2", "protocol": "pooled", "auxiliary": "treebank"}, "not to 'sst2' under pooled"),
        ({"name": "sst2", "fraction": 0.5, "auxiliary": "treebank"}, "also of those that fraction, rows_per_label or"),
        ({"name": "sst2", "rows_per_label": 8, "auxiliary": "treebank"}, "take one or the other"),
    ],
)
def test_impossible_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DataConfig.parse(values)


@pytest.mark.parametrize(
    ("values", "part"),
    [
        (
            {"length_tail": "shortest", "whole_test": True, "fraction": 0.125, "split_seed": 2, "join_labels": True,
             "unlabelled": "more.txt", "windows": 4, "folds": 5, "fold": 1},
            "shortest-30pct-whole-test-train-12.5pct-split-2-fold-2-of-5-joined-labels-more-texts-4-windows",
        ),
        ({"name": "sst2", "auxiliary": "treebank"}, "treebank"),
        ({"rows_per_label": 8}, "8-a-label"),
        ({"tokenizer": "trained", "max_length": 32}, ""),
    ],
)  # fmt: skip
def test_a_part_is_named_by_what_sets_it_apart(values: dict[str, Any], part: str) -> None:
    assert DataConfig.parse({"name": "rows.csv", **values}).part == part


def rows(counts: list[int]) -> TextSplit:
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    texts = [" ".join(["w"] * (1 + index % 7)) + f" {index}" for index in range(len(labels))]
    return TextSplit("train", texts, np.array(labels), [str(index) for index in range(len(labels))])


@given(st.lists(st.integers(1, 200), min_size=2, max_size=4), st.floats(0.01, 1), st.integers(0, 5))
def test_a_fraction_keeps_proportions(counts: list[int], fraction: float, seed: int) -> None:
    split = rows(counts)
    part = stratified_fraction(split, fraction, seed)
    taken = np.bincount(part.labels, minlength=len(counts))
    assert (taken >= 1).all()
    assert all(abs(got - count * fraction) <= 1 for got, count in zip(taken, counts, strict=True))
    assert set(part.ids) <= set(split.ids) and len(set(part.ids)) == len(part)
    if (np.floor(np.array(counts) * fraction) >= 1).all():
        assert len(part) == round(sum(counts) * fraction)
    assert part.fingerprint == stratified_fraction(split, fraction, seed).fingerprint


def test_a_smaller_fraction_is_inside_a_larger_one_and_seeds_differ() -> None:
    split = rows([300, 500])
    small, large = stratified_fraction(split, 0.1, 0), stratified_fraction(split, 0.5, 0)
    assert set(small.ids) < set(large.ids)
    assert small.fingerprint != stratified_fraction(split, 0.1, 1).fingerprint
    assert stratified_fraction(split, 1, 0) is split
    draws = [rows_of_each_label(split, 8, seed) for seed in range(3)]
    assert len({draw.fingerprint for draw in draws}) == 3
    assert set(draws[1].ids) < set(stratified_fraction(split, 0.1, 1).ids)


@given(st.lists(st.integers(1, 60), min_size=2, max_size=4), st.integers(1, 80), st.integers(0, 5))
def test_rows_of_each_label(counts: list[int], most: int, seed: int) -> None:
    split = rows(counts)
    part = rows_of_each_label(split, most, seed)
    assert np.bincount(part.labels, minlength=len(counts)).tolist() == [min(count, most) for count in counts]
    assert part.ids == [identity for identity in split.ids if identity in set(part.ids)]
    assert part.fingerprint == rows_of_each_label(split, most, seed).fingerprint
    assert set(part.ids) <= set(rows_of_each_label(split, most + 1, seed).ids)


@given(st.floats(0.01, 1), st.permutations(range(40)))
def test_tails_by_words(fraction: float, order: list[int]) -> None:
    split = rows([20, 20]).select(order)
    longest, shortest = length_tail(split, "longest", fraction), length_tail(split, "shortest", fraction)
    size = max(1, round(40 * fraction))
    assert sorted(longest.word_counts) == sorted(split.word_counts)[-size:]
    assert sorted(shortest.word_counts) == sorted(split.word_counts)[:size]
    assert longest.ids == [identity for identity in split.ids if identity in set(longest.ids)]
    assert set(longest.ids) == set(length_tail(rows([20, 20]), "longest", fraction).ids)


def numbered(texts: list[str], labels: list[int], name: str = "train") -> TextSplit:
    rows = range(len(texts))
    return TextSplit(name, texts, np.array(labels), [str(row) for row in rows], [(row,) for row in rows])


def test_fingerprint_depends_on_text_label_and_order_only() -> None:
    base = numbered(["ab", "c"], [0, 1])
    assert base.fingerprint == numbered(["ab", "c"], [0, 1], name="other").fingerprint
    different = [numbered(["a", "bc"], [0, 1]), numbered(["ab", "c"], [1, 0]), numbered(["c", "ab"], [1, 0])]
    assert len({base.fingerprint, *(other.fingerprint for other in different)}) == 4
    assert len(base.fingerprint) == 16

    # Every part of a dataset is in its fingerprint.
    def of(**more: object) -> str:
        splits = {"train": numbered(["a"], [0])}
        return TextDataset("x", "split", ["a", "b"], splits, "train", ["train"], **more).fingerprint

    text = numbered(["c"], [1])
    assert len({of(), of(auxiliary=text), of(unlabelled=text), of(auxiliary=text, unlabelled=text)}) == 4
    # Hashes are in records: they stay what they are.
    assert [of(auxiliary=text), of(unlabelled=text)] == ["55b900a5b32a83e9", "d0195c0cb5b07525"]


@given(st.lists(st.integers(0, 12_000), min_size=1, max_size=50))
def test_every_text_is_in_one_bin(words: list[int]) -> None:
    summary = summarise_lengths(np.array(words))
    assert sum(summary.counts) == len(words)
    assert len(summary.edges) == len(summary.counts) + 1
    assert summary.edges == sorted(set(summary.edges))
    for low, high, count in zip(summary.edges, summary.edges[1:], summary.counts, strict=False):
        assert count == sum(low <= word < high for word in words)


def test_record_counts_rows_and_labels() -> None:
    splits = {"train": numbered(["a b", "c"], [1, 1])}
    dataset = TextDataset("x", "split", ["no", "yes"], splits, "train", ["train"], {"empty": 2}, ["note"])
    record = dataset.record({"kind": "WordPiece"})
    assert record.splits["train"].label_counts == {"no": 0, "yes": 2}
    assert record.splits["train"].words.mean == 1.5
    assert record.fingerprint == dataset.fingerprint
    assert (record.dropped, record.notes, record.tokenizer) == ({"empty": 2}, ["note"], {"kind": "WordPiece"})
