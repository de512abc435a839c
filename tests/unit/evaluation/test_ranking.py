from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from sklearn.metrics import average_precision_score

from recurra.evaluation.metrics import RankedLabel, rank_labels

ROWS = some.lists(
    some.tuples(some.booleans(), some.integers(0, 4), some.integers(0, 3), some.integers(0, 3)), min_size=1, max_size=30
)


@given(rows=ROWS)
def test_with_weights_and_ties_it_is_the_figure_of_scikit_learn(rows: list[tuple[bool, int, int, int]]) -> None:
    relevant, scores, *weights = (np.array(part) for part in zip(*rows, strict=True))
    found = RankedLabel(relevant, scores).average_precision(np.stack(weights))
    for value, weight in zip(found, weights, strict=True):
        if (weight * relevant).sum():
            assert value == pytest.approx(average_precision_score(relevant, scores, sample_weight=weight))
        else:
            assert value == 0


def test_a_label_that_no_row_has_is_not_ranked() -> None:
    first, second, third = rank_labels(np.array([0, 2, 2]), np.array([[3.0, 9.0, 1.0], [2.0, 9.0, 2.0], [1.0, 9.0, 0]]))
    assert second is None
    assert first is not None and first.average_precision() == 1
    # In the order of the third label: right, wrong, right.
    assert third is not None and third.average_precision() == pytest.approx((1 + 2 / 3) / 2)
