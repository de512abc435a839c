"""Figures of a check, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from factories import RunFactory
from recurra.core.errors import AuditError, DataError
from recurra.core.record import read_record
from recurra.data.cleaning import clean_texts
from recurra.deployment.decision import OneLabel
from recurra.deployment.engines.computation import Computation
from recurra.deployment.export import build
from recurra.deployment.export.build import MOST_ROWS, CheckRows, choose_rows, compare_logits, judge_check
from recurra.deployment.export.formats import BF16, FP16, FP32, INT8, StoredPrecision
from recurra.deployment.export.manifest import CheckRecord, ExportOptions
from reviews import train_linear, write_csv, write_reviews

REFERENCE = Computation(engine="torch", storage_precision="fp32", compute_precision="fp32", device="cpu")
BY = REFERENCE.model_copy(update={"storage_precision": "fp16"})


def compared(reference: np.ndarray, logits: np.ndarray, labels: np.ndarray | None = None) -> CheckRecord:
    rows, decision = CheckRows("somewhere", [""] * len(reference), labels), OneLabel(["a", "b"])
    return compare_logits(
        rows, reference.astype("f4"), logits.astype("f4"), by=BY, reference_by=REFERENCE, decision=decision
    )


def test_figures_by_hand() -> None:
    reference = np.array([[2.0, 1.0], [0.0, 1.0], [-3.0, -4.0], [0.5, 0.75]])
    logits = np.array([[2.0, 1.25], [0.0, 1.0], [-4.0, -3.0], [0.5, 0.25]])
    check = compared(reference, logits, np.array([0, 1, 0, 0]))
    assert (check.rows, check.label_agreement, check.largest_logit_difference, check.largest_logit) == (4, 0.5, 1.0, 4)
    assert (check.reference_accuracy, check.accuracy, check.lost_points) == (0.75, 0.75, 0.0)
    assert (check.reference, check.computation) == (REFERENCE, BY)
    unknown = compared(reference, logits)
    assert unknown.accuracy is unknown.reference_accuracy is unknown.lost_points is None
    assert unknown.describe_loss() == ""


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_not_finite_is_refused(bad: float) -> None:
    reference = np.zeros((3, 2))
    logits = reference.copy()
    logits[1, 0] = bad
    with pytest.raises(AuditError, match="not finite for 1 of 3 rows; nothing was written"):
        compared(reference, logits)
    # int8 could make numbers of what is none, and agree with nothing.
    with pytest.raises(AuditError, match="run's model itself gives logits that are not finite for 1 of 3 rows"):
        compared(logits, reference)


def flipped(rows: int, flips: int) -> CheckRecord:
    """A check of which ``flips`` rows have another label, all of them right before."""
    reference = np.tile([1.0, 0.0], (rows, 1))
    logits = reference.copy()
    logits[:flips] = logits[:flips, ::-1]
    return compared(reference, logits, np.zeros(rows, dtype=np.int64))


@pytest.mark.parametrize(
    ("precision", "rows", "allowed"),
    [(FP32, 1000, 1), (FP16, 1000, 20), (BF16, 1000, 50), (INT8, 1000, 5), (INT8, 100, 4)],
)
def test_labels_may_differ_in_so_many_rows_and_no_more(precision: StoredPrecision, rows: int, allowed: int) -> None:
    if precision is FP32:
        reference = np.array([[4.0, 0.0]])
        judge_check(compared(reference, reference + 0.003), FP32)
        with pytest.raises(AuditError, match="does not compute what the run's model computes"):
            judge_check(compared(reference, reference + 0.01), FP32)
    else:
        judge_check(flipped(rows, allowed), precision)
    with pytest.raises(AuditError, match="nothing was written; export in"):
        judge_check(flipped(rows, allowed + 1), precision)


def test_what_few_rows_lose_by_chance_is_said_and_not_refused() -> None:
    check = flipped(500, 3)
    said = judge_check(check, INT8)
    assert check.describe_loss() in said and "with so few rows this may be chance; check on more labelled rows" in said
    assert "0.60 points of accuracy (95 % interval -0.18 to 1.38: 3 rows lost and 0 won of 500)" in said
    assert judge_check(flipped(1000, 5), INT8) == ""
    assert "may be chance" in judge_check(flipped(30, 2).model_copy(update={"accuracy": None}), INT8)
    # Where each label is decided for itself, 20 decisions a row are many.
    with pytest.raises(AuditError, match=r"93.33% of 600 labels agree"):
        judge_check(flipped(30, 2), INT8, 20)
    for rows, flips, precision in ((30, 5, INT8), (1000, 70, INT8), (30, 2, BF16)):
        with pytest.raises(AuditError, match=r"at least 95.0% of labels must agree; nothing was written"):
            judge_check(flipped(rows, flips), precision)
    with pytest.raises(AuditError, match=r"loses 0.60 points .* interval 0.08 to 1.12: 6 rows lost .* of 1,000\)"):
        judge_check(flipped(1000, 6), INT8)
    # One that gains is welcome.
    reference = np.tile([0.0, 1.0], (300, 1))
    better = compared(reference, np.where(np.arange(300)[:, None] < 5, [1.0, 0.0], reference), np.zeros(300, int))
    assert judge_check(better, INT8) == ""
    said = "gains 1.67 points of accuracy (95 % interval 0.08 to 3.23: 0 rows lost and 5 won of 300)"
    assert better.describe_loss() == said


def test_the_rows_are_the_runs_own_validation_split_if_it_is_what_it_was(tmp_path: Path) -> None:
    record = read_record(train_linear(tmp_path))
    rows = choose_rows(record, ExportOptions())
    assert rows.source == "the validation split of reviews.csv"
    assert rows.labels is not None
    assert len(rows.texts) == len(rows.labels) == record.data.splits["validation"].rows
    assert rows.texts == clean_texts(rows.texts)
    # Changed or missing data give the demo corpus, and it is said.
    write_reviews(tmp_path / "reviews.csv", 240, seed=1)
    changed = choose_rows(record, ExportOptions())
    (tmp_path / "reviews.csv").unlink()
    for rows in (changed, choose_rows(record, ExportOptions())):
        assert rows.source == "the demo's sentences, because the run's own data are not available"
        assert rows.labels is None and len(rows.texts) >= 200 and "reviews.csv" in rows.note


def test_a_file_of_the_user_goes_before_all_else_is_cleaned_and_read_all_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = read_record(RunFactory(tmp_path).run("recurrent"))
    path = write_csv(tmp_path / "t.csv", [("<b>GOOD</b>  film!!",), ("x",)], ("body",))
    options = ExportOptions(rows_file=path, text_column="body")
    rows = choose_rows(record, options)
    assert (rows.source, rows.texts, rows.labels) == ("the file t.csv", ["good film!", "x"], None)
    write_csv(path, [], ("body",))
    with pytest.raises(DataError, match="has no rows"):
        choose_rows(record, options)
    count = 2 * MOST_ROWS + 7
    write_csv(path, [(f"row {number}",) for number in range(count)], ("body",))
    texts = choose_rows(record, options).texts
    assert len(texts) == len(set(texts)) == MOST_ROWS
    assert texts[0] == "row 0" and texts[-1] == f"row {count - 1}"
    # Of a huge file every second row is held, then every fourth, and so on.
    monkeypatch.setattr(build, "_MOST_HELD", 1000)
    assert choose_rows(record, options).texts == [f"row {number}" for number in range(0, count, 8)]
