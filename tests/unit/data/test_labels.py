"""Labels in several spellings, labels that look missing, headers among the rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import DataError
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextDataset
from recurra.data.labels import join_spellings, looks_missing, read_table, spelling_key, spellings
from recurra.data.splits import load_split
from reviews import write_csv

ZERO_WIDTH = "neg\u200b"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        *((one, other, True) for one, other in (
            ("neg", "\u202eN\u00adeg\ufeff"), ("very good", "Very\u00a0 good"), ("stra\u00dfe", "STRASSE"),
            ("\u00e9t\u00e9", "e\u0301te\u0301"), ("1", "\uff11"), ("1", "1.0"), ("0", "-0.00"), ("0.5", ".50"),
        )),
        *((one, other, False) for one, other in (
            ("neg", "negative"), ("1", "-1"), ("1", "10"), ("1.0", "1.01"), ("+", "-"), ("1", "1a"), (".", "0"),
            ("1e3", "1000"), ("a b", "ab"), ("1" + "0" * 40, "1" + "0" * 39 + "1"), ("e", "\u00e9"),
        )),
    ],
)  # fmt: skip
def test_what_is_the_same_and_what_differs(one: str, other: str, same: bool) -> None:
    assert (spelling_key(one) == spelling_key(other)) == same


@given(st.text(max_size=12))
def test_a_key_is_its_own_key(label: str) -> None:
    assert spelling_key(spelling_key(label)) == spelling_key(label)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.integers(0, 5))
def test_numbers_are_equal_in_every_plain_form(number, zeros: int) -> None:
    text = f"{number:f}"
    assert spelling_key(f"{text}{'0' * zeros}") == spelling_key(text)
    assert spelling_key(text) != spelling_key(f"{number + 1:f}")


def test_the_most_frequent_wins_of_equals_the_first_and_what_looks_missing_is_none() -> None:
    assert spellings({"NEG": 2, "pos": 9, "neg": 5, "Neg": 2, "Pos": 9}) == [["neg", "NEG", "Neg"], ["pos", "Pos"]]
    assert spellings({"NA": 1, "na": 2, "null": 1}) == []
    assert all(map(looks_missing, ["NA", "null", "N/A", "NaN", "None", "?", "\u200b", "Na\u200bN"]))
    assert not any(map(looks_missing, ["no", "-", "0", "negative", "unknown"]))


def write(path: Path, *labels: str, rows: int = 30) -> str:
    """A file whose labels repeat in a circle, each row with a text of its own."""
    write_csv(path, [(f"{path.stem} text {number}", labels[number % len(labels)]) for number in range(rows)])
    return str(path)


def notes_on_labels(dataset: TextDataset) -> list[str]:
    return [note for note in dataset.notes if "differs in case" in note or "missing values" in note or "header" in note]


def test_spellings_are_told_and_left_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "neg", "pos", "neg", ZERO_WIDTH, "NEG", "1", "1.0", "NA", "null", "neg")
    dataset = load_dataset(DataConfig(name=path))
    assert len(dataset.label_names) == 8
    joined, missing = notes_on_labels(dataset)
    assert joined.endswith("joins them: 'neg' (9) = 'neg\\u200b' (3) = 'NEG' (3); '1' (3) = '1.0' (3).")
    assert "missing values are taken as classes: 'NA' (3), 'null' (3)" in missing


def test_spellings_are_joined_where_it_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "NEG", "pos", "neg", "neg", ZERO_WIDTH, "NA")
    dataset = load_dataset(DataConfig(name=path, join_labels=True))
    assert dataset.label_names == ["NA", "neg", "pos"]
    assert np.bincount(np.concatenate([split.labels for split in dataset.splits.values()])).tolist() == [5, 20, 5]
    said = "is written in one way, the first of each (join_labels): 'neg' (10) = 'NEG' (5) = 'neg\\u200b' (5)."
    assert notes_on_labels(dataset)[0].endswith(said)
    plain = load_dataset(DataConfig(name=write(tmp_path / "a.csv", "neg", "pos", "neg", "neg", "neg", "NA")))
    assert [split.fingerprint for split in plain.splits.values()] == [
        split.fingerprint for split in dataset.splits.values()
    ]
    # Several labels of a row are joined too, and none stands twice.
    table = read_table(write(tmp_path / "a.csv", "NEG", "pos", "neg"), "text", "label")
    table = replace(table, labels=[("NEG", "pos"), ("pos",), ("neg", "NEG"), ("neg",)] * 3 + [("neg",), (), ()])
    assert join_spellings(table).labels == [("neg", "pos"), ("pos",), ("neg",), ("neg",)] * 3 + [("neg",), (), ()]
    assert join_spellings(table, ["NEG", "POS"]).labels[:3] == [("NEG", "POS"), ("POS",), ("NEG",)]


def test_other_files_follow_the_spelling_of_the_training_rows(tmp_path: Path) -> None:
    path, test = write(tmp_path / "a.csv", "neg", "pos"), write(tmp_path / "t.csv", "NEG", "POS", "POS", "Neg", rows=80)
    with pytest.raises(DataError, match=r"has the label 'NEG'.*correct the label, train with data.join_labels=true or"):
        load_dataset(DataConfig(name=path, test=test))
    config = DataConfig(name=path, test=test, join_labels=True)
    dataset = load_dataset(config)
    assert dataset.splits["test"].labels.tolist() == [0, 1, 1, 0] * 20
    assert "'neg' (15) = 'NEG' (20) = 'Neg' (20); 'pos' (15) = 'POS' (40)" in notes_on_labels(dataset)[0]
    assert load_split(test, config, ["neg", "pos"]).labels.tolist() == [0, 1, 1, 0] * 20
    other = write(tmp_path / "o.csv", "NEG", "so so")
    with pytest.raises(DataError, match=r"the label 'so so', which the training data lacks.*correct the label or add"):
        load_split(other, config, ["neg", "pos"])


def test_a_repeated_header_is_told_with_its_places(tmp_path: Path) -> None:
    rows = [(f"text {number}", "ab"[number % 2]) for number in range(30)]
    path = write_csv(tmp_path / "a.csv", [*rows[:10], ("text", "label"), *rows[10:], (" text ", "label")])
    (note,) = notes_on_labels(load_dataset(DataConfig(name=str(path))))
    assert note.endswith("a.csv' repeats its header among the rows (line 12, 33), where it is taken as a text with a "
                         "label; remove it.")  # fmt: skip
    assert not read_table(write_csv(tmp_path / "b.csv", [("text", "a"), ("b", "label")]), "text", "label").notes
