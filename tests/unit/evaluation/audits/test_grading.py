"""Findings are graded by what they do to the figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset, TextSplit
from recurra.evaluation.audits.grading import control_right, effect_of, grade, keep_rows, kept_rows, needs_predictions
from recurra.evaluation.audits.leakage import audit_leakage
from recurra.evaluation.audits.shortcuts import audit_shortcuts

WORDS = [f"w{number}" for number in range(400)]


def rows_of(count: int, seed: int, mark: str) -> tuple[list[str], np.ndarray]:
    """Texts of chance words, of which the first tells the label, and a mark behind those of one label."""
    rng, labels = np.random.default_rng(seed), np.arange(count) % 2
    texts = [" ".join([["dull", "fine"][label], *rng.choice(WORDS, 12)]) + mark * label for label in labels.tolist()]
    return texts, labels


def named(audits: list[AuditResult], name: str = "leakage.exact") -> AuditResult:
    return next(audit for audit in audits if audit.name == f"{name}.test")


def dataset(leaked: int, test_rows: int = 200, mark: str = "") -> TextDataset:
    """Of the test rows some are training rows."""
    train, train_labels = rows_of(300, 0, mark)
    test, test_labels = rows_of(test_rows - leaked, 1, mark)
    labels = np.concatenate([test_labels, train_labels[:leaked]])
    splits = {
        "train": TextSplit("train", train, train_labels, list(map(str, range(300)))),
        "test": TextSplit("test", [*test, *train[:leaked]], labels, list(map(str, range(test_rows)))),
    }
    return TextDataset("toy", "split", ["no", "yes"], splits, "test", ["test"])


def right_rows(rest: float, leaked: float, *, rows: int = 200, copies: int = 10) -> np.ndarray:
    """A model's rows: a share of the fresh ones right, and a share of the copies, which come last."""
    fresh = np.arange(rows - copies) < rest * (rows - copies)
    return np.concatenate([fresh, np.arange(copies) < leaked * copies])


def test_the_rows_that_were_found_are_kept_bit_by_bit() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 8, 9, 200, 1175):
        rows = rng.random(count) < 0.3
        audit = AuditResult(name="leakage.exact.test", status="failed", summary="", details=keep_rows(rows))
        found = kept_rows(audit, count)
        assert found is not None and np.array_equal(found, rows)
        assert kept_rows(audit, count + 8) is None
    for details in ({}, {"row_bits": "xyz"}, {"row_bits": 3}):
        assert kept_rows(audit.model_copy(update={"details": details}), 9) is None


def test_a_few_copies_are_a_note_with_the_figure_without_them() -> None:
    found = named(audit_leakage(dataset(10)))
    rows = kept_rows(found, 200)
    assert found.status == "failed" and rows is not None and rows.tolist() == [False] * 190 + [True] * 10
    right = right_rows(0.8, 1.0)
    graded = named(grade([found], {"test": right}, "baseline"))
    assert graded.status == "note" and graded.value == found.value
    effect = effect_of(graded)
    low, high = stats.binomtest(int(right.sum()), 200).proportion_ci(0.95, method="wilson")
    assert effect["interval"] == pytest.approx([low, high], abs=1e-6)
    assert effect["share_right_without"] == pytest.approx(right[:190].mean()) and low < right[:190].mean() < high
    assert effect["difference"] == pytest.approx(right[:190].mean() - right.mean())
    assert f"baseline is right on {right[:190].mean():.3f} of 190 rows" in graded.summary and "inside" in graded.summary
    # Copies that move the figure out of its interval, up or down, fail.
    found = named(audit_leakage(dataset(80)))
    for rest, leaked in ((0.6, 1.0), (0.95, 0.1)):
        graded = named(grade([found], {"test": right_rows(rest, leaked, copies=80)}, "baseline"))
        assert graded.status == "failed" and "outside the interval" in graded.summary


def test_without_enough_other_rows_the_share_decides() -> None:
    for copies, rows, status in ((190, 200, "failed"), (2, 20, "note"), (12, 30, "failed")):
        found = named(audit_leakage(dataset(copies, rows)))
        graded = named(grade([found], {"test": np.ones(rows, dtype=bool)}, "linear"))
        assert graded.status == status and "too few to judge" in graded.summary
        assert "share_right_without" not in effect_of(graded)


def test_what_nobody_measured_stays_failed_and_what_passed_is_not_touched() -> None:
    found = audit_leakage(dataset(10))
    assert grade(found, {}, "linear") == found and needs_predictions(found)
    clean = audit_leakage(dataset(0))
    assert grade(clean, {"test": right_rows(0.8, 1.0)}, "linear") == clean and not needs_predictions(clean)
    # As earlier versions recorded it: without the rows.
    old = AuditResult(name="leakage.exact.test", status="failed", summary="5 % of rows", value=0.05)
    assert grade([old], {"test": right_rows(0.8, 1.0)}, "linear") == [old]


def test_form_is_a_note_with_its_share_and_a_failure_for_who_asks() -> None:
    form, audits = "shortcuts.format", audit_shortcuts(dataset(0, mark=" !!!"))
    found = named(audits, form)
    assert found.status == "note" and needs_predictions(audits)
    right = np.arange(200) < 180
    graded = named(grade(audits, {"test": right}, "linear"), form)
    gain = (found.details["accuracy"] - found.details["majority_accuracy"]) / (0.9 - found.details["majority_accuracy"])
    assert graded.status == "note" and effect_of(graded)["share_of_gain"] == pytest.approx(gain)
    assert "linear is right on 0.900" in graded.summary
    for given in ({}, {"test": right}):
        assert named(grade(audits, given, "linear", form_must_not_predict=True), form).status == "failed"
    # In folds of train it is of other rows than the model's share.
    of_train = audit_shortcuts(dataset(0, 30, mark=" !!!"))
    assert named(of_train, form).status == "note" and grade(of_train, {"test": right[:30]}, "linear") == of_train
    plain = audit_shortcuts(dataset(0))
    assert named(grade(plain, {"test": right}, "linear", form_must_not_predict=True), form).status == "passed"


def test_the_control_is_the_linear_model_and_leaves_large_data_out(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset(0)
    right = control_right(data)["test"]
    # The first word tells the label, and a linear model of words finds it.
    assert right.shape == (200,) and right.mean() > 0.9
    both = {
        name: replace(split, labels=np.stack([split.labels, 1 - split.labels], axis=1))
        for name, split in data.splits.items()
    }
    assert control_right(replace(data, splits=both))["test"].mean() > 0.9
    monkeypatch.setattr("recurra.evaluation.audits.grading.MOST_CONTROL_ROWS", 299)
    assert control_right(data) == {}
