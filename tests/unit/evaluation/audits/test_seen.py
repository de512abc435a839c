from __future__ import annotations

import numpy as np
import pytest

from recurra.data.dataset import TextSplit
from recurra.evaluation.audits.leakage import audit_seen, difference_at_equal_length, difference_interval


def split(name: str, texts: list[str]) -> TextSplit:
    return TextSplit(name, texts, np.zeros(len(texts), dtype=np.int64), [str(row) for row in range(len(texts))])


def test_rows_inside_training_rows_are_told_from_the_others() -> None:
    train = split("train", [f"so the film{row} was very good and long" for row in range(60)])
    seen = [f"film{row} was very good" for row in range(40)]
    unseen = [f"other{row} was very good and long" for row in range(50)]
    test = split("test", [*seen, *unseen, *["very good"] * 10])
    correct = np.array([True] * 36 + [False] * 4 + [True] * 30 + [False] * 20 + [False] * 10)
    got = audit_seen(train, test, correct)
    assert (got.name, got.status, got.threshold) == ("seen.test", "measured", None)
    assert got.details["seen"]["rows"] == 40 and got.details["seen"]["accuracy"] == pytest.approx(0.9)
    assert got.details["unseen"]["rows"] == 50 and got.details["unseen"]["accuracy"] == pytest.approx(0.6)
    assert got.details["rows_too_short"] == 10
    assert got.value == pytest.approx(0.3)
    low, high = got.details["interval"]
    assert 0.1 < low < 0.3 < high < 0.5
    assert got.details["at_equal_length"] is None
    assert "0.900 on the 40 rows" in got.summary and "0.600 on the 50" in got.summary


def test_the_difference_at_equal_length_is_told_where_lengths_meet() -> None:
    train = split("train", [f"so the film{row} was very good and long" for row in range(60)])
    rows = [*(f"film{row} was very good" for row in range(40)), *(f"other{row} was very good" for row in range(50))]
    correct = np.array([True] * 36 + [False] * 4 + [True] * 30 + [False] * 20)
    got = audit_seen(train, split("test", rows), correct)
    words = np.full(90, 4)
    expected = difference_at_equal_length(correct, np.arange(90) < 40, np.arange(90) >= 40, words)
    assert got.details["at_equal_length"] == {"difference": expected[0], "interval": [*expected[1:]]}
    assert got.value == pytest.approx(expected[0])
    low, high = (f"{'+' if end >= 0 else '-'}{abs(end):.3f}" for end in expected[1:])
    assert f"; at equal length +0.300 ({low} to {high})" in got.summary.replace("\u2212", "-")


def test_too_few_rows_of_a_group_are_said_to_be_so() -> None:
    train = split("train", ["nothing in common at all"])
    got = audit_seen(train, split("test", [f"a b c {row}" for row in range(50)]), np.ones(50, dtype=bool))
    assert got.status == "skipped"
    assert "0 rows of 3 words or more stand inside" in got.summary and "20 of both" in got.summary


def test_the_interval_is_newcombe_s() -> None:
    # Newcombe 1998, table II, method 10, examples (a) and (g).
    assert difference_interval(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert difference_interval(10, 10, 0, 20) == pytest.approx((0.6791, 1.0), abs=5e-5)


def test_the_stratified_interval_is_that_of_its_formula_and_one_stratum_is_the_plain_difference() -> None:
    seen = np.array([True] * 40 + [False] * 60)
    right = np.array([True] * 30 + [False] * 10 + [True] * 30 + [False] * 30)
    difference, low, high = difference_at_equal_length(right, seen, ~seen, np.full(100, 7))
    assert difference == pytest.approx(0.25)
    # A row of each group in a stratum counts; a stratum of one group alone does not.
    one = difference_at_equal_length(
        np.array([True, False, True]),
        np.array([True, False, True]),
        np.array([False, True, False]),
        np.array([3, 3, 4]),
    )
    assert one is not None and one[0] == 1.0
    # Wald's interval of two shares, which Sato's comes close to in one stratum.
    half = 1.96 * np.sqrt(0.75 * 0.25 / 40 + 0.25 / 60)
    assert (low, high) == pytest.approx((0.25 - half, 0.25 + half), abs=0.01)
    # Two strata by the formulas of Sato (1989), a table at a time: right of seen, seen, right of unseen, unseen.
    tables = [(9, 12, 4, 8), (3, 5, 20, 25)]
    weight = sum(n * m / (n + m) for _, n, _, m in tables)
    expected = sum((a * m - c * n) / (n + m) for a, n, c, m in tables) / weight
    p = sum((n * n * c - m * m * a + n * m * (m - n) / 2) / (n + m) ** 2 for a, n, c, m in tables)
    q = sum((a * (m - c) + c * (n - a)) / (2 * (n + m)) for a, n, c, m in tables)
    wide = 1.959964 * np.sqrt(expected * p + q) / weight
    cells = [(words, group, row < good) for words, (a, n, c, m) in enumerate(tables, 3)
             for group, good, count in ((True, a, n), (False, c, m)) for row in range(count)]  # fmt: skip
    words, group, outcome = (np.array(column) for column in zip(*cells, strict=True))
    found = difference_at_equal_length(outcome, group, ~group, words)
    assert found == pytest.approx((expected, expected - wide, expected + wide), rel=1e-6)
