"""Predictions: every row once and in order, whatever the chunks; the same in every format, whole or not at all."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import ConfigurationError, StorageError
from recurra.data.cleaning import clean_texts
from recurra.data.tables import TextRows
from recurra.deployment.classifier import Classifier
from recurra.deployment.decision import OneLabel
from recurra.deployment.engines.computation import Computation, Engine
from recurra.deployment.prediction.files import (
    SUFFIXES,
    LineWriter,
    PredictedRows,
    check_output,
    line_writer,
    open_writer,
    write_stream,
)
from reviews import read_rows

NAMES = ["bad", "good", "so, so"]
TEXTS = ['a "quoted", text', "", "two\nlines\tand a tab", "naïve ☕", "plain"]


def rows(start: int, stop: int) -> PredictedRows:
    scores = np.random.default_rng(0).dirichlet(np.ones(3), len(TEXTS))
    return PredictedRows(TEXTS[start:stop], scores[start:stop])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_come_back_in_order_with_what_was_predicted(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    with open_writer(path, OneLabel(NAMES)) as writer:
        writer.write(rows(0, 2))
        writer.write(rows(2, 5))
    found = read_rows(path)
    expected = rows(0, 5).probabilities
    assert [row["text"] for row in found] == TEXTS
    assert "naïve ☕".encode() in path.read_bytes()
    assert [row["label"] for row in found] == [NAMES[index] for index in expected.argmax(axis=1)]
    for row, probabilities in zip(found, expected, strict=True):
        assert float(row["probability"]) == pytest.approx(probabilities.max(), abs=1e-6)
        each = row.get("probabilities") or {name: row[f"probability_{name}"] for name in NAMES}
        assert [float(each[name]) for name in NAMES] == pytest.approx(probabilities, abs=1e-6)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_rows_are_a_valid_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    with open_writer(path, OneLabel(NAMES)):
        pass
    assert read_rows(path) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_was_there_stays_if_writing_breaks_off(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    path.write_text("old")
    with pytest.raises(KeyError), open_writer(path, OneLabel(NAMES)) as writer:
        writer.write(rows(0, 2))
        raise KeyError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown extension '\.cvs' \(did you mean '\.csv'"):
        check_output(tmp_path / "p.cvs")
    source = tmp_path / "r.csv"
    source.write_text("text\nx\n")
    link = tmp_path / "link.csv"
    link.symlink_to(source)
    with pytest.raises(StorageError, match="the input itself"):
        check_output(link, source)
    check_output(tmp_path / "other.csv", source)
    check_output(tmp_path / "other.csv", "-")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(StorageError, match="is a folder"):
        check_output(tmp_path / "folder.csv")


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_what_a_spreadsheet_would_run_is_written_as_text_if_that_is_asked_for(tmp_path: Path, suffix: str) -> None:
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\ttab", "\rreturn", "2 - 1 = 1", "'quoted", ""]
    path = tmp_path / f"p{suffix}"
    names = ["=cmd()", "good"]
    for escape in (False, True):
        with open_writer(path, OneLabel(names), escape_formulas=escape) as writer:
            writer.write(PredictedRows(texts, np.tile([0.75, 0.25], (len(texts), 1))))
        found = read_rows(path)
        mark = "'" if escape else ""
        assert [row["text"] for row in found] == [*(f"{mark}{text}" for text in texts[:6]), *texts[6:]]
        assert {row["label"] for row in found} == {f"{mark}=cmd()"}
        # Numbers are none: those below 0 do not occur, and others would come back as words.
        assert {float(row["probability"]) for row in found} == {0.75}
        # A carriage return ends a line for some readers, unless it stands in quotes; of others a cell has them at most.
        rows = path.read_bytes().decode().split("\n")[1:-1]
        assert [row.count('"') for row in rows if "\r" in row] == [2 * len(found[0])]
        assert {row.count('"') for row in rows if "\r" not in row} <= {0, 2}


class LengthEngine(Engine):
    """Longer cleaned texts are more positive."""

    computation = Computation(engine="test", storage_precision="fp32", compute_precision="fp32", device="cpu")

    def logits(self, texts: Sequence[str], batch_size: int) -> np.ndarray:
        lengths = np.array([len(text) for text in texts], dtype=np.float32)
        return np.stack([-lengths, lengths - 4], axis=1)


class Collected:
    """Rows as a writer gets them."""

    def __init__(self) -> None:
        self.rows: list[PredictedRows] = []

    def write(self, rows: PredictedRows) -> None:
        self.rows.append(rows)


def chunk(texts: Sequence[str]) -> TextRows:
    return TextRows(list(texts), [])


def classifier() -> Classifier:
    return Classifier(LengthEngine(), ["short", "long"])


CHUNK = st.lists(st.text(max_size=8), min_size=1, max_size=12)


@given(CHUNK, st.integers(1, 5))
def test_chunks_do_not_change_predictions(texts: list[str], size: int) -> None:
    chunks = [chunk(texts[start : start + size]) for start in range(0, len(texts), size)]
    writer = Collected()
    write_stream(classifier(), chunks, writer)
    parts = writer.rows
    assert [text for part in parts for text in part.texts] == texts
    together = np.concatenate([part.probabilities for part in parts])
    np.testing.assert_array_equal(together, classifier().predict_proba(texts))


@given(CHUNK)
def test_everything_is_counted_and_empty_texts_keep_their_place(texts: list[str]) -> None:
    writer, steps = Collected(), list[int]()
    others = ["", " ", "<br />", "a long text"]
    counts = write_stream(classifier(), [chunk(texts), chunk(others)], writer, advance=steps.append)
    assert counts.rows == len(texts) + 4 == sum(steps) == sum(counts.labels.values())
    assert counts.empty == 3 + clean_texts(texts).count("")
    assert [list(part.texts) for part in writer.rows] == [texts, others]


@given(st.lists(CHUNK, max_size=3))
def test_the_json_document_is_one_document(chunks: list[list[str]]) -> None:
    stream = io.StringIO()
    with line_writer(stream, OneLabel(["short", "long"]), LengthEngine.computation, as_json=True) as writer:
        write_stream(classifier(), map(chunk, chunks), writer)
    found = json.loads(stream.getvalue())["predictions"]
    assert [row["text"] for row in found] == [text for texts in chunks for text in texts]
    for row in found:
        assert row["probability"] == max(row["probabilities"].values()) == row["probabilities"][row["label"]]


def test_the_json_document_can_be_read_from_any_terminal() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "latin-1", errors="backslashreplace", write_through=True)
    with line_writer(stream, OneLabel(["short", "long"]), LengthEngine.computation, as_json=True) as writer:
        write_stream(classifier(), [chunk(["naïve \U0001f600"])], writer)
    assert json.loads(written.getvalue())["predictions"][0]["text"] == "naïve \U0001f600"


def test_a_line_a_row_whatever_the_text() -> None:
    stream = io.StringIO()
    write_stream(classifier(), [chunk(["one\ntwo\tthree", ""])], LineWriter(stream, OneLabel(["short", "long"])))
    assert stream.getvalue() == "long\t1.0000\tone two three\nshort\t0.9820\t\n"


@given(CHUNK, st.floats(0.5, 1))
def test_rows_below_the_threshold_get_no_label_and_the_others_theirs(texts: list[str], least: float) -> None:
    found = classifier().predict_proba(texts)
    stream = io.StringIO()
    doubting = classifier()
    doubting.decision = doubting.decision.abstaining_below(least)
    with line_writer(stream, doubting.decision, doubting.computation, as_json=True) as writer:
        counts = write_stream(doubting, [chunk(texts)], writer)
    rows = json.loads(stream.getvalue())["predictions"]
    expected = [None if row.max() < least else ("short", "long")[row.argmax()] for row in found]
    assert [row["label"] for row in rows] == expected
    assert [row["abstained"] for row in rows] == [label is None for label in expected]
    assert (counts.abstained, counts.labels) == (
        expected.count(None),
        Counter(label for label in expected if label is not None),
    )
    assert [row["probability"] for row in rows] == pytest.approx(found.max(axis=1), abs=1e-6)
