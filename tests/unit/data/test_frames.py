"""Rows in memory: whatever they come in, the same file as a person would have written, under a name of its own."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import recurra
from recurra.core.errors import DataError
from recurra.data.columns import one_dimension
from recurra.data.frames import RowsInMemory, rows_in_memory
from recurra.data.labels import LabelColumns, SeveralLabels, read_table

TEXTS = ["a good film", "a bad film", "dull", "bright"]
WORDS = ["pos", "neg", "neg", "pos"]


def read(data: Any, **options: Any) -> RowsInMemory:
    found = rows_in_memory(data, options)
    assert found is not None
    return found


def written(rows: RowsInMemory, folder: Path) -> Path:
    rows.write(folder)
    return Path(rows.options(folder)["name"])


FORMS: dict[str, Any] = {
    "pair": (TEXTS, WORDS),
    "series": (pd.Series(TEXTS, index=[7, 3, 5, 1]), pd.Series(WORDS, dtype="category")),
    # A frame gives its columns as attributes: one of this name is no description of the others.
    "frame": pd.DataFrame({"label": pd.Categorical(WORDS), "features": 1, "text": pd.array(TEXTS, "string[pyarrow]")}),
    "dataset": datasets.Dataset.from_dict({"text": TEXTS, "label": WORDS}),
    "class labels": datasets.Dataset.from_dict({"text": TEXTS, "label": [1, 0, 0, 1]}).cast_column(
        "label", datasets.ClassLabel(names=["neg", "pos"])
    ),
    "splits": datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": TEXTS, "label": WORDS})}),
    "polars": pl.DataFrame({"other": [1, 2, 3, 4], "text": TEXTS, "label": pl.Series(WORDS, dtype=pl.Categorical)}),
    "polars columns": (pl.Series(TEXTS), pl.Series(WORDS)),
    "arrow": pa.table({"text": TEXTS, "label": WORDS}),
    "arrow columns": (pa.chunked_array([TEXTS]), pa.array(WORDS)),
    "mappings": [{"text": text, "label": word} for text, word in zip(TEXTS, WORDS, strict=True)],
    "mapping": {"text": TEXTS, "label": WORDS},
    "stream": datasets.Dataset.from_dict({"text": TEXTS, "label": WORDS}).to_iterable_dataset(),
    "arrays": (np.array(TEXTS, dtype=np.dtypes.StringDType()), np.array(WORDS, dtype=object)),
}
FORMS["columns"] = (FORMS["dataset"]["text"], FORMS["dataset"]["label"])
FORMS["streams"] = datasets.IterableDatasetDict({"train": FORMS["stream"]})


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_file(form: str, tmp_path: Path) -> None:
    path = written(read(FORMS[form]), tmp_path)
    table = read_table(path, "text", "label")
    assert (table.texts, table.labels) == (TEXTS, WORDS)
    assert path.name == written(read(FORMS["pair"]), tmp_path / "other").name
    assert pd.read_parquet(path).to_dict("list") == {"text": TEXTS, "label": WORDS}


def test_columns_are_named_as_in_files_and_groups_and_ids_come_along(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": [4, 2, 3, 1], "body": TEXTS, "stars": [1.0, 2.0, 2.0, 1.0], "author": list("abab")})
    rows = read(frame, text_column="body", label_column="stars", group_column="author")
    table = read_table(written(rows, tmp_path), "body", "stars", "author")
    assert (table.texts, table.labels) == (TEXTS, ["1", "2", "2", "1"])
    assert (table.groups, table.ids) == (list("abab"), list("4231"))
    ids = [uuid.UUID(int=number) for number in range(4)]
    rows = read(frame.assign(id=ids, body=TEXTS), text_column="body", label_column="stars")
    assert read_table(written(rows, tmp_path), "body", "stars").ids == [*map(str, ids)]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([True, False, np.bool_(False), True], ["true", "false", "false", "true"]),
        (pd.Series([1, 2, 2, 1], dtype="Int64"), ["1", "2", "2", "1"]),
        ([np.float32(0.5), 2.0, 3, "4"], ["0.5", "2", "3", "4"]),
    ],
)
def test_labels_may_be_numbers(labels: Any, words: list[str], tmp_path: Path) -> None:
    assert read_table(written(read((TEXTS, labels)), tmp_path), "text", "label").labels == words


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA, pd.NaT])
def test_a_missing_text_is_left_out_and_a_missing_label_refused_as_in_files(nothing: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": [*TEXTS, nothing], "label": [*WORDS, "pos"]}, dtype=object)
    table = read_table(written(read(frame), tmp_path), "text", "label")
    assert (table.texts, table.empty) == (TEXTS, 1)
    unlabelled = written(read((TEXTS, ["pos", nothing, "neg", "pos"])), tmp_path)
    with pytest.raises(DataError, match=r"1 row without a label in column 'label' \(row 2 of \(texts, labels\)\)"):
        read_table(unlabelled, "text", "label")


@pytest.mark.parametrize("kind", [list, tuple, np.array, set])
def test_lists_of_labels_are_read_as_several_labels(kind: Any, tmp_path: Path) -> None:
    cells = [kind(["late"]), kind(["broken", "late"]), None, kind(["broken"])]
    rows = read(pd.DataFrame({"text": TEXTS, "label": cells}))
    assert rows.options(tmp_path)["label_separator"] == "json"
    table = read_table(written(rows, tmp_path), "text", "label", labels=SeveralLabels("json"))
    assert table.labels == [("late",), ("broken", "late"), (), ("broken",)]


def test_splits_are_files_of_their_own_and_all_rows_are_in_every_name(tmp_path: Path) -> None:
    train, test = pd.DataFrame({"text": TEXTS, "label": WORDS}), pd.DataFrame({"text": ["x"], "label": ["pos"]})
    rows = read(train, test=test)
    options = rows.options(tmp_path)
    rows.write(tmp_path)
    assert read_table(options["test"], "text", "label").texts == ["x"] and set(options) == {"name", "test"}
    assert options["test"] == options["name"].replace(".parquet", "-test.parquet")
    other = read(train, test=test.assign(label="neg")).options(tmp_path)
    assert other["name"] != options["name"]
    first, last = map(datasets.Dataset.from_pandas, (train, test))
    given = datasets.DatasetDict({"train": first, "validation": first, "test": last})
    assert read(given).parts == read(train, validation=train, test=test).parts


def test_a_file_is_written_once_and_again_if_it_was_damaged(tmp_path: Path) -> None:
    path = written(read((TEXTS, WORDS)), tmp_path)
    before = path.read_bytes()
    assert written(read(FORMS["frame"]), tmp_path).read_bytes() == before
    for damage in (before[:-3], b"", written(read((TEXTS, WORDS[::-1])), tmp_path / "other").read_bytes()):
        path.write_bytes(damage)
        assert written(read((TEXTS, WORDS)), tmp_path).read_bytes() == before


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"a", "b"}, "data is a set; give a file, a DataFrame, (texts, labels), a list of mappings or a Dataset"),
        ((TEXTS,), "data is a tuple of 1; give a file"),
        (("a text", WORDS), "texts is a str; give a list, an array or a Series"),
        ((TEXTS, WORDS[1:]), "data has 4 texts and 3 labels; give one label a text"),
        ({"text": TEXTS, "label": ["x"]}, "the dict has columns of different lengths ('text' 4, 'label' 1); give"),
        ((TEXTS, np.eye(4)), "labels has the shape (4, 4); give one column of values"),
        (([*TEXTS[1:], 3.5], WORDS), "(texts, labels) row 4: the text is 3.5, a float; give text, in quotes"),
        ((TEXTS, [*WORDS[1:], b"pos"]), "(texts, labels) row 4: column 'label' holds b'pos', a bytes"),
        ((TEXTS, ["pos", ["neg"], [], []]), "row 1 of (texts, labels) has one label, 'pos', where others have lists"),
        (pd.DataFrame({"txt": TEXTS, "label": WORDS}), "the DataFrame has no column 'text' (did you mean 'txt'?)"),
        (pd.DataFrame([["a", "b", "c"]], columns=["text", "text", "label"]), "has 2 columns 'text'; rename all but"),
        (datasets.DatasetDict({"test": FORMS["dataset"]}), "data is a DatasetDict of test; give a split"),
        (datasets.DatasetDict(dict.fromkeys(("train", "valid"), FORMS["dataset"])), "split 'valid' (did you mean 'val"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(data: Any, said: str) -> None:
    with pytest.raises(DataError) as caught:
        rows_in_memory(data, {})
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_splits_that_come_twice_and_groups_without_columns_are_refused() -> None:
    both = datasets.DatasetDict(dict.fromkeys(("train", "test"), FORMS["dataset"]))
    for test in (FORMS["dataset"], "test.csv"):
        with pytest.raises(DataError, match="test was given both in the DatasetDict and as test="):
            rows_in_memory(both, {"test": test})
    with pytest.raises(DataError, match="validation is a DatasetDict of train, test; give a split"):
        rows_in_memory("a.csv", {"validation": both})
    with pytest.raises(DataError, match=r"the column 'author' was named, but \(texts, labels\) have no columns"):
        rows_in_memory((TEXTS, WORDS), {"group_column": "author"})


def test_columns_of_zeros_and_ones_and_texts_in_several_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame({"title": "T", "body": TEXTS, "late": [1, 0, 1, 0], "rude": [True, False, False, None]})
    with pytest.raises(DataError, match=r"the DataFrame has no column 'late'.*--label-columns"):
        rows_in_memory(frame.drop(columns="late"), {"text_column": "body", "label_columns": ["late", "rude"]})
    rows = read(frame[:3], text_column="title,body", label_columns=["late", "rude"])
    assert set(rows.options(tmp_path)) == {"name"}
    table = read_table(written(rows, tmp_path), "title,body", "label", labels=LabelColumns(["late", "rude"]))
    assert table.labels == [("late", "rude"), (), ("late",)] and table.texts[0] == "t a good film"


def test_messages_name_the_frame_and_arguments(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": TEXTS, "label": [*WORDS[:3], None]})
    with pytest.raises(DataError) as caught:
        recurra.compare(frame, models="linear", output=tmp_path / "runs", quiet=True)
    message = str(caught.value)
    assert "skip_unlabelled=True" in message and "row 4 of the DataFrame" in message
    assert "--" not in message and "parquet" not in message
    with pytest.raises(DataError, match=r"name the right one with text_column=$"):
        recurra.compare(frame.rename(columns={"text": "body"}), models="linear", output=tmp_path / "runs", quiet=True)


TABLES: dict[str, Any] = {
    "array": lambda columns: np.array([*zip(*columns.values(), strict=True)]),
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_of_one_column_gives_its_plain_values_and_another_is_no_column(table: Any) -> None:
    values = one_dimension(table({"text": ["a", "b"]}), "X")
    assert values == ["a", "b"] and {type(value) for value in values} == {str}
    for wrong in (table({"text": ["a"], "label": ["b"]}), np.array("a")):
        with pytest.raises(DataError, match=r"X has the shape .*; give one column of values"):
            one_dimension(wrong, "X")
