"""A stream of texts: every row once, in order, whatever the chunks."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.data.tables import TextRows
from recurra.deployment.classifier import Classifier
from recurra.deployment.decision import OneLabel
from recurra.deployment.prediction.files import LineWriter, PredictedRows, json_document, write_stream


class LengthEngine:
    """Longer cleaned texts are more positive."""

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


TEXTS = st.lists(st.text(max_size=8), min_size=1, max_size=12)


@given(TEXTS, st.integers(1, 5))
def test_chunks_do_not_change_predictions(texts: list[str], size: int) -> None:
    chunks = [chunk(texts[start : start + size]) for start in range(0, len(texts), size)]
    writer = Collected()
    write_stream(classifier(), chunks, writer)
    parts = writer.rows
    assert [text for part in parts for text in part.texts] == texts
    together = np.concatenate([part.probabilities for part in parts])
    np.testing.assert_array_equal(together, classifier().predict_proba(texts))


@given(TEXTS)
def test_everything_is_counted_and_empty_texts_keep_their_place(texts: list[str]) -> None:
    writer, steps = Collected(), list[int]()
    counts = write_stream(classifier(), [chunk(texts), chunk(["", " ", "a long text"])], writer, advance=steps.append)
    assert counts.rows == len(texts) + 3 == sum(steps) == sum(counts.labels.values())
    assert counts.empty == 2 + sum(not text.strip() for text in texts)
    assert [list(part.texts) for part in writer.rows] == [texts, ["", " ", "a long text"]]


@given(st.lists(TEXTS, max_size=3))
def test_the_json_document_is_one_document(chunks: list[list[str]]) -> None:
    stream = io.StringIO()
    with json_document(stream, OneLabel(["short", "long"])) as writer:
        write_stream(classifier(), map(chunk, chunks), writer)
    found = json.loads(stream.getvalue())["predictions"]
    assert [row["text"] for row in found] == [text for texts in chunks for text in texts]
    for row in found:
        assert row["probability"] == max(row["probabilities"].values()) == row["probabilities"][row["label"]]


def test_a_line_a_row_whatever_the_text() -> None:
    stream = io.StringIO()
    write_stream(classifier(), [chunk(["one\ntwo\tthree", ""])], LineWriter(stream, OneLabel(["short", "long"])))
    assert stream.getvalue() == "long\t1.0000\tone two three\nshort\t0.9820\t\n"


@given(TEXTS, st.floats(0.5, 1))
def test_rows_below_the_threshold_get_no_label_and_the_others_theirs(texts: list[str], least: float) -> None:
    found = classifier().predict_proba(texts)
    stream = io.StringIO()
    doubting = classifier()
    doubting.decision = doubting.decision.abstaining_below(least)
    with json_document(stream, doubting.decision) as writer:
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
