"""The controls on parts of the training rows: what is fitted, what is recorded and what a report says of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recurra.core.record import LearningCurveRecord, RunRecord, read_record
from recurra.data.dataset import TextSplit
from recurra.tasks.labelling.controls import LARGEST_PART, learning_shares
from recurra.tasks.labelling.reporting import LabellingTable, learning_curve, more_rows
from rendered import write_report
from reviews import Command, train_linear


def shares_of(labels: list[int]) -> list[float]:
    names = [str(place) for place in range(len(labels))]
    return learning_shares(TextSplit("train", names, np.array(labels), names))


def test_parts_are_left_out_where_a_label_is_rare_or_they_are_large() -> None:
    assert shares_of([0, 1] * 80) == [1 / 8, 1 / 4, 1 / 2]
    assert shares_of([0] * 200 + [1] * 25) == [1 / 2]
    assert shares_of([0] * 200 + [1] * 5) == []
    assert shares_of([0, 1] * (LARGEST_PART * 2)) == [1 / 8, 1 / 4]


def test_the_last_gain_is_the_paired_interval_over_rows() -> None:
    rng = np.random.default_rng(0)
    half, whole = rng.random(400) < 0.7, rng.random(400) < 0.8
    right = {50: rng.random(400) < 0.6, 100: half, 200: whole}
    found = learning_curve("test", right)
    assert found.rows == [50, 100, 200] and found.right == [float(rows.mean()) for rows in right.values()]
    gains = whole.astype(float) - half
    drawn = [gains[rng.integers(0, 400, 400)].mean() for _ in range(4000)]
    assert found.last_gain == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.006)


@pytest.mark.parametrize(
    ("low", "start", "interval"),
    [(0.002, "Probably: from 100 to 200", "+0.2 to +4.0"), (-0.01, "Not shown: from 100 to 200", "−1.0 to +4.0")],
)
def test_a_gain_that_may_be_none_is_not_promised(low: float, start: str, interval: str) -> None:
    curve = LearningCurveRecord(split="test", rows=[100, 200], right=[0.8, 0.82], last_gain=(low, 0.04))
    table = LabellingTable.__new__(LabellingTable)
    object.__setattr__(table, "learning_curve", curve)
    object.__setattr__(table, "control", "linear-tuned")
    ((question, answer),) = more_rows(table)
    assert question == "Would more labels help" and answer.startswith(start)
    assert f"linear-tuned gained +2.0 points (95 % over test rows {interval})" in answer


def test_a_tuned_run_says_what_more_labels_bring_and_what_words_tell(tmp_path: Path, command: Command) -> None:
    linear, folder = train_linear(tmp_path, rows=300), tmp_path / "tuned"
    words = ["train", "--model", "linear-tuned", "--data", tmp_path / "reviews.csv", "--output", folder]
    command(*words, "--no-latency", "--quiet")
    tuned, plain = read_record(folder), read_record(linear)
    assert isinstance(tuned, RunRecord) and isinstance(plain, RunRecord)
    assert plain.learning_curve is None and plain.telling_words is None
    assert tuned.learning_curve is not None and tuned.telling_words is not None
    assert tuned.learning_curve.right[-1] == tuned.metrics["test"].accuracy
    assert tuned.learning_curve.rows[-1] == tuned.data.splits["train"].rows
    assert list(tuned.telling_words) == tuned.data.label_names and all(tuned.telling_words.values())
    page = write_report(tmp_path / "report", [linear, folder], title="x").read_text(encoding="utf-8")
    for said in ("Would more labels help", "What more labels bring", "Words that point to a label"):
        assert said in page
