"""Files as people have them: of any program, in any encoding; each row of the table in the documentation is read."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from recurra.cli.main import main
from recurra.core.errors import DataError
from recurra.data.cleaning import CAREFUL, NO_CLEANING
from recurra.data.configuration import DataConfig, MultiLabelData
from recurra.data.corpora import load_dataset
from recurra.data.labels import FileTable, LabelColumns, SeveralLabels, read_table
from recurra.data.tables import TableFile, stream_texts
from recurra.deployment.classifier import Classifier

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "own-data.md"
ROWS = [
    (f"the room number {number} was {('dirty', 'lovely')[number % 2]}", ("neg", "pos")[number % 2])
    for number in range(40)
]
SEVERAL = [(text, [label, *(["late"] if number % 3 == 0 else [])]) for number, (text, label) in enumerate(ROWS)]
FLAGS = [(text, str(number % 2), str(number % 3 // 2)) for number, (text, _) in enumerate(ROWS)]
LISTS = [(text, str(labels).replace(",", "@")) for text, labels in SEVERAL]


def table(separator: str = ",", header: str = "text,label", rows: list[tuple[str, ...]] = ROWS, end: str = "\n") -> str:
    lines = [header, *(",".join(row) for row in rows)]
    return "".join(line.replace(",", separator) + end for line in lines)


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def chosen(labels: list[str], question: str = "sentiment") -> dict[str, Any]:
    return {"result": [{"from_name": question, "type": "choices", "value": {"choices": labels}}]}


def label_studio(labels: list[list[str]]) -> list[dict[str, Any]]:
    pairs = zip(ROWS, labels, strict=True)
    return [{"id": n, "data": {"text": row[0]}, "annotations": [chosen(own)]} for n, (row, own) in enumerate(pairs)]


ONE, ANY = [[label] for _, label in ROWS], [labels for _, labels in SEVERAL]
OBJECTS = [{"text": text, "label": label} for text, label in ROWS]
FILES: dict[str, bytes] = {
    "commas.csv": table().encode(),
    "semicolons.csv": table(";").encode(),
    "declared.csv": ("sep=;\n" + table(";")).encode(),
    "tabs.csv": table("\t").encode(),
    "sheet.tsv": table("\t").replace("the room number 4 ", '"the room number 4 ').encode(),
    "marked.csv": table(end="\r\n").encode("utf-8-sig"),
    "unicode.csv": table("\t", end="\r\n").encode("utf-16"),
    "windows.csv": table().replace("room", "caf\u00e9").encode("cp1252"),
    "packed.csv.gz": gzip.compress(table().encode()),
    "packed.jsonl.xz": lzma.compress(json_lines(OBJECTS)),
    "packed.tsv.bz2": bz2.compress(table("\t").encode()),
    "lines.jsonl": json_lines(OBJECTS),
    "list.json": json.dumps(OBJECTS, indent=1).encode(),
    "columns.json": json.dumps({key: [row[key] for row in OBJECTS] for key in ("text", "label")}).encode(),
    "title.csv": table(header="title,body,label", rows=[("A room", *row) for row in ROWS]).encode(),
    "flags.csv": table(header="text,late,rude", rows=FLAGS).encode(),
    "bars.csv": table(rows=[(text, "|".join(labels)) for text, labels in SEVERAL]).encode(),
    "doccano-one.jsonl": json_lines([{"id": n, "text": t, "label": [own]} for n, (t, own) in enumerate(ROWS)]),
    "python.csv": table(";", rows=LISTS).replace("@", ",").encode(),
    "doccano.jsonl": json_lines([{"id": n, "text": text, "label": labels} for n, (text, labels) in enumerate(SEVERAL)]),
    "studio.json": json.dumps(label_studio(ONE)).encode(),
    "studio-many.json": json.dumps(label_studio(ANY)).encode(),
    "studio-min.json": json.dumps([
        {"text": text, "id": 1, "sentiment": label, "annotator": 1, "annotation_id": 2} for text, label in ROWS
    ]).encode(),
    "argilla.json": json.dumps([
        {"id": n, "fields": {"text": text}, "responses": {"label": [{"value": label}]}, "suggestions": {}}
        for n, (text, label) in enumerate(ROWS)
    ]).encode(),
    "prodigy.jsonl": json_lines([
        {"text": text, "options": [], "accept": [label], "answer": "accept", "_input_hash": n}
        for n, (text, label) in enumerate(ROWS)
    ]),
    "fasttext.txt": "".join(f"__label__{label} {text}\n" for text, label in ROWS).encode(),
    "tickets.csv": table(header="id,text,label", rows=[("7", *row) for row in ROWS]).encode(),
}  # fmt: skip


def documented() -> Iterator[str]:
    table = PAGE.read_text(encoding="utf-8").partition("`recurra data describe` … |\n")[2].partition("\n\n")[0]
    for row in table.splitlines()[1:]:
        yield "recurra data describe " + re.findall(r"`([^`]*)`", row.replace("\\|", "|"))[-1]


COMMANDS = list(documented())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_file_is_in_the_documentation() -> None:
    assert {shlex.split(command)[3] for command in COMMANDS} >= set(FILES)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_the_documentation_says_to_type_reads_every_row(command: str, folder: Path, capsys: Any) -> None:
    words = shlex.split(command)
    if words[3] == "sheet.xlsx":
        pytest.importorskip("openpyxl")
        pd.DataFrame(ROWS, columns=["text", "label"]).to_excel("sheet.xlsx", index=False)
    assert main([*words[1:], "--json"]) == 0, capsys.readouterr().err
    record = json.loads(capsys.readouterr().out)
    assert sum(split["rows"] for split in record["splits"].values()) == len(ROWS)
    assert set(record["label_names"]) <= {"neg", "pos", "late", "rude"}


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("title.csv", "windows.csv")])
def test_predict_reads_what_compare_reads(name: str, folder: Path) -> None:
    texts = [text for chunk in stream_texts(name) for text in chunk]
    assert sorted(texts) == sorted(
        text.replace("the room number 4 ", '"the room number 4 ') if name == "sheet.tsv" else text for text, _ in ROWS
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("semicolons.csv", "with semicolons between its fields, as its header has them"),
        ("declared.csv", "with semicolons between its fields, as its line sep=; says"),
        ("tabs.csv", "with tabs between its fields"),
        ("sheet.tsv", "with its quotation marks as characters"),
        ("unicode.csv", "as UTF-16, as its first bytes say"),
        ("studio.json", "as an export of Label Studio"),
        ("tickets.csv", "39 values"),
        ("bars.csv", "--label-separator '|'"),
    ],
)
def test_how_a_file_is_read_is_noted(name: str, said: str, folder: Path) -> None:
    assert any(said in note for note in load_dataset(DataConfig(name=name)).notes)


def read(folder: Path, written: Any, **how: Any) -> FileTable:
    """Reads values that are written as JSON."""
    (folder / "rows.json").write_text(json.dumps(written))
    return read_table(folder / "rows.json", "text", "label", **how)


def test_of_several_answers_to_a_text_the_first_counts_and_a_note_says_so(tmp_path: Path) -> None:
    studio, argilla = label_studio(ONE), json.loads(FILES["argilla.json"])
    for number, row in enumerate(studio):
        cancelled = {"was_cancelled": True, "result": []}
        row["annotations"] = [cancelled, *row["annotations"], *[chosen(["pos"])][: number % 2]]
    for number, row in enumerate(argilla):
        row["responses"]["label"] += [{"value": "pos"}][: number % 2]
    for rows in (studio, argilla):
        table = read(tmp_path, rows)
        assert list(zip(table.texts, table.labels, strict=True)) == ROWS
        assert any(note.startswith("20 texts of ") and "the first of each counts" in note for note in table.notes)
    assert not any("several annotations" in note for note in read(tmp_path, label_studio(ONE)).notes)


# What is answered with two labels, with none, and twice not at all.
EXPORTS: dict[str, tuple[Callable[[str, Any], dict[str, Any]], list[Any]]] = {
    "studio": (
        lambda text, annotations: {"data": {"text": text}, "annotations": annotations},
        [[chosen(["x", "z"], "label")], [{"result": []}], [{"was_cancelled": True, "result": []}], []],
    ),
    "prodigy": (
        lambda text, answer: {"text": text, "accept": answer[0], "answer": answer[1], "_input_hash": 1},
        [(["x", "z"], "accept"), ([], "accept"), (["x"], "reject"), (["x"], "ignore")],
    ),
    "argilla": (
        lambda text, replies: {
            "fields": {"text": text},
            "responses": {"label": [{"value": own} | ({"status": how} if how else {}) for own, how in replies]},
        },
        REPLIES := [
            [(["x"], "draft"), (["x", "z"], "submitted")], [([], None)], [(["x"], "discarded")], [(["x"], "draft")],
        ],
    ),
    "argilla 1": (
        lambda text, replies: {
            "fields": {"text": text},
            "responses": [{"values": {"label": {"value": own}}, "status": how} for own, how in replies],
        },
        REPLIES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("tool", EXPORTS)
def test_a_text_that_nobody_answered_is_not_one_without_labels(tool: str, tmp_path: Path) -> None:
    build, answers = EXPORTS[tool]
    rows = [*map(build, ("a b", "c d", "e f", "g h"), answers)]
    with pytest.raises(DataError, match="has 2 rows without a label in column 'label'"):
        read(tmp_path, rows, labels=SeveralLabels("json"))
    found = read(tmp_path, rows, labels=SeveralLabels("json"), skip_unlabelled=True)
    assert (found.texts, found.labels) == (["a b", "c d"], [("x", "z"), ()])


def test_answers_are_labels_if_the_file_has_one_question_and_no_labels_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "studio.json"
    rows = label_studio(ONE)
    rows[0]["data"]["label"] = "old"
    path.write_text(json.dumps(rows))
    file = TableFile(path)
    assert [label for _, (label,) in file.rows(["label"])] == ["old", *[None] * (len(ROWS) - 1)]
    assert "column 'label' of" in file.notes[1] and "the answers are in the column 'sentiment'" in file.notes[1]
    assert read_table(path, "text", "sentiment").labels == [label for _, label in ROWS]
    rows[1]["annotations"] = []
    path.write_text(json.dumps(rows).replace('"sentiment"', '"label"'))
    assert [label for _, (label,) in TableFile(path).rows(["label"])][:3] == [["neg"], "", ["neg"]]


@pytest.mark.parametrize(
    "written",
    [
        {"text": {"0": "a b", "1": "c d"}, "label": {"1": "z", "0": "x"}},
        {"5": {"text": "a b", "label": "x"}, "3": {"label": "z", "text": "c d"}},
        {"5": {"Text": "a b", " label": "x"}, "3": {"LABEL": "z", "Text": "c d"}},
        {"text": ["a b", "c d"], "label": ["x", "z"], "meta": [{"a": 1}, {"a": 2}]},
        {"Text": ["a b", "c d"], "Label": ["x", "z"], "meta": [{"a": 1}, {"a": 2}]},
        {"data": [{"text": "a b", "label": "x"}, {"text": "c d", "label": "z"}], "errors": []},
        {"labels": ["x", "z"], "data": [{"text": "a b", "label": "x"}, {"text": "c d", "label": "z"}], "v": 1},
        # A column called answer is no sign of a tool.
        [{"text": "a b", "label": "x", "answer": "Yes, we do."}, {"text": "c d", "label": "z", "answer": "No."}],
        # A field keeps its text beside a question of its name.
        [
            {"fields": {"text": "a"}, "responses": {"label": [{"value": "x"}], "text": [{"value": "a b"}]}},
            {"fields": {"text": "c d"}, "responses": {"label": [{"value": "z"}]}},
        ],
    ],
)
def test_json_is_read_as_columns_rows_or_answers(written: Any, tmp_path: Path) -> None:
    found = read(tmp_path, written)
    assert (found.texts, found.labels) == (["a b", "c d"], ["x", "z"])
    assert bool(found.notes) == ("fields" in str(written))


def test_a_cell_that_a_spreadsheet_took_for_a_number_is_a_text_and_other_sheets_are_noted(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "Jan"
    for row in [("Text", "n", "label"), (12, 1, 1), (True, 2, 0), ("#N/A", 3, 1), ("fine", 4, 0)]:
        book.active.append(row)
    book.create_sheet("Feb").append(("text", "label"))
    book.save(tmp_path / "sheet.xlsx")
    found = read_table(tmp_path / "sheet.xlsx", "text", "label")
    assert (found.texts, found.labels, found.empty) == (["12", "true", "fine"], ["1", "0", "0"], 1)
    assert "Only the sheet 'Jan' of " in found.notes[0] and "is read, not 'Feb'" in found.notes[0]
    assert [n for _, (n,) in TableFile(tmp_path / "sheet.xlsx", ["text"]).rows(["n"])] == [1, 2, 3, 4]


def test_compressed_files_of_fasttext_are_read(tmp_path: Path) -> None:
    (tmp_path / "ft.txt.gz").write_bytes(gzip.compress(FILES["fasttext.txt"]))
    assert read_table(tmp_path / "ft.txt.gz", "text", "label").labels == [label for _, label in ROWS]
    (tmp_path / "plain.txt.gz").write_bytes(gzip.compress(b"a text"))
    with pytest.raises(DataError, match=r"unknown extension '\.txt'"):
        read_table(tmp_path / "plain.txt.gz", "text", "label")


@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_line_of_spaces_is_blank_unless_the_file_has_one_column(separator: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    # In a file with tabs a quotation mark that does not close is a character.
    path.write_text("  \n" + table(separator).replace("\tpos", '"\tpos') + "   \n")
    assert read_table(path, "text", "label").labels == [label for _, label in ROWS]
    path.write_text("text\na\n  \nb\n")
    assert next(stream_texts(path)) == ["a", "  ", "b"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["windows.csv"], ["line 2", "0xe9", "--encoding cp1252"]),
        (["windows.csv", "--encoding", "cp1251x"], ["there is no such encoding", "cp1251"]),
        (["doccano.jsonl"], ["holds a list", "label_separator=json", "--label-separator json"]),
        (["flags.csv"], ["no column 'label'", "columns of 0 and 1 with --label-columns"]),
        (["flags.csv", "--label-columns", "late,text"], ["text and label are both 'text'"]),
        (["bars.csv", "--label-separator", ""], ["label_separator must not be empty"]),
        (["tickets.csv", "--id-column", "id"], ["line 3 has the id '7' of line 2", "leave --id-column out"]),
        (["passages.json"], ["not as Label Studio exports it", "marks passages"]),
        (["mixed.json"], ["row 2 is not as Argilla exports it ('fields'); export it again"]),
        (["cut.csv.gz"], ["incomplete or damaged compressed file"]),
        (["half.json"], ["line 1, column 38 is not valid JSON"]),
        (["keys.json"], ["one JSON object with 'text', 'label'", "a list of objects"]),
        (["title.csv", "--text-column", "title,bdy"], ["no column 'bdy' (did you mean 'body'?)"]),
        (["object.json"], ["one JSON object with 'a', 'b'", "a list of objects"]),
        (["unmarked.csv"], ["looks like UTF-16 without a byte order mark", "--encoding utf-16-le"]),
        (["unmarked.csv", "--encoding", "utf-16"], ["has no byte order mark", "utf-16-le or utf-16-be"]),
        (["packed.csv"], ["is compressed by gzip", "end in .gz"]),
        (["topics.json"], ["no column 'label'", "'sentiment', 'topic'", "--label-column"]),
        (["spans.jsonl"], ["line 1: column 'label' holds a list, [[0, 3, 'X']]", "it marks passages"]),
        (["named.jsonl"], ["line 1: column 'label' holds an object, {'name': 'neg'}; write the name of the label"]),
        (["objects.csv"], ['holds an object, \'{"name": "neg"}\'; write the name of the label']),
    ],
)
def test_what_cannot_be_read_is_one_line_with_a_way_out(
    arguments: list[str], parts: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passages = {"result": [{"type": "labels", "value": {"labels": ["x"]}}]}
    Path("passages.json").write_text(json.dumps([{"data": {"text": "a"}, "annotations": [passages]}]))
    Path("mixed.json").write_text(json.dumps([*json.loads(FILES["argilla.json"])[:1], {"id": 1}]))
    Path("cut.csv.gz").write_bytes(FILES["packed.csv.gz"][:-20])
    Path("half.json").write_text('[{"text": "a", "label": 1}, {"text": ')
    Path("object.json").write_text('{"a": 1, "b": [1]}')
    Path("keys.json").write_text('{"text": {"0": "a", "1": "b"}, "label": {"0": "x", "2": "y"}}')
    Path("unmarked.csv").write_bytes(table().encode("utf-16-le"))
    Path("packed.csv").write_bytes(FILES["packed.csv.gz"])
    topics = label_studio(ONE)
    topics[1]["annotations"][0]["result"][0]["from_name"] = "topic"
    Path("topics.json").write_text(json.dumps(topics))
    Path("spans.jsonl").write_bytes(json_lines([{"text": "a", "label": [[0, 3, "X"]]}]))
    Path("named.jsonl").write_bytes(json_lines([{"text": "a", "label": {"name": "neg"}}]))
    Path("objects.csv").write_text('text,label\na,"{""name"": ""neg""}"\n')
    assert main(["data", "describe", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and [part for part in parts if part not in error] == []


@pytest.mark.parametrize("cells", [[[1, 0, 0], [0, 1, 1]], [[True, False], [False, True]]])
def test_lists_of_zeros_and_ones_are_no_names_of_labels(cells: list[list[Any]], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines([{"text": text, "label": cells[n % 2]} for n, (text, _) in enumerate(ROWS)]))
    with pytest.raises(DataError, match=r"lists of .* but not what the labels are called; .* --label-columns"):
        load_dataset(MultiLabelData(name=str(path), label_separator="json"))


@pytest.mark.parametrize("cell", ["['a', 'b']", '["a", "b"]', "['a' 'b']", '{"choices": ["a", "b"]}'])
def test_cells_that_are_written_as_lists_are_read_as_such(cell: str) -> None:
    assert SeveralLabels("json").read(cell, str) == ("a", "b")


def test_columns_of_labels_keep_their_order_and_a_missing_cell_is_no_label(folder: Path) -> None:
    config = MultiLabelData(name="flags.csv", label_columns="rude,late")  # type: ignore[arg-type]
    assert load_dataset(config).label_names == ["rude", "late"]
    Path("gap.csv").write_text("text,late,rude\na,1,\nb,0,1\nc,1,1.0\n")
    with pytest.raises(DataError, match=r"1 row without a label in column 'late, rude' \(line 2\)"):
        read_table("gap.csv", "text", "label", labels=LabelColumns(["late", "rude"]))
    # Columns of texts are joined in their order, unless one is called so.
    assert next(stream_texts("title.csv", "title,body"))[0] == f"A room {ROWS[0][0]}"
    assert read_table("title.csv", "body,title", "label").texts[0] == f"{ROWS[0][0]} a room"
    Path("named.csv").write_text('"a,b",label\nwhole,1\n')
    assert next(stream_texts("named.csv", "a,b")) == ["whole"]
    # Those that differ in case alone are two.
    Path("cases.csv").write_text("Label,label\na b,x\nc d,z\n")
    found = read_table("cases.csv", "Label", "label")
    assert (found.texts, found.labels) == (["a b", "c d"], ["x", "z"])


@pytest.mark.parametrize("typed", ["|", "'|'"])
def test_a_separator_on_the_command_line_is_what_was_typed(typed: str, folder: Path, capsys: Any) -> None:
    assert main(["data", "describe", "bars.csv", f"label_separator={typed}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["label_names"] == ["late", "neg", "pos"]


WORDS = st.text(
    st.sampled_from("ab ,;|\t\"'=\n\r")
    | st.characters(min_codepoint=0x20, max_codepoint=0x2FFFF, exclude_categories=["Cs", "Cc"]),
    max_size=25,
)


ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "cp1252", "cp1251", "shift_jis", "gb18030"]


@st.composite
def files(draw: Any) -> tuple[str, bytes, str | None, list[str]]:
    """Name, content and encoding of a file, and its texts."""
    texts = draw(st.lists(WORDS, min_size=1, max_size=6))
    encoding = draw(st.sampled_from(ENCODINGS))
    marked = encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32")
    kind = draw(st.sampled_from([".csv", ".tsv", ".tsv plain", ".jsonl", ".json"]))
    rows = [(text, ("neg", "pos")[number % 2]) for number, text in enumerate(texts)]
    end = draw(st.sampled_from(["\n", "\r\n"]))
    if kind == ".tsv":
        # Of texts with tabs and line ends both, every line may look like a row.
        rows = [(text.replace("\t", " "), label) for text, label in rows]
        texts = [text for text, _ in rows]
    if kind in (".jsonl", ".json"):
        objects = [json.dumps({"text": text, "label": label}, ensure_ascii=draw(st.booleans())) for text, label in rows]
        content = end.join(objects) + end if kind == ".jsonl" else f"[{f',{end}'.join(objects)}]"
    elif kind == ".tsv plain":
        texts = [re.sub(r"[\t\n\r]", " ", text) for text in texts]
        lines = [f"{text}\t{label}" for text, (_, label) in zip(texts, rows, strict=True)]
        content = end.join(["text\tlabel", *lines, ""])
    else:
        delimiter = "\t" if kind == ".tsv" else draw(st.sampled_from(",;\t|"))
        stream = io.StringIO(newline="")
        quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        writer = csv.writer(stream, delimiter=delimiter, lineterminator=end, quoting=quoting)
        writer.writerows([("text", "label"), *rows])
        content = ("sep=;" + end if delimiter == ";" and draw(st.booleans()) else "") + stream.getvalue()
    try:
        raw = content.encode(encoding)
        assume(raw.decode(encoding) == content)
    except UnicodeError:
        assume(False)
    return kind, raw, None if marked and draw(st.booleans()) else encoding, texts


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
@given(files())
def test_what_was_written_is_read_or_refused_in_one_line(
    tmp_path: Path, file: tuple[str, bytes, str | None, list[str]]
) -> None:
    kind, content, encoding, texts = file
    path = tmp_path / f"rows{kind.partition(' ')[0]}"
    path.write_bytes(content)
    try:
        rows = list(TableFile(path, ["text", "label"], encoding=encoding).rows(["text", "label"]))
    except DataError as error:
        assert "\n" not in str(error) and path.name in str(error)
        # Only a cell of a bare carriage return, or one that would be taken for several rows, is refused.
        assert any("\r" in text for text in texts), str(error)
        return
    wanted = [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]
    got = [str(values[0]).replace("\r\n", "\n").replace("\r", "\n") for _, values in rows]
    if kind == ".tsv plain" and got != wanted:
        # A text that stands in quotes as a whole may as well be quoted.
        bare = {text: next(csv.reader([text], delimiter="\t"), [""])[0] for text in wanted if text.startswith('"')}
        wanted = [bare.get(text, text) for text in wanted]
    assert got == wanted
    assert [values[1] for _, values in rows] == [("neg", "pos")[number % 2] for number in range(len(texts))]


def test_accents_are_one_in_training_prediction_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    moods = ("d\u00e9sol\u00e9", "tr\u00e8s bon")
    rows = [(f"caf\u00e9 {n} {moods[n % 2]}", ("neg", "pos")[n % 2]) for n in range(60)]
    Path("rows.csv").write_text(table(rows=rows), encoding="utf-8")
    assert main(["train", "--model", "linear", "--data", "rows.csv", "--output", "run", "--no-latency", "--quiet"]) == 0
    assert main(["export", "run", "--output", "export", "--quiet"]) == 0
    texts = [unicodedata.normalize(form, "tr\u00e8s bon caf\u00e9") for form in ("NFC", "NFD")]
    for folder in ("run", "export"):
        classifier = Classifier.open(folder)
        assert classifier.cleaning == CAREFUL
        composed, decomposed = classifier.predict_proba(texts)
        assert composed.tolist() == decomposed.tolist()
    assert "compose accents (NFC)" in Path("export", "README.md").read_text(encoding="utf-8")
    raw = ["--output", "raw", "data.clean=none", "--no-latency", "--quiet"]
    assert main(["train", "--model", "linear", "--data", "rows.csv", *raw]) == 0
    assert Classifier.open("raw").cleaning == NO_CLEANING
