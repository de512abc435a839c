"""Limits of the server: what makes no sense is refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from recurra.deployment.serving.settings import ServerLimits

LEAST = {
    "max_body_bytes": 1024,
    "max_texts": 1,
    "max_characters": 1,
    "batch_texts": 1,
    "max_waiting_texts": 1,
    "max_held_bytes": 1024,
    "max_connections": 1,
}


@pytest.mark.parametrize("name", LEAST)
def test_a_limit_below_which_nothing_works_is_refused(name: str) -> None:
    assert getattr(ServerLimits(**{name: LEAST[name]}), name) == LEAST[name]
    with pytest.raises(ValidationError, match=name):
        ServerLimits(**{name: LEAST[name] - 1})


@pytest.mark.parametrize("name", ["body_timeout_s", "timeout_s", "max_wait_s"])
def test_a_time_is_longer_than_none(name: str) -> None:
    assert getattr(ServerLimits(**{name: 0.01}), name) == 0.01
    with pytest.raises(ValidationError, match=name):
        ServerLimits(**{name: 0})
