"""Predictions: every row once and in order, whatever the chunks; the same in every format, whole or not at all."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recurra.core.errors import ConfigurationError, StorageError
from recurra.data.cleaning import clean_texts
from recurra.data.tables import TextRows
from recurra.deployment.classifier import Classifier
from recurra.deployment.decision import OneLabel
from recurra.deployment.engines.computation import Computation, Engine
from recurra.deployment.prediction.files import (
    SUFFIXES,
    Layout,
    PredictedRows,
    PredictionCounts,
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
def test_rows_come_back_in_order_with_what_was_predicted_or_what_was_there_stays(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    with open_writer(path, OneLabel(NAMES)):
        pass
    assert read_rows(path) == []
    with open_writer(path, OneLabel(NAMES)) as write:
        write(rows(0, 2))
        write(rows(2, 5))
    found = read_rows(path)
    expected = rows(0, 5).probabilities
    assert [row["text"] for row in found] == TEXTS
    assert "naïve ☕".encode() in path.read_bytes()
    assert [row["label"] for row in found] == [NAMES[index] for index in expected.argmax(axis=1)]
    for row, probabilities in zip(found, expected, strict=True):
        assert float(row["probability"]) == pytest.approx(probabilities.max(), abs=1e-6)
        each = row.get("probabilities") or {name: row[f"probability_{name}"] for name in NAMES}
        assert [float(each[name]) for name in NAMES] == pytest.approx(probabilities, abs=1e-6)
    before = path.read_bytes()
    with pytest.raises(KeyError), open_writer(path, OneLabel(NAMES)) as write:
        write(rows(0, 2))
        raise KeyError
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'probability_predicted': beside 'probability'"):
        Layout(OneLabel(["predicted", "other"]), input_columns=["text", "probability"])


def test_files_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown extension '\.cvs' \(did you mean '\.csv'"):
        check_output(tmp_path / "p.cvs")
    source, link = tmp_path / "r.csv", tmp_path / "link.csv"
    source.touch()
    link.symlink_to(source)
    with pytest.raises(StorageError, match="the input itself"):
        check_output(link, source)
    for other in (source, "-"):
        check_output(tmp_path / "other.csv", other)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(StorageError, match="is a folder"):
        check_output(tmp_path / "folder.csv")


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_what_a_spreadsheet_would_run_is_written_as_text_if_that_is_asked_for(tmp_path: Path, suffix: str) -> None:
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\ttab", "\rreturn", "2 - 1 = 1", "'quoted", ""]
    path = tmp_path / f"p{suffix}"
    names = ["=cmd()", "good"]
    for escape in (False, True):
        with open_writer(path, OneLabel(names), escape_formulas=escape) as write:
            write(PredictedRows(texts, np.tile([0.75, 0.25], (len(texts), 1))))
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


DECISION = OneLabel(["short", "long"])


def classifier() -> Classifier:
    return Classifier(LengthEngine(), ["short", "long"])


def written(
    by: Classifier, chunks: Sequence[Sequence[str]], **options: Any
) -> tuple[list[PredictedRows], PredictionCounts]:
    """What a writer gets, and the counts."""
    parts: list[PredictedRows] = []
    return parts, write_stream(by, [TextRows(list(texts), []) for texts in chunks], parts.append, **options)


def document(by: Classifier, chunks: Sequence[Sequence[str]]) -> tuple[list[dict[str, Any]], PredictionCounts]:
    """Rows of the JSON document, written to a terminal of an old encoding, and the counts."""
    stream = io.BytesIO()
    terminal = io.TextIOWrapper(stream, "latin-1", errors="backslashreplace", write_through=True)
    with line_writer(terminal, by.decision, by.computation, as_json=True) as write:
        counts = write_stream(by, [TextRows(list(texts), []) for texts in chunks], write)
    return json.loads(stream.getvalue())["predictions"], counts


CHUNK = st.lists(st.text(max_size=8), min_size=1, max_size=12)


@given(CHUNK, st.integers(1, 5))
def test_chunks_do_not_change_predictions(texts: list[str], size: int) -> None:
    parts, _ = written(classifier(), [texts[start : start + size] for start in range(0, len(texts), size)])
    assert [text for part in parts for text in part.texts] == texts
    together = np.concatenate([part.probabilities for part in parts])
    np.testing.assert_array_equal(together, classifier().predict_proba(texts))


@given(CHUNK)
def test_everything_is_counted_and_empty_texts_keep_their_place(texts: list[str]) -> None:
    steps, others = list[int](), ["", " ", "<br />", "a long text"]
    parts, counts = written(classifier(), [texts, others], advance=steps.append)
    assert counts.rows == len(texts) + 4 == sum(steps) == sum(counts.labels.values())
    assert counts.empty == 3 + clean_texts(texts).count("")
    assert [list(part.texts) for part in parts] == [texts, others]


@given(st.lists(CHUNK, max_size=3))
@example([["naïve \U0001f600"]])
def test_the_json_document_is_one_document(chunks: list[list[str]]) -> None:
    found, _ = document(classifier(), chunks)
    assert [row["text"] for row in found] == [text for texts in chunks for text in texts]
    for row in found:
        assert row["probability"] == max(row["probabilities"].values()) == row["probabilities"][row["label"]]


def test_a_line_a_row_whatever_the_text() -> None:
    stream, by = io.StringIO(), classifier()
    with line_writer(stream, DECISION, by.computation, as_json=False) as write:
        write_stream(by, [TextRows(["one\ntwo\tthree", ""], [])], write)
    assert stream.getvalue() == "long\t1.0000\tone two three\nshort\t0.9820\t\n"


@given(CHUNK, st.floats(0.5, 1))
def test_rows_below_the_threshold_get_no_label_and_the_others_theirs(texts: list[str], least: float) -> None:
    found = classifier().predict_proba(texts)
    doubting = classifier()
    doubting.decision = doubting.decision.abstaining_below(least)
    rows, counts = document(doubting, [texts])
    expected = [None if row.max() < least else ("short", "long")[row.argmax()] for row in found]
    assert [row["label"] for row in rows] == expected
    assert [row["abstained"] for row in rows] == [label is None for label in expected]
    said = Counter(label for label in expected if label is not None)
    assert (counts.abstained, counts.labels) == (expected.count(None), said)
    assert [row["probability"] for row in rows] == pytest.approx(found.max(axis=1), abs=1e-6)
