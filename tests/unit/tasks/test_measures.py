"""What a measure says of values and differences, in both directions of better."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy import stats

from recurra.core import terminal as form
from recurra.tasks.classification.measures import ACCURACY
from recurra.tasks.language.reporting import LOSS
from recurra.tasks.measures import over_seeds
from recurra.tasks.reporting import best_model

SHARES = some.floats(-1, 1, allow_subnormal=False)


@given(SHARES)
def test_points_are_written_as_everywhere(gap: float) -> None:
    assert ACCURACY.gap(gap) == form.points(gap)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (LOSS.gap(-0.12345), "−0.1235 nats a token"),
        (LOSS.gap(0.0), "0.0000 nats a token"),
        (LOSS.gap(-4e-5), "0.0000 nats a token"),
        (LOSS.gap(0.1, LOSS.width(0.02), unit=False), "+0.1000 ± 0.0200"),
        (LOSS.signed(0.00001), "0.0000"),
        (LOSS.size(-0.5), "0.5000 nats a token"),
        (ACCURACY.size(-0.003, ACCURACY.width(0.005)), "0.3 ± 0.5 points"),
        (ACCURACY.width(None), ""),
    ],
)
def test_differences_read_as_a_person_would_write_them(made: str, expected: str) -> None:
    assert made == expected


@given(some.lists(some.floats(0.0, 9.0), min_size=2, max_size=6))
def test_intervals_over_seeds_are_students_within_the_limits(values: list[float]) -> None:
    found = over_seeds(tuple(values), LOSS.limits)
    if found is None:
        assert max(values) - min(values) <= 1e-12 * max(1.0, *values)
        return
    low, high = stats.t.interval(0.95, len(values) - 1, loc=found.mean, scale=stats.sem(values))
    assert found.low == pytest.approx(max(0.0, low), abs=1e-9)
    assert found.high == pytest.approx(high)


def test_seeds_that_differ_by_rounding_alone_claim_no_certainty() -> None:
    assert over_seeds((0.8 - 0.7, 0.9 - 0.8), (0.0, 1.0)) is None


def test_of_equal_models_the_best_is_one_that_is_here_and_then_the_smallest() -> None:
    def model(kind: str, parameters: int, accuracy: float) -> Any:
        score = SimpleNamespace(figures={ACCURACY.key: SimpleNamespace(mean=accuracy)})
        return SimpleNamespace(kind=kind, parameters=parameters, scores={"test": score})

    answers, large, small = model("answers", 0, 0.9), model("transformer", 20, 0.9), model("linear", 10, 0.9)
    assert best_model([answers, large, small], "test", ACCURACY) is small
    better = model("answers", 0, 0.91)
    assert best_model([better, large, small], "test", ACCURACY) is better
