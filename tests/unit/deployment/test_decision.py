"""The decisions that a model's scores stand for."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import expit

from recurra.deployment.decision import sigmoid


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_sigmoid_is_that_of_an_independent_library(kind: type) -> None:
    scores: npt.NDArray[np.floating[Any]] = np.linspace(-40, 40, 2001).astype(kind)
    np.testing.assert_allclose(sigmoid(scores), expit(scores.astype(np.float64)), rtol=1e-14)


def test_the_sigmoid_overflows_nowhere() -> None:
    with np.errstate(all="raise", under="ignore"):
        found = sigmoid(np.array([-np.inf, -1000.0, 0.0, 1000.0, np.inf]))
    assert found.tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_the_sigmoid_keeps_the_shape() -> None:
    assert sigmoid(np.zeros((3, 5), dtype=np.float32)).shape == (3, 5)
    assert sigmoid(np.zeros((0, 5), dtype=np.float32)).shape == (0, 5)
