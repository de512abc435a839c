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
from references import recurrent_transformer as reference
from tiny import laid_out, rows_of, stir, tiny_model

EXITS: dict[str, Any] = {"num_recurrences": 5, "exits": [1, 2, 3, 4]}
LENGTHS = [5, 3, 5, 1, 4, 2, 6, 3]


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

    def describe(self) -> str:
        return f"a spread of at least {self.threshold:g}"


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
def test_it_stops_rows_as_defined_at_a_threshold_that_rows_choose(layout: str) -> None:
    shape = {"vocab_size": 12, "hidden_size": 8, "intermediate_size": 6, "num_labels": 5, "heads": "separate", **EXITS}
    model = tiny_model(**shape).double().eval()
    stir(model, seed=4, spread=0.3)
    rows = rows_of(LENGTHS, 12)
    with torch.no_grad():
        weights = dict(model.named_parameters())
        by_exit = [reference.classify_exits(row, None, weights, model.config) for row in rows]
        arrays = {number: np.stack([logits[number].numpy() for logits in by_exit]) for number in range(1, 6)}
        threshold = float(np.median([spread(arrays[number]) for number in range(1, 5)]))
        output = model(**laid_out(rows, layout), exit_rule=SpreadRule(threshold))
    depths = [
        next(number for number in range(1, 6) if number == 5 or spread(logits[number]) >= threshold)
        for logits in by_exit
    ]
    assert output.exited_after.tolist() == depths == depths_under(SpreadRule(threshold), arrays).tolist()
    assert len(set(depths)) > 2
    wanted = torch.stack([logits[depth] for logits, depth in zip(by_exit, depths, strict=True)])
    torch.testing.assert_close(output.logits.double(), wanted, rtol=2e-5, atol=2e-6)
    chosen = calibrate_classifier(arrays, 0.5, kind="spread")
    assert isinstance(chosen.rule, SpreadRule) and chosen.quality >= 0.5 and chosen.mean_recurrences < 5


def test_a_measure_that_falls_may_lie_anywhere() -> None:
    """Farther from the mean than the entropy of two classes goes."""
    early = np.array([[9.0, 0.0], [0.0, 12.0], [15.0, 0.0]])
    chosen = calibrate_classifier({1: early, 2: 2 * early}, 1, kind="close")
    assert isinstance(chosen.rule, CloseRule) and chosen.mean_recurrences == 1
