"""Weights of the rows that an estimator is fitted on; what is refused stands with the estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.utils import compute_sample_weight

from recurra.data.fitting import fitting_rows

TEXTS = [f"text {row}" for row in range(40)]
LABELS = ["a"] * 30 + ["b"] * 10


def fitted(sample_weight: Any, class_weight: Any, eval_set: Any = None) -> tuple[list[str], np.ndarray | None]:
    dataset, weights, classes = fitting_rows(
        TEXTS, LABELS, sample_weight=sample_weight, class_weight=class_weight, eval_set=eval_set,
        validation_fraction=0.25, seed=0,
    )  # fmt: skip
    assert classes.tolist() == dataset.label_names == ["a", "b"]
    assert (len(dataset.splits["train"]), len(dataset.splits["validation"])) == ((40, 2) if eval_set else (30, 10))
    return dataset.splits["train"].ids, weights


@pytest.mark.parametrize("eval_set", [None, (["one", "two"], ["a", "b"])], ids=["drawn", "given"])
@pytest.mark.parametrize("class_weight", [None, "balanced", {"a": 1, "b": 5}], ids=str)
def test_weights_keep_their_proportions_and_are_one_on_average(class_weight: Any, eval_set: Any) -> None:
    own = np.linspace(0, 9, 40)
    ids, weights = fitted(own, class_weight, eval_set)
    assert weights is not None and weights.dtype == np.float32
    expected = (own * (1 if class_weight is None else compute_sample_weight(class_weight, LABELS)))[np.array(ids, int)]
    np.testing.assert_allclose(weights, expected / expected.mean(), rtol=1e-6)


def test_rows_that_count_alike_have_no_weights_and_many_labels_are_checked_in_linear_time() -> None:
    assert fitted(None, None)[1] is None
    _, balanced = fitted(None, "balanced")
    assert balanced is not None and len(set(balanced.tolist())) == 2
    labels = [f"label {row}" for row in range(40_000)]
    dataset, _, classes = fitting_rows(
        labels, labels, sample_weight=None, class_weight=None, eval_set=(labels[:2], labels[:2]),
        validation_fraction=0.25, seed=0,
    )  # fmt: skip
    assert dataset.num_labels == len(classes) == len(labels)
