"""A rule that is added is a registered class and nothing else: every loop, record and calibration takes it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from recurra.core.errors import ConfigurationError
from recurra.models.exits import rules as registry
from recurra.models.exits.rules import (
    ExitMeasure,
    ThresholdRule,
    make_rule,
    read_rule,
    register_rule,
    summarise_rules,
    threshold_rule_names,
)
from recurra.models.exits.thresholds import calibrate_classifier, depths_under
from tiny import laid_out, rows_of, stirred


def spread(logits: Any) -> Any:
    """How far the logits lie from their mean."""
    return ((logits - logits.mean(-1)[..., None]) ** 2).sum(-1) ** 0.5


@dataclasses.dataclass(frozen=True)
class SpreadRule(ThresholdRule):
    """Stops when the logits lie at least ``threshold`` away from their mean."""

    name: ClassVar[str] = "spread"
    summary: ClassVar[str] = "spread"
    measure: ClassVar[ExitMeasure] = ExitMeasure("spread", spread, rises=True)

    threshold: float

    def bound(self, recurrence: int) -> float:
        return self.threshold


@dataclasses.dataclass(frozen=True)
class CloseRule(SpreadRule):
    """Stops when they lie at most ``threshold`` away."""

    name: ClassVar[str] = "close"
    summary: ClassVar[str] = "close"
    measure: ClassVar[ExitMeasure] = ExitMeasure("closeness", spread, rises=False)


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    register_rule(SpreadRule)
    register_rule(CloseRule)


def test_names_records_and_help_know_it() -> None:
    assert make_rule("spread", threshold=0.5) == SpreadRule(0.5)
    assert read_rule(json.loads(json.dumps(SpreadRule(0.5).plain()))) == SpreadRule(0.5)
    assert summarise_rules() == "confidence (the papers' schedule), entropy, fixed, spread, or close"
    assert threshold_rule_names() == ("confidence", "entropy", "spread", "close")
    with pytest.raises(ConfigurationError, match=r"'spred' \(did you mean 'spread'\?\); allowed: confidence, entr"):
        make_rule("spred")
    with pytest.raises(ConfigurationError, match="an exit is for rule 'fixed', not for 'spread'"):
        make_rule("spread", after=1)


@pytest.mark.parametrize("layout", ["right", "packed"])
@torch.no_grad()
def test_it_stops_rows_as_defined_at_a_threshold_that_rows_choose(layout: str) -> None:
    model = stirred(num_recurrences=5, exits=[1, 2, 3, 4], num_labels=5, heads="separate").double()
    inputs = laid_out(rows_of([5, 3, 5, 1, 4, 2, 6, 3], 40), layout)
    whole = model(**inputs)
    arrays = {at: logits.numpy() for at, logits in enumerate([*whole.exit_logits, whole.logits], start=1)}
    threshold = float(np.median([spread(arrays[at]) for at in range(1, 5)]))
    output = model(**inputs, exit_rule=SpreadRule(threshold))
    depths = [next(at for at in range(1, 6) if at == 5 or spread(arrays[at][row]) >= threshold) for row in range(8)]
    assert output.exited_after.tolist() == depths == depths_under(SpreadRule(threshold), arrays).tolist()
    assert len(set(depths)) > 2
    wanted = np.stack([arrays[depth][row] for row, depth in enumerate(depths)])
    np.testing.assert_allclose(output.logits.numpy(), wanted, rtol=2e-5, atol=2e-6)
    chosen = calibrate_classifier(arrays, 0.5, kind="spread")
    assert isinstance(chosen.rule, SpreadRule) and chosen.quality >= 0.5 and chosen.mean_recurrences < 5


def test_a_measure_that_falls_may_lie_anywhere() -> None:
    """Farther from the mean than the entropy of two classes goes."""
    early = np.array([[9.0, 0.0], [0.0, 12.0], [15.0, 0.0]])
    chosen = calibrate_classifier({1: early, 2: 2 * early}, 1, kind="close")
    assert isinstance(chosen.rule, CloseRule) and chosen.mean_recurrences == 1
