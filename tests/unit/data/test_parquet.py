"""Parquet files are read in bounded memory, whatever they unfold to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import DataError
from recurra.data import parquet, tables
from recurra.data.labels import read_table
from recurra.data.parquet import iterate_parquet, read_parquet_table
from recurra.data.tables import stream_texts

LONG = "x" * 400_000
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


def columns_of(path: Path, *columns: str) -> dict[str, list[Any]]:
    return read_parquet_table(path, columns).to_pydict()


KINDS: dict[str, dict[str, Any]] = {
    "folded": {},
    "plain": {"use_dictionary": False},
    "prefixes": {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    "lengths": {"use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY"}},
    "as others write it": {"store_schema": False, "row_group_size": 3},
    "small pages": {"dictionary_pagesize_limit": 8, "data_page_size": 8},
}


def bomb(path: Path, rows: int = 50_000, text: str = LONG) -> Path:
    """One text in all rows: 20 GB in two kilobytes."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [text])
    labels = [row * 2 // rows for row in range(rows)]
    pq.write_table(pa.table({"text": texts, "label": labels}), path, compression="zstd")
    assert path.stat().st_size < 5000
    return path


@pytest.mark.parametrize("kind", KINDS)
@given(rows=st.lists(st.tuples(st.none() | TEXTS, st.integers(0, 3))))
def test_every_encoding_gives_the_same_values(kind: str, rows: list[tuple[str | None, int]], tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("p") / "r.parquet"
    texts, labels = [row[0] for row in rows], [row[1] for row in rows]
    columns = {"text": pa.array(texts, pa.string()), "label": pa.array(labels, pa.int64())}
    pq.write_table(pa.table(columns), path, **KINDS[kind])
    with mock.patch.object(parquet, "_BATCH_ROWS", 2):
        batches = list(iterate_parquet(path, ["text", "label"]))
    assert [text for batch in batches for text in batch["text"]] == texts
    assert [label for batch in batches for label in batch["label"]] == labels
    assert columns_of(path, "label", "text") == {"label": labels, "text": texts}


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_every_type_of_text(kind: pa.DataType, tmp_path: Path) -> None:
    texts = ["a", None, "b", "a"]
    column = pa.array(texts, pa.string()).cast(kind)
    pq.write_table(pa.table({"text": column}), tmp_path / "r.parquet")
    assert list(iterate_parquet(tmp_path / "r.parquet", ["text"])) == [{"text": texts}]
    # What a row counts for the bound of rows that are kept.
    assert parquet._text_bytes(column) == 3


def test_a_name_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"text": ["a"], "label": ["b"]}), path, store_schema=False)
    data = path.read_bytes()
    place = data.rindex(b"text")
    path.write_bytes(data[:place] + b"t\xe1xt" + data[place + 4 :])
    with pytest.raises(DataError, match="holds text that is not UTF-8"):
        list(iterate_parquet(path, ["label"]))


def test_what_unfolds_to_gigabytes_is_refused_before_it_is_kept(tmp_path: Path) -> None:
    path = bomb(tmp_path / "r.parquet")
    said = r"r.parquet' unfolds to more than 4,000,000,000 bytes of text in the first .* of its 50,000 rows"
    for read in (lambda: read_table(path, "text", "label"), lambda: columns_of(path, "text", "label")):
        with pytest.raises(DataError, match=said):
            read()
    assert columns_of(path, "label")["label"][-1] == 1


def test_the_bound_counts_texts_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bomb(tmp_path / "r.parquet", rows=100, text="y" * 1000)
    monkeypatch.setattr(parquet, "MAX_WHOLE_BYTES", 100 * (1000 + parquet.ROW_BYTES))
    assert len(columns_of(path, "text", "label")["text"]) == 100
    monkeypatch.setattr(parquet, "MAX_WHOLE_BYTES", 100 * (1000 + parquet.ROW_BYTES) - 1)
    assert len(columns_of(path, "label")["label"]) == 100
    with pytest.raises(DataError, match="in the first 100 of its 100 rows"):
        columns_of(path, "text", "label")
    monkeypatch.setattr(parquet, "MAX_WHOLE_BYTES", 100)
    with pytest.raises(DataError, match="in the first 100 of its 100 rows"):
        columns_of(path, "label")


STREAM = """
import sys
from recurra.core.environment import peak_memory_mib
from recurra.data.tables import stream_texts
before = peak_memory_mib()
rows = sum(len(chunk) for chunk in stream_texts(sys.argv[1]))
print(rows, round(peak_memory_mib() - before))
"""


@pytest.mark.parametrize("kind", ["folded", pytest.param("prefixes", marks=pytest.mark.slow)])
def test_streaming_takes_constant_memory(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    rows = 10_000 if kind == "folded" else 2000
    if kind == "folded":
        bomb(path, rows)
    else:
        pq.write_table(pa.table({"text": [LONG] * rows}), path, compression="zstd", **KINDS[kind])
    done = subprocess.run([sys.executable, "-c", STREAM, str(path)], capture_output=True, text=True, check=True)
    read, grown_mib = map(int, done.stdout.split())
    assert read == rows
    # All of it would be 4 GB and 800 MB, twice: in Arrow and as words of Python.
    assert grown_mib < 700


def test_a_chunk_of_long_texts_has_fewer_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bomb(tmp_path / "r.parquet", rows=10, text="y" * 1000)
    monkeypatch.setattr(tables, "MAX_CHUNK_CHARACTERS", 3000)
    assert [len(chunk) for chunk in stream_texts(path)] == [3, 3, 3, 1]
    assert [len(chunk) for chunk in stream_texts(path, chunk_rows=2)] == [2] * 5
    # What no text compresses to is refused.
    monkeypatch.undo()
    pq.write_table(pa.table({"text": ["z" * 400_000] * 10}), path, compression="zstd", use_dictionary=False)
    assert len(list(stream_texts(path))) == 1
    monkeypatch.setattr(parquet, "_SUSPECT_BYTES", 10**6)
    said = r"holds 4,000,\d+ bytes of column 'text' in [\d,]+, which no text compresses to"
    with pytest.raises(DataError, match=said):
        list(stream_texts(path))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([["a"], ["b"]]), "list<element: string>"),
        (pa.array([{"a": 1}, {"a": 2}]), "struct<a: int64>"),
        (pa.array([b"ab", b"cd"], pa.binary(2)), r"fixed_size_binary\[2\]"),
    ],
)
def test_columns_of_no_single_values_are_refused(values: pa.Array, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "other": values}), path)
    for read in (lambda: read_table(path, "text", "other"), lambda: list(stream_texts(path, "other"))):
        with pytest.raises(DataError, match=f"column 'other' holds {kind}; give a column of words or numbers"):
            read()
    # For corpora lists are read.
    lists = {"sources": [[1, 2], [], None, [3]], "words": [["a", "b"], ["a"], None, []]}
    pq.write_table(pa.table(lists), tmp_path / "r.parquet")
    assert columns_of(tmp_path / "r.parquet", "sources", "words") == lists
