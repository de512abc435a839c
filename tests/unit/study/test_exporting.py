"""What the record of an export says about its rows."""

from __future__ import annotations

import numpy as np

from recurra.evaluation.metrics import evaluate_logits
from recurra.study.exporting import compare_split


def test_an_export_is_measured_at_the_temperature_of_its_run() -> None:
    rng = np.random.default_rng(0)
    logits, reference = (rng.normal(scale=4, size=(80, 3)).astype(np.float32) for _ in range(2))
    labels = rng.integers(0, 3, size=80)
    split = compare_split(logits, reference, labels, 3.0)
    assert split.metrics == evaluate_logits(logits, labels, 3.0)
    assert split.reference == evaluate_logits(reference, labels, 3.0)
    # With three labels the temperature changes the order of the rows.
    assert split.metrics.average_precision != evaluate_logits(logits, labels).average_precision
