"""Rules: what they decide, in numbers worked out by hand, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch

from recurra.core.errors import ConfigurationError
from recurra.models.exits.rules import ConfidenceRule, EntropyRule, ExitRule, FixedExit
from tiny import language_config, language_model, tiny_model

# Probabilities 3/4, 1/4 and 1/2, 1/2.
SURE, TORN = [math.log(3.0), 0.0], [5.0, 5.0]
ENTROPY_OF_SURE = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)


def test_the_papers_schedule_falls_to_its_floor() -> None:
    rule = ConfidenceRule()
    assert [round(rule.bound(number), 6) for number in (2, 4, 6)] == [0.883568, 0.848579, 0.814975]
    # 0.92 * 0.98^7 is 0.799.
    assert [rule.bound(number) for number in (7, 8)] == [0.80, 0.80]
    assert [ConfidenceRule.constant(0.7).bound(number) for number in (1, 50)] == [0.7, 0.7]


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (ConfidenceRule.constant(0.75), [True, False]),
        (ConfidenceRule.constant(0.76), [False, False]),
        (ConfidenceRule.constant(0.5), [True, True]),
        (EntropyRule(ENTROPY_OF_SURE + 1e-6), [True, False]),
        (EntropyRule(ENTROPY_OF_SURE - 1e-6), [False, False]),
        (FixedExit(2), [True, True]),
        (FixedExit(3), [False, False]),
    ],
)
def test_rows_leave_as_the_rule_says(rule: ExitRule, left: list[bool]) -> None:
    assert rule.decide(torch.tensor([SURE, TORN]), 2).exits.tolist() == left
    # A row of several positions leaves by their mean; what is not counted does not decide.
    rows = torch.tensor([[SURE, SURE, TORN], [TORN, TORN, SURE]])
    counted = torch.tensor([[True, True, False], [True, True, False]])
    assert rule.decide(rows, 2, counted=counted).exits.tolist() == left


def test_a_rule_is_held_against_the_model() -> None:
    with pytest.raises(ConfigurationError, match="this model was trained without; train one with exits"):
        ConfidenceRule().check(language_config(exits=[]), 11)
    with pytest.raises(ConfigurationError, match=r"there is no head after recurrence 5; allowed for this model: 1, 2"):
        FixedExit(5).check(language_config(), 11)
    with pytest.raises(ConfigurationError, match=r"threshold is 2.5; .* below 2.398 nats, the entropy of 11 equally"):
        EntropyRule(2.5).check(language_config(), 11)
    EntropyRule(2.3).check(language_config(), 11)
    FixedExit(2).check(language_config(), 11)


def test_a_rule_is_for_inference() -> None:
    ids = torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(ConfigurationError, match="came with labels; a rule is for inference"):
        language_model()(ids, labels=ids, exit_rule=ConfidenceRule())
    with pytest.raises(ConfigurationError, match="came with labels; a rule is for inference"):
        tiny_model(exits=[1])(ids, labels=torch.ones(2, dtype=torch.long), exit_rule=ConfidenceRule())
