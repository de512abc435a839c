"""A classifier's threshold keeps what it promises where rows really stop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recurra.core.errors import ConfigurationError
from recurra.models.exits.thresholds import calibrate_classifier
from tiny import stir, tiny_model


@pytest.mark.parametrize("kind", ["confidence", "entropy"])
def test_a_threshold_keeps_the_agreement_of_a_classifier(kind: str) -> None:
    model = tiny_model(num_recurrences=4, exits=[1, 3]).eval()
    stir(model, spread=0.4)
    ids = torch.randint(1, 40, (200, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = model(ids)
    logits = {1: output.exit_logits[0], 3: output.exit_logits[1], 4: output.logits}
    by_exit = {number: scores.numpy() for number, scores in logits.items()}
    depths = []
    for agreement in (1.0, 0.95, 0.8, 1e-9):
        chosen = calibrate_classifier(by_exit, agreement, kind=kind)
        with torch.no_grad():
            found = model(ids, exit_rule=chosen.rule)
        share = float((found.logits.argmax(-1) == output.logits.argmax(-1)).double().mean())
        assert share == pytest.approx(chosen.quality) and chosen.quality >= agreement
        if chosen.rule is not None:
            assert np.bincount(found.exited_after.numpy(), minlength=5)[[1, 3, 4]].tolist() == [
                chosen.exit_counts[number] for number in (1, 3, 4)
            ]
        assert chosen.plain() == {
            "rule": None if chosen.rule is None else chosen.rule.plain(),
            "quality": chosen.quality,
            "full": chosen.full,
            "mean_recurrences": chosen.mean_recurrences,
            "taken": {str(number): chosen.exit_counts[number] for number in (1, 3, 4) if chosen.exit_counts[number]},
        }
        depths.append(chosen.mean_recurrences)
    assert depths == sorted(depths, reverse=True) and depths[-1] == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"exit_logits": {1: np.ones((2, 2))}, "agreement": 0.9}, "nothing to choose a threshold on"),
        ({"exit_logits": {}, "agreement": 1.5}, "agreement is 1.5; allowed: above 0, at most 1"),
        ({"exit_logits": {}, "agreement": 0.5, "kind": "entropi"}, "unknown exit rule to calibrate 'entropi' .did you"),
    ],
)
def test_what_cannot_be_is_one_clear_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        calibrate_classifier(**asked)
