"""A classifier's threshold keeps what it promises where rows really stop."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from recurra.core.errors import ConfigurationError
from recurra.models.exits.rules import ExitRule
from recurra.models.exits.thresholds import calibrate_classifier, depths_under
from tiny import stirred, tiny_config


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


@pytest.mark.parametrize("confidence", [None, 0.9])
def test_no_entropy_is_chosen_that_every_row_would_reach(confidence: float | None) -> None:
    # Exits that always say what the last head says, some by an even guess.
    logits = np.array([[0.0, 0.0]] * 100 + [[4.0, 0.0]] * 900, dtype=np.float32)
    chosen = calibrate_classifier({1: logits, 2: logits}, 0.9, kind="entropy", confidence=confidence)
    assert chosen.rule is not None
    chosen.rule.check(tiny_config(num_recurrences=2, exits=[1]), 2)


def draw(rows: int, generator: np.random.Generator, labels: int = 3) -> dict[int, np.ndarray]:
    """Logits of a model whose exit is right more often the surer it is, but by no means always."""
    last = 3 * generator.standard_normal((rows, labels))
    return {1: last + 2.5 * generator.standard_normal((rows, labels)), 2: last}


def agreement(rule: ExitRule | None, by_exit: dict[int, np.ndarray]) -> float:
    if rule is None:
        return 1.0
    early, last = (by_exit[number].argmax(-1) for number in (1, 2))
    return float((np.where(depths_under(rule, by_exit) == 1, early, last) == last).mean())


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
    of_fresh = functools.lru_cache(lambda rule: agreement(rule, fresh))
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


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"exit_logits": {1: np.ones((2, 2))}, "agreement": 0.9}, "nothing to choose a threshold on"),
        (
            {"exit_logits": {1: np.ones((298, 2)), 2: np.ones((298, 2))}, "agreement": 0.99, "confidence": 0.95},
            "takes at least 299 rows, and there are 298",
        ),
        ({"exit_logits": {}, "agreement": 0.5, "confidence": 1.0}, "confidence is 1; allowed: above 0 and below 1"),
        ({"exit_logits": {}, "agreement": 1.5}, "agreement is 1.5; allowed: above 0, at most 1"),
        ({"exit_logits": {}, "agreement": 0.5, "kind": "entropi"}, "unknown exit rule to calibrate 'entropi' .did you"),
    ],
)
def test_what_cannot_be_is_one_clear_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        calibrate_classifier(**asked)
