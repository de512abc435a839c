"""Rules: what they decide, in numbers worked out by hand, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from recurra.core.errors import ConfigurationError
from recurra.models.exits.rules import (
    ConfidenceRule,
    EntropyRule,
    ExitRule,
    FixedExit,
    confidence,
    entropy,
    make_rule,
    mean_of_rows,
    read_rule,
)
from references.exits import entropy_of, shares_of
from tiny import language_config, language_model, stirred, tiny_model

# Probabilities 3/4, 1/4 and 1/2, 1/2.
SURE, TORN = [math.log(3.0), 0.0], [5.0, 5.0]
ENTROPY_OF_SURE = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)


def test_the_papers_schedule_falls_to_its_floor() -> None:
    rule = ConfidenceRule()
    # 0.92 * 0.98^7 is 0.799.
    assert [round(rule.bound(number), 6) for number in (2, 4, 6, 7, 8)] == [0.883568, 0.848579, 0.814975, 0.8, 0.8]
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
    assert rule.decide(torch.tensor([SURE, TORN]), 2).tolist() == left
    # A row of several positions leaves by their mean; what is not counted does not decide.
    rows = torch.tensor([[SURE, SURE, TORN], [TORN, TORN, SURE]])
    counted = torch.tensor([[True, True, False], [True, True, False]])
    assert rule.decide(rows, 2, counted=counted).tolist() == left


@pytest.mark.parametrize(
    ("rule", "exits", "said"),
    [
        (ConfidenceRule(), [], "this model was trained without; train one with exits"),
        (FixedExit(5), [1], r"there is no head after recurrence 5; allowed for this model: 1, 2"),
        (EntropyRule(2.5), [1], r"threshold is 2.5; .* below 2.398 nats, the entropy of 11 equally"),
    ],
)
def test_a_rule_is_held_against_the_model(rule: ExitRule, exits: list[int], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        rule.check(language_config(exits=exits), 11)
    for good in (EntropyRule(2.3), FixedExit(2)):
        good.check(language_config(), 11)


def test_a_fixed_exit_after_the_last_recurrence_is_the_whole_model_with_its_coda() -> None:
    model = stirred(num_recurrences=2, num_coda_layers=1)
    ids = torch.randint(1, 40, (3, 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, fixed = model(ids), model(ids, exit_rule=FixedExit(2))
    torch.testing.assert_close(fixed.logits, whole.logits, rtol=0, atol=0)
    assert fixed.exited_after.tolist() == [2, 2, 2]


def test_a_rule_is_for_inference() -> None:
    ids = torch.ones(2, 3, dtype=torch.long)
    for model, labels in ((language_model(), ids), (tiny_model(exits=[1]), ids[:, 0])):
        with pytest.raises(ConfigurationError, match="came with labels; a rule is for inference"):
            model(ids, labels=labels, exit_rule=ConfidenceRule())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rule": "entropi", "threshold": 1}, "unknown exit rule 'entropi'"),
        ({"rule": "entropy"}, "exit rule 'entropy' cannot be read"),
        ({"rule": "confidence", "start": 2.0}, "threshold is 2; allowed"),
        ({"rule": "fixed", "after": True}, "after is True; allowed"),
        ({"name": "confidenc"}, r"unknown exit rule 'confidenc' \(did you mean 'confidence'\?\); allowed: confidence"),
        ({"name": "confidence", "threshold": 1.5}, "threshold is 1.5; allowed for rule 'confidence': above 0"),
        ({"name": "entropy", "threshold": -1.0}, "threshold is -1; allowed for rule 'entropy': nats above 0"),
        ({"name": "entropy"}, "rule 'entropy' needs a threshold in nats"),
        ({"name": "entropy", "threshold": 1.0, "after": 2}, "an exit is for rule 'fixed', not for 'entropy'"),
        ({"name": None, "threshold": 0.5}, "a threshold is for rule 'confidence' or 'entropy'"),
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_read_or_made_is_one_clear_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_rule(asked) if "rule" in asked else make_rule(**asked)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("library", [torch.tensor, np.array])
@pytest.mark.parametrize("classes", [2, 100])
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
