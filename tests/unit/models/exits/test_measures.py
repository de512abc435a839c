"""What is read of a head, in numbers worked out by hand, on tensors and on arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from recurra.models.exits.rules import confidence, entropy, mean_of_rows
from references.exits import entropy_of, shares_of

# Probabilities 3/4, 1/4 and 1/2, 1/2.
SURE, TORN = [math.log(3.0), 0.0], [5.0, 5.0]


@pytest.mark.parametrize("library", [torch.tensor, np.array])
@pytest.mark.parametrize("classes", [2, 3, 1000])
def test_both_are_those_of_the_probabilities_in_either_library(library: Any, classes: int) -> None:
    scores = torch.randn(6, 4, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    shares = [shares_of(row) for row in scores.flatten(0, 1).tolist()]
    for measure, wanted in ((confidence, max), (entropy, entropy_of)):
        found = measure(library(scores.tolist()))
        np.testing.assert_allclose(np.asarray(found).ravel(), [wanted(row) for row in shares], rtol=1e-4, atol=1e-6)
        assert found.shape == (6, 4)


def test_means_are_of_the_counted_positions() -> None:
    values = torch.tensor([[1.0, 2.0, 6.0]])
    assert mean_of_rows(values, None).tolist() == [3.0]
    assert mean_of_rows(values, torch.tensor([[True, False, True]])).tolist() == [3.5]
    assert mean_of_rows(values[0], None).tolist() == [1.0, 2.0, 6.0]
