"""Every defect of a user's file: one line that says what, where and what to do."""

from __future__ import annotations

import bz2
import csv
import io
import json
import lzma
import os
import tracemalloc
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import DataError
from recurra.data import formats, tables
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.labels import SeveralLabels, read_table
from recurra.data.tables import stream_rows, stream_texts

ROWS = [('Good, "really" good', "pos"), ("Bad\nfilm", "neg"), ("été 日本 😀", "pos")]


def write(folder: Path, suffix: str, rows=ROWS) -> Path:
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": [r[0] for r in rows], "label": [r[1] for r in rows]}), path)
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": t, "label": label}) + "\n" for t, label in rows), encoding="utf-8")
    else:
        separator = {".csv": ",", ".tsv": "\t"}[suffix]
        quote = lambda cell: '"' + cell.replace('"', '""') + '"'  # noqa: E731
        lines = [separator.join(["text", "label"]), *(separator.join(map(quote, row)) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def put(folder: Path, content: str | bytes, name: str = "rows.csv") -> Path:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / name


def refused(path: Path, *parts: str, **columns: str) -> None:
    with pytest.raises(DataError) as caught:
        read_table(path, columns.get("text", "text"), columns.get("label", "label"), columns.get("group"))
    message = str(caught.value)
    assert "\n" not in message and len(message) < 700
    assert [part for part in (path.name, *parts) if part not in message] == []


def test_a_misspelt_column_is_answered_with_the_closest(tmp_path: Path) -> None:
    for suffix in (".csv", ".jsonl", ".parquet"):
        path = write(tmp_path, suffix)
        refused(path, "no column 'txt'", "did you mean 'text'?", "'label'", "--text-column", text="txt")
        refused(path, "no column ','; its columns are 'text', 'label'", text=",")
        refused(path, "no column 'lable'", "did you mean 'label'?", label="lable")
        refused(path, "no column 'author'", group="author")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_file_without_rows(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix, [])
    if suffix == ".jsonl":
        path.write_text("\n\n")
    refused(path, "no rows")
    path.write_bytes(b"")
    refused(path, "empty")


def test_empty_texts_are_dropped_and_counted_and_all_empty_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, ".csv", [("good", "1"), ("  ", "1"), ("<br>", "0"), ("bad", "0")])
    table = read_table(path, "text", "label")
    assert (table.texts, table.empty) == (["good", "bad"], 2)
    refused(write(tmp_path, ".csv", [(" ", "1"), ("https://a.b", "0")]), "2 rows, all without text")
    (tmp_path / "n.JSONL").write_bytes(b'{"text": null, "label": 1}\r\n\r\n{"text": "a", "label": 0}\r\n')
    assert read_table(tmp_path / "n.JSONL", "text", "label").empty == 1


def test_a_line_without_end_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes(b"a\n" + b"x" * 60_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="line 2 is longer than"):
            list(stream_texts(path))
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_what_no_text_has_is_told_with_its_place(tmp_path: Path, suffix: str) -> None:
    place = "line 2" if suffix == ".jsonl" else "line 3"
    refused(write(tmp_path, suffix, [("good", "1"), ("x" * 1_000_000, "0")]), "500,000 characters", place)
    path = write(tmp_path, suffix, [("good", "1"), ("bad", "0")])
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"bad", b"b\0d"))
    refused(path, "NUL byte", place)
    path.write_bytes(whole.replace(b"bad", b"caf\xe9"))
    before = whole.index(b"bad") + 3
    column = before - whole.rindex(b"\n", 0, before)
    refused(path, f"{place}, byte {column} (byte {before + 1} of the file)", "0xe9", "UTF-8")


def test_characters_that_are_escaped_and_none(tmp_path: Path) -> None:
    refused(write(tmp_path, ".jsonl", [("a\0b", "1")]), "line 1", "NUL")
    refused(write(tmp_path, ".jsonl", [("good", "1\0")]), "NUL")
    refused(write(tmp_path, ".jsonl", [("a\ud83d", "1")]), "line 1", "\\ud83d", "Unicode")
    refused(write(tmp_path, ".parquet", [("a\0b", "1")]), "row 1", "NUL")
    refused(write(tmp_path, ".parquet", [("good", "1"), ("x" * 1_000_000, "0")]), "row 2", "500,000 characters")


OBJECT = '{"text": "a", "label": 1}\n'


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("rows.csv", 'text,label\n"good,1\nbad,0\n', ["line 2", "never closed"]),
        ("rows.csv", 'text,label\ngood,1\n"bad" film,0\n', ["line 3", "follows a closing quotation mark"]),
        ("rows.csv", "text,label\ngood,1\nbad, really,0\n", ["line 3", "3 fields", "header has 2", "double quotes"]),
        ("rows.csv", 'text,label\n"a\nb\nc",1\nd,0\n"x"y,1\n', ["line 6"]),
        ("rows.csv", "text,label\ngo\rod,1\n", ["carriage return"]),
        ("rows.csv", "text,label\rgood,1\r", ["or ends every line: save those with line feeds"]),
        ("rows.csv", 'text,label\n"' + "good,1\n" * 100_000, ["line 2", "quotation mark that was left open"]),
        # Semicolons of a file of commas are characters.
        ("rows.csv", "text;label\ngood;1;2\n", ["line 2 has 3 fields", "header has 2"]),
        ("rows.csv", "te\rxt,label\ngood,1\n", []),
        ("rows.csv", "text\r\r,label\ngood,1\n", []),
        ("rows.csv", "TEXT,Text,label\nno,yes,1\n", ["no column 'text' but 'TEXT', 'Text'"]),
        ("rows.csv", "text,label,id,text\na,b,c,d\n", ["has 2 columns 'text'; rename all but one"]),
        ("rows.csv", "text,label,id,id\na,b,c,d\n", ["has 2 columns 'id'; rename all but one"]),
        ("rows.csv", f"text,label\na,0\nb,{'9' * 501}\n", ["line 3 has a label of 501", "most 500", "--label-column"]),
        ("rows.jsonl", OBJECT + '{"text": "b", ', ["line 2", "column", "not valid JSON"]),
        ("rows.jsonl", OBJECT + '{"label": 0}', ["line 2", "no column 'text'"]),
        ("rows.jsonl", OBJECT + '{"text": 5, "label": 0}', ["line 2", "the text is 5", "int"]),
        ("rows.jsonl", OBJECT + '{"text": "b", "label": [0, 1]}', ["line 2", "'label'", "list"]),
        ("rows.jsonl", OBJECT + "[" * 100_000, ["line 2", "not valid JSON"]),
        (
            "rows.jsonl",
            f'{{"text": "b", "label": {"9" * 5000}}}',
            ["line 1", "a number of thousands of digits; put it"],
        ),
        ("rows.jsonl", '{"text": "a"}\n{"text": "b"}\n', ["has no column 'label'; its columns are 'text'"]),
        ("rows.json", b'[{"text": "\xff"}]', ["is not utf-8: byte 0xff"]),
        ("rows.json", '["a"]', ["row 1 holds a str"]),
        ("rows.json", '"abc"', ["row 1 holds a str"]),
        ("rows.parquet", "text,label\na,1\n", ["incomplete or damaged Parquet file"]),
        ("rows.csv", b"PK\x03\x04\x14\0\6\0", ["is a zip archive, as Excel writes it", ".xlsx"]),
        ("rows.csv", b"PAR1\x15\4\x15\0", ["is Parquet; rename it to end in .parquet"]),
        ("rows.jsonl", lzma.compress(b"{}"), ["is compressed by xz", ".xz"]),
        ("rows.json", bz2.compress(b"[]"), ["is compressed by bzip2", ".bz2"]),
    ],
)
def test_a_broken_file_is_told_with_its_place(
    name: str, content: str | bytes, parts: list[str], tmp_path: Path
) -> None:
    refused(put(tmp_path, content, name), *parts)


def test_a_document_is_read_whole_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_table(put(tmp_path, f"[{OBJECT}]", "rows.jsonl"), "text", "label").texts == ["a"]
    monkeypatch.setattr(formats, "MAX_DOCUMENT_BYTES", 4)
    refused(put(tmp_path, '["a"]', "rows.json"), "has more than 4 bytes", "one JSON object a line (.jsonl)")
    # With an object a line nothing is read whole.
    path = put(tmp_path, f"\n{OBJECT}\n{OBJECT}", "rows.json")
    assert read_table(path, "text", "label").texts == ["a", "a"]


def test_parquet_that_is_damaged_or_has_a_column_twice(tmp_path: Path) -> None:
    path = write(tmp_path, ".parquet", [("good film " * 50, "1")] * 2000)
    content = bytearray(path.read_bytes())
    content[10:60] = bytes(50)
    path.write_bytes(bytes(content))
    refused(path, "damaged")
    pq.write_table(pa.table([["a"]] * 3, names=["text", "label", "label"]), path)
    refused(path, "has 2 columns 'label'; rename all but one")


def test_ids_and_groups(tmp_path: Path) -> None:
    table = read_table(put(tmp_path, "id,text,label,author\nx1,a,1,ann\nx2,b,0,\n"), "text", "label", "author")
    assert (table.ids, table.groups) == (["x1", "x2"], ["ann", ""])
    path = put(tmp_path, "id,text,label\nx1,a,1\nx2,b,0\nx1,c,0\n")
    numbered = read_table(path, "text", "label")
    assert numbered.ids == ["line-2", "line-3", "line-4"] and "line 4 has the id 'x1' of line 2" in numbered.notes[0]
    with pytest.raises(DataError, match="make the ids unique, or leave --id-column out"):
        read_table(path, "text", "label", None, "id")
    days = pa.array([date(2026, 1, 2), date(2026, 1, 3)])
    pq.write_table(pa.table({"id": days, "text": ["a", "b"], "label": [1, 0]}), tmp_path / "days.parquet")
    assert read_table(tmp_path / "days.parquet", "text", "label", "id").ids == ["2026-01-02", "2026-01-03"]
    path = put(tmp_path, '{"id": {"$oid": "5f"}, "text": "a", "label": 1}\n', "mongo.jsonl")
    assert read_table(path, "text", "label").ids == ["{'$oid': '5f'}"]
    # Only what is asked for is looked for in other spellings, and a name as it is written wins.
    table = read_table(put(tmp_path, "ID,TEXT,text,label\n7,no,yes,1\n7,no,well,0\n"), "text", "label")
    assert (table.texts, table.ids) == (["yes", "well"], ["line-2", "line-3"])


def test_paths_that_are_no_table(tmp_path: Path) -> None:
    write(tmp_path, ".csv")
    refused(tmp_path / "row.csv", "does not exist", "did you mean 'rows.csv'?")
    refused(tmp_path, "is a folder")
    for name in ("rows.docx", "rows", "rows.gz"):
        (tmp_path / name).write_text("x")
        refused(tmp_path / name, "unknown extension", ".csv, .tsv, .jsonl, .json, .parquet")
    (tmp_path / "rows.parquet.gz").write_text("x")
    refused(tmp_path / "rows.parquet.gz", "is compressed twice, since .parquet is", "decompress it once")
    os.mkfifo(tmp_path / "pipe.csv")
    refused(tmp_path / "pipe.csv", "is a named pipe, which cannot be read twice")
    for impossible in ("x" * 300 + ".csv", "a\0.csv", "rows.csv/rows.csv"):
        for read in (lambda path: read_table(path, "text", "label"), lambda path: list(stream_texts(path))):
            with pytest.raises(DataError, match=r"(File name too long|does not exist).*; give the path of a file"):
                read(tmp_path / impossible)


@pytest.mark.parametrize(
    ("content", "column", "texts"),
    [
        (b"one\n\ntwo\n", "text", ["one", "", "two"]),
        (b'{"text": "a"}\n{"text": "b"}\n', "text", ["a", "b"]),
        (b'{"title": "a", "body": "b"}\n{"body": "d", "title": "c"}\n', "title, body", ["a b", "c d"]),
        (b"", "text", []),
        (b'\xef\xbb\xbftext,label\n"a dull, slow mess",x\n', "text", ["a dull, slow mess"]),
        (b"title\tn\tBody\na\t1\tb\n", "title,body", ["a b"]),
        # A table of one column cannot be told from texts.
        (b"text\na, b\n", "text", ["text", "a, b"]),
        (b'"text, one\ntwo, "three\n', "text", ['"text, one', 'two, "three']),
        (b"text, and more\nI like it\n", "text", ["text, and more", "I like it"]),
    ],
)
def test_standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes, column: str, texts: list[str]) -> None:
    monkeypatch.setattr(tables.sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert [text for chunk in stream_texts("-", column) for text in chunk] == texts


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))),
    separator=st.sampled_from([*formats.SEPARATORS]),
    column=st.sampled_from(["text", "Text", " TEXT"]),
)
def test_the_header_of_a_table_on_standard_input_is_no_text(texts: list[str], separator: str, column: str) -> None:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=separator, quoting=csv.QUOTE_ALL)
    writer.writerows([["id", column, "label"], *(["1", text, separator] for text in texts)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables.sys, "stdin", io.TextIOWrapper(io.BytesIO(stream.getvalue().encode())))
        assert [text for chunk in stream_texts("-") for text in chunk] == texts


def test_what_came_before_a_defect_was_yielded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables.sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text,label\ngood,1\nbad\n")))
    with pytest.raises(DataError, match="standard input line 3 has 1 fields, the header has 2"):
        list(stream_texts("-"))
    stream = stream_texts(put(tmp_path, b'one\r\n\n{"text": 1}\n\xff\n', "rows.txt"), chunk_rows=1)
    assert [next(stream) for _ in range(3)] == [["one"], [""], ['{"text": 1}']]
    with pytest.raises(DataError, match="line 4, byte 1"):
        next(stream)


# A batch of Parquet has a number of rows of its own.
@pytest.mark.parametrize(("suffix", "rows"), [(".csv", 8_000), (".jsonl", 8_000), (".parquet", 40_000)])
def test_a_large_file_streams_in_constant_memory(tmp_path: Path, suffix: str, rows: int) -> None:
    text = "word " * (1_600_000 // rows)
    path = write(tmp_path, suffix, [(f"row {index} {text}", "1") for index in range(rows)])
    tracemalloc.start()
    try:
        found = sum(len(chunk) for chunk in stream_texts(path, chunk_rows=rows // 80))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == rows
    # The texts alone are 8.1 MB or more; Python objects of one chunk and one Parquet batch stay far below.
    assert peak < 4_500_000


def test_a_label_has_at_most_500_characters(tmp_path: Path) -> None:
    assert read_table(write(tmp_path, ".csv", [("a", "9" * 500), ("b", "0")]), "text", "label").labels[0] == "9" * 500
    path = put(tmp_path, json.dumps({"text": "a", "label": ["1"] * 501}), "several.jsonl")
    assert read_table(path, "text", "label", labels=SeveralLabels("json")).labels == [("1",)]
    put(tmp_path, json.dumps({"text": "a", "label": ["1", "9" * 501]}), "several.jsonl")
    with pytest.raises(DataError, match="line 1 has a label of 501 characters"):
        read_table(path, "text", "label", labels=SeveralLabels("json"))


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_rows_that_a_stray_quotation_mark_swallowed_are_told(tmp_path: Path, suffix: str, separator: str) -> None:
    lines = [f"film number {number}{separator}{('neg', 'pos')[number % 2]}" for number in range(40)]
    lines[10] = '"' + lines[10]
    lines[14] = f'end of it"{separator}pos'
    # A text of several lines, with separators, is none of them if not every line would be a row.
    lines[20] = f'"first{separator} second\nthird{separator} fourth"{separator}neg'
    lines[22] = f'"dear all{separator} hello\nwe called it{separator} pos\nbye"{separator}neg'
    path = put(tmp_path, "\n".join([f"text{separator}label", *lines, ""]), f"rows{suffix}")
    (note,) = [note for note in load_dataset(DataConfig(name=str(path))).notes if "quotation mark" in note]
    assert "1 texts hold lines that look like further rows (first: line 12)" in note
    assert read_table(write(tmp_path, suffix), "text", "label").notes == []
    # A file of commas stays one whatever stands in names and texts.
    path = put(tmp_path, "text,a;b,label\ngood; fine,x,1\nbad,y,0\n")
    assert read_table(path, "text", "label").texts[0] == "good; fine"


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_headers_match_in_any_case_and_with_blanks_around(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix, [("good", "1"), ("bad", "0")])
    if suffix == ".parquet":
        pq.write_table(pq.read_table(path).rename_columns(["Text", " LABEL "]), path)
    else:
        # Of objects in the first line alone, for lines may differ.
        path.write_text(path.read_text().replace("text", "Text", 1).replace("label", " LABEL ", 1))
    table = read_table(path, "text", "label")
    assert (table.texts, table.labels) == (["good", "bad"], ["1", "0"])
    assert [text for chunk in stream_texts(path) for text in chunk] == ["good", "bad"]


def test_rows_without_a_label_are_listed_or_left_out_and_told(tmp_path: Path) -> None:
    rows = [(f"film number {number}", ("neg", "pos")[number % 2]) for number in range(40)]
    path = write(tmp_path, ".csv", [*rows, ("no label", ""), *[("nor this", " ")] * 30])
    refused(path, "31 rows without a label", "line 42, 43, 44", "and 11 more")
    with pytest.raises(DataError, match="or leave them out with --skip-unlabelled"):
        load_dataset(DataConfig(name=str(path)))
    table = read_table(path, "text", "label", skip_unlabelled=True)
    assert (len(table), table.unlabelled) == (40, list(range(42, 73)))
    dataset = load_dataset(DataConfig(name=str(path), skip_unlabelled=True))
    assert dataset.dropped == {"rows: without label": 31}
    assert any("31 rows" in note and "(line 42, 43" in note for note in dataset.notes)
    assert sum(len(split) for split in dataset.splits.values()) == 40
    with pytest.raises(DataError, match="2 rows with text, all without label"):
        read_table(write(tmp_path, ".csv", [("a", ""), ("b", "")]), "text", "label", skip_unlabelled=True)
    # Objects have no key where there is no label.
    written = '{"text": "a", "Label": "neg"}\n{"text": "b"}\n{"text": "c", "Label": "pos"}\n'
    objects = put(tmp_path, written, "objects.jsonl")
    refused(objects, "1 row without a label", "line 2")
    assert read_table(objects, "text", "label", skip_unlabelled=True).labels == ["neg", "pos"]


@pytest.mark.parametrize("cell", ['["\\ud800"]', '{"a": {"\\udfff": 1}}', '1, "\\uD800": 2'])
def test_half_of_a_pair_inside_another_cell_is_refused_with_its_line(tmp_path: Path, cell: str) -> None:
    second = f'{{"text": "fine \\ud83d\\ude00", "more": {cell}}}'
    path = put(tmp_path, f'{{"text": "good"}}\n{second}\n', "rows.jsonl")
    with pytest.raises(DataError, match="line 2 holds half of a pair"):
        list(stream_rows(path, "text", ["more"]))
    put(tmp_path, '{"text": "fine \\ud83d\\ude00", "more": ["\\ud83d\\ude00"]}\n', "rows.jsonl")
    (rows,) = stream_rows(path, "text", ["more"])
    assert rows.texts == ["fine \U0001f600"] and rows.columns == [[["\U0001f600"]]]
