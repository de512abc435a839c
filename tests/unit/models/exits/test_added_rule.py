"""A rule that is added is a registered class and nothing else: every loop, record and calibration takes it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import torch
from torch import Tensor

from recurra import RecurraForCausalLM, RecurraForSequenceClassification
from recurra.core.errors import ConfigurationError
from recurra.evaluation.token_exits import score_token_exits
from recurra.models.cache import RecurraCache
from recurra.models.exits import rules as registry
from recurra.models.exits.rules import (
    Decision,
    ExitMeasure,
    ExitRule,
    ThresholdRule,
    make_rule,
    read_rule,
    register_rule,
    summarise_rules,
    threshold_rule_names,
)
from recurra.models.exits.thresholds import calibrate_classifier, depths_under
from references import recurrent_transformer as reference
from references.exiting_decoder import decode
from tiny import laid_out, language_model, rows_of, stir, tiny_model

EXITS: dict[str, Any] = {"num_recurrences": 5, "exits": [1, 2, 3, 4]}
LENGTHS = [5, 3, 5, 1, 4, 2, 6, 3]


@dataclasses.dataclass(frozen=True)
class PatienceRule(ExitRule):
    """Stops when so many exits in a row name the same class; of several positions the last one is looked at."""

    name: ClassVar[str] = "patience"
    summary: ClassVar[str] = "patience"
    options: ClassVar[frozenset[str]] = frozenset({"threshold"})

    exits: int = 2

    @classmethod
    def make(cls, **options: Any) -> Self:
        return cls(int(options.get("threshold", 2)))

    def decide(self, logits: Any, recurrence: int, *, counted: Any = None, state: Any = None) -> Decision:
        labels = logits.argmax(-1) if logits.ndim == 2 else logits[:, -1].argmax(-1)
        before = labels * 100 if state is None else state
        agreeing = (before % 100) * (before // 100 == labels) + 1
        return Decision(agreeing >= self.exits, labels * 100 + agreeing)

    def describe(self) -> str:
        return f"{self.exits} exits that agree"


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


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    register_rule(PatienceRule)
    register_rule(SpreadRule)


def patient(exits: int) -> Callable[[Tensor, int], bool]:
    """The definition, told of one row's exits in their order."""
    said: list[int] = []

    def stops(logits: Tensor, at: int) -> bool:
        if at == 1:
            said.clear()
        said.append(int(logits.reshape(-1, logits.shape[-1])[-1].argmax()))
        return len(said) >= exits and len(set(said[-exits:])) == 1

    return stops


def classifier() -> RecurraForSequenceClassification:
    model = tiny_model(vocab_size=12, hidden_size=8, intermediate_size=6, num_labels=5, heads="separate", **EXITS)
    model = model.double().eval()
    stir(model, seed=4, spread=0.3)
    return model


def decoder() -> RecurraForCausalLM:
    model = language_model(**EXITS).double().eval()
    stir(model, spread=0.2)
    return model


def test_names_records_and_help_know_it() -> None:
    assert make_rule("patience", threshold=3) == PatienceRule(3) and make_rule("patience") == PatienceRule()
    assert make_rule("spread", threshold=0.5) == SpreadRule(0.5)
    for rule in (PatienceRule(4), SpreadRule(0.5)):
        assert read_rule(json.loads(json.dumps(rule.plain()))) == rule
    assert summarise_rules() == "confidence (the papers' schedule), entropy, fixed, patience, or spread"
    assert threshold_rule_names() == ("confidence", "entropy", "spread")
    with pytest.raises(ConfigurationError, match=r"'patienc' \(did you mean 'patience'\?\); allowed: confidence, entr"):
        make_rule("patienc")
    with pytest.raises(ConfigurationError, match="an exit is for rule 'fixed', not for 'patience'"):
        make_rule("patience", after=1)
    with pytest.raises(ConfigurationError, match="unknown exit rule to calibrate 'patience'; allowed: confidence, en"):
        calibrate_classifier({}, 0.5, kind="patience")


@pytest.mark.parametrize("layout", ["right", "packed"])
def test_a_rule_with_a_state_stops_rows_as_defined(layout: str) -> None:
    """Rows stop one after another, so that the state has to follow those that remain."""
    model, rows = classifier(), rows_of(LENGTHS, 12)
    seen: set[int] = set()
    with torch.no_grad():
        weights = dict(model.named_parameters())
        by_exit = [reference.classify_exits(row, None, weights, model.config) for row in rows]
        for patience in (1, 2, 3):
            output = model(**laid_out(rows, layout), exit_rule=PatienceRule(patience))
            depths = []
            for logits in by_exit:
                stops = patient(patience)
                depths.append(next(number for number in range(1, 6) if number == 5 or stops(logits[number], number)))
            assert output.exited_after.tolist() == depths
            wanted = torch.stack([logits[depth] for logits, depth in zip(by_exit, depths, strict=True)])
            torch.testing.assert_close(output.logits.double(), wanted, rtol=2e-5, atol=2e-6)
            arrays = {number: np.stack([logits[number].numpy() for logits in by_exit]) for number in range(1, 6)}
            assert depths_under(PatienceRule(patience), arrays).tolist() == depths
            seen |= set(depths)
    assert seen >= {1, 3, 4, 5}


def test_a_rule_with_a_state_decodes_as_defined() -> None:
    model = decoder()
    ids = torch.randint(0, 11, (1, 20), generator=torch.Generator().manual_seed(4))
    rule, cache = PatienceRule(2), RecurraCache(model.config)
    with torch.no_grad():
        steps = [model(ids[:, place : place + 1], past_key_values=cache, exit_rule=rule) for place in range(20)]
        wanted, depths = decode(ids[0].tolist(), dict(model.named_parameters()), model.config, patient(2))
    assert [int(step.exited_after) for step in steps] == depths and len(set(depths)) > 1
    torch.testing.assert_close(torch.stack([step.logits[0, 0] for step in steps]), torch.stack(wanted))
    # And scoring in one pass counts what decoding takes.
    text = np.array([*ids[0, 1:].tolist(), 0])
    scores = score_token_exits(model, [text], rule, first_read=int(ids[0, 0]), context=20)
    assert scores.exit_counts == Counter(depths)
