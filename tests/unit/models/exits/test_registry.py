"""Rules by name: what a user may ask for, and what a record may hold."""

from __future__ import annotations

import math
from typing import Any

import pytest

from recurra.core.errors import ConfigurationError
from recurra.models.exits.rules import make_rule, read_rule


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rule": "entropi", "threshold": 1}, "unknown exit rule 'entropi'"),
        ({}, "unknown exit rule 'None'"),
        ({"rule": "entropy"}, "exit rule 'entropy' cannot be read"),
        ({"rule": "confidence", "start": 2.0}, "threshold is 2; allowed"),
    ],
)
def test_a_rule_that_is_none_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read_rule(values)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"name": "confidenc"}, r"unknown exit rule 'confidenc' \(did you mean 'confidence'\?\); allowed: confidence"),
        (
            {"name": "confidence", "threshold": 1.5},
            "threshold is 1.5; allowed for rule 'confidence': above 0",
        ),
        ({"name": "confidence", "threshold": math.nan}, "threshold is nan"),
        ({"name": "entropy", "threshold": -1.0}, "threshold is -1; allowed for rule 'entropy': nats above 0"),
        ({"name": "entropy"}, "rule 'entropy' needs a threshold in nats"),
        ({"name": "fixed"}, "rule 'fixed' needs the exit after which"),
        ({"name": "entropy", "threshold": 1.0, "after": 2}, "an exit is for rule 'fixed', not for 'entropy'"),
        ({"name": None, "threshold": 0.5}, "a threshold is for rule 'confidence' or 'entropy'"),
    ],
)
def test_what_cannot_be_is_one_clear_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        make_rule(**asked)
    assert "\n" not in str(caught.value)
