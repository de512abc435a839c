"""Rules: what they decide, in numbers worked out by hand, what they refuse, and that thresholds keep their promise."""

from __future__ import annotations

import functools
import math
from collections import Counter
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
    read_rule,
)
from recurra.models.exits.thresholds import calibrate_classifier, depths_under
from references.exits import entropy_of, shares_of
from tiny import language_config, language_model, stirred, tiny_config, tiny_model

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


ONES = {number: np.ones((298, 2)) for number in (1, 2)}


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
        ({"exit_logits": {1: np.ones((2, 2))}, "agreement": 0.9}, "nothing to choose a threshold on"),
        ({"exit_logits": ONES, "agreement": 0.99, "confidence": 0.95}, "takes at least 299 rows, and there are 298"),
        ({"exit_logits": {}, "agreement": 0.5, "confidence": 1.0}, "confidence is 1; allowed: above 0 and below 1"),
        ({"exit_logits": {}, "agreement": 1.5}, "agreement is 1.5; allowed: above 0, at most 1"),
        ({"exit_logits": {}, "agreement": 0.5, "kind": "entropi"}, "unknown exit rule to calibrate 'entropi' .did you"),
    ],
)
def test_what_cannot_be_read_made_or_calibrated_is_one_clear_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        if "rule" in asked:
            read_rule(asked)
        else:
            make_rule(**asked) if "name" in asked else calibrate_classifier(**asked)
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


@pytest.mark.parametrize("kind", ["confidence", "entropy"])
@torch.no_grad()
def test_a_threshold_keeps_the_agreement_of_a_classifier(kind: str) -> None:
    model = stirred(num_recurrences=4, exits=[1, 3], spread=0.4)
    ids = torch.randint(1, 40, (200, 7), generator=torch.Generator().manual_seed(0))
    output = model(ids)
    logits = {1: output.exit_logits[0], 3: output.exit_logits[1], 4: output.logits}
    by_exit = {number: scores.numpy() for number, scores in logits.items()}
    depths = []
    for agreement in (1.0, 0.95, 0.8, 1e-9):
        chosen = calibrate_classifier(by_exit, agreement, kind=kind)
        found = model(ids, exit_rule=chosen.rule)
        share = float((found.logits.argmax(-1) == output.logits.argmax(-1)).double().mean())
        assert share == pytest.approx(chosen.quality) and chosen.quality >= agreement
        if chosen.rule is not None:
            assert Counter(found.exited_after.tolist()) == Counter(chosen.exit_counts)
        assert chosen.plain() == {
            "rule": None if chosen.rule is None else chosen.rule.plain(),
            "quality": chosen.quality,
            "full": chosen.full,
            "mean_recurrences": chosen.mean_recurrences,
            "taken": {str(number): chosen.exit_counts[number] for number in (1, 3, 4) if chosen.exit_counts[number]},
        }
        depths.append(chosen.mean_recurrences)
    assert depths == sorted(depths, reverse=True) and depths[-1] == 1


@pytest.mark.parametrize("promised", [None, 0.9])
def test_no_entropy_is_chosen_that_every_row_would_reach(promised: float | None) -> None:
    # Exits that always say what the last head says, some by an even guess.
    logits = np.array([[0.0, 0.0]] * 100 + [[4.0, 0.0]] * 900, dtype=np.float32)
    chosen = calibrate_classifier({1: logits, 2: logits}, 0.9, kind="entropy", confidence=promised)
    assert chosen.rule is not None
    chosen.rule.check(tiny_config(num_recurrences=2, exits=[1]), 2)


def draw(rows: int, generator: np.random.Generator) -> dict[int, np.ndarray]:
    """Logits of a model whose exit is right more often the surer it is, but by no means always."""
    last = 3 * generator.standard_normal((rows, 3))
    return {1: last + 2.5 * generator.standard_normal((rows, 3)), 2: last}


@pytest.mark.parametrize(
    ("kind", "draws"),
    [
        ("confidence", 120),
        pytest.param("confidence", 1_000, marks=pytest.mark.slow),
        pytest.param("entropy", 1_000, marks=pytest.mark.slow),
    ],
)
def test_a_promise_is_broken_no_more_often_than_it_says(kind: str, draws: int) -> None:
    generator = np.random.default_rng(0)
    fresh = draw(10_000, generator)
    early, last = (fresh[number].argmax(-1) for number in (1, 2))

    @functools.lru_cache
    def of_fresh(rule: ExitRule | None) -> float:
        leaves = depths_under(rule, fresh) == 1 if rule is not None else np.zeros(len(last), dtype=bool)
        return float((np.where(leaves, early, last) == last).mean())

    asked, broken, observed, exits = 0.95, 0, 0, 0.0
    for number in range(draws):
        rows = draw(300, generator)
        promised = calibrate_classifier(rows, asked, kind=kind, confidence=0.9)
        broken += of_fresh(promised.rule) < asked
        exits += promised.exit_counts[1] / 300 / draws
        if number < 60:
            observed += of_fresh(calibrate_classifier(rows, asked, kind=kind).rule) < asked
    # 10 % of the draws and three standard deviations of that; a threshold without a promise breaks it more often.
    assert broken <= 0.1 * draws + 3 * np.sqrt(0.09 * draws) and observed > 12
    assert exits > 0.1, "a promise that lets nobody leave is none"
