"""Rules by name: what a user may ask for, and what a record may hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from recurra.core.errors import ConfigurationError
from recurra.models.exits.rules import ConfidenceRule, EntropyRule, ExitRule, FixedExit, make_rule, read_rule


@pytest.mark.parametrize("rule", [ConfidenceRule(), ConfidenceRule.constant(0.7), EntropyRule(0.3), FixedExit(2)])
def test_a_rule_can_be_written_and_read(rule: ExitRule) -> None:
    assert read_rule(json.loads(json.dumps(rule.plain()))) == rule


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


def test_a_rule_has_a_name() -> None:
    assert make_rule(None) is None
    assert make_rule("confidence") == ConfidenceRule()
    assert make_rule("confidence", threshold=0.6) == ConfidenceRule.constant(0.6)
    assert make_rule("entropy", threshold=0.5) == EntropyRule(0.5)
    assert make_rule(None, after=2) == make_rule("fixed", after=2) == FixedExit(2)


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
