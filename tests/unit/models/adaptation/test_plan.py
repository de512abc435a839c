"""Plans are read as they are written, and what cannot be read says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import ConfigurationError
from recurra.models.adaptation.plan import SharingPlan, align

NUMBERS = st.lists(st.integers(0, 11), max_size=4).map(tuple)


@given(prelude=NUMBERS, core=NUMBERS.filter(len), coda=NUMBERS, times=st.integers(2, 9))
def test_a_plan_is_read_as_it_is_written(
    prelude: tuple[int, ...], core: tuple[int, ...], coda: tuple[int, ...], times: int
) -> None:
    plan = SharingPlan(prelude, core, coda, times)
    assert SharingPlan.parse(str(plan), 12) == plan
    assert plan.order == prelude + core * times + coda
    assert (plan.stored, plan.applied) == (len(prelude + core + coda), len(plan.order))


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("0 (3 4)x2 5", (0, 3, 4, 3, 4, 5)),
        ("0-2 5", (0, 1, 2, 5)),
        ("  (0-1) x 3 ", (0, 1, 0, 1, 0, 1)),
        ("", (0, 1, 2, 3, 4, 5)),
        ("3 3", (3, 3)),
        ("0(3)x2 5", (0, 3, 3, 5)),
    ],
)
def test_ways_to_write_one(text: str, order: tuple[int, ...]) -> None:
    assert SharingPlan.parse(text, 6).order == order


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 6", "the encoder has no layer 6; allowed: 0 to 5"),
        ("4-2", "the range 4-2 runs backwards"),
        ("0 (3 4", "a group is not closed"),
        ("0 3)x2", "a group is closed that has no layers or was not opened"),
        ("()x2", "a group is closed that has no layers"),
        ("(1)x2 (2)x2", "more than one group"),
        ("((1)x2)x2", "one within another"),
        ("(1)x0", "applied at least once"),
        ("0 a", "'a' is neither a layer nor a group"),
        ("-1", "'-1' is neither a layer nor a group"),
        ("(1)x5000", "more than 1024"),
        ("0 " * 3000, "more than 1024"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SharingPlan.parse(text, 6)
    message = str(caught.value)
    assert why in message and "'0 (3 4)x2 5'" in message and "\n" not in message and len(message) < 300


@pytest.mark.parametrize(
    ("plan", "layers", "stands_for"),
    [
        ("0 (3 4)x2 5", 6, [1, 2, 3, 4, 5, 6]),
        ("0 3 4 5", 6, [1, 4, 5, 6]),
        ("0 5", 6, [1, 6]),
        ("0 (3)x2 5", 6, [2, 3, 4, 6]),
        ("(0 1 2)x4", 12, list(range(1, 13))),
    ],
)
def test_a_layer_stands_for_one_of_the_teacher(plan: str, layers: int, stands_for: list[int]) -> None:
    assert align(SharingPlan.parse(plan, layers), layers) == stands_for
