"""Losses of rows with one label, and their gradients, against the papers' equations written out row by row."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from recurra.core.errors import ConfigurationError
from recurra.core.progress import Reporter
from recurra.data.batching import Collator
from recurra.training.distillation import RowLoss, logit_adjustment
from recurra.training.fit import train_transformer
from recurra.training.protocols import PROTOCOLS, ProtocolConfig
from tiny import tiny_model, tiny_split


def shares(logits: list[float]) -> list[float]:
    powers = [math.exp(value) for value in logits]
    return [power / sum(powers) for power in powers]


LOGITS = [[2.0, -1.0, 0.3], [0.1, 0.2, -0.4], [-3.0, 1.0, 4.0], [1.0, 1.0, 1.0]]
LABELS = [0, 1, 0, 2]


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_focal_loss_and_its_gradient_are_those_of_the_paper(gamma: float) -> None:
    """Equation 4, and its derivative by the chain rule with the softmax's Jacobian."""
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    found = RowLoss(focal_gamma=gamma).of_rows(logits, torch.tensor(LABELS))
    found.sum().backward()
    for row, label, loss, slope in zip(LOGITS, LABELS, found.tolist(), logits.grad.tolist(), strict=True):
        p = shares(row)
        right = p[label]
        assert loss == pytest.approx(-((1 - right) ** gamma) * math.log(right))
        by_p = gamma * (1 - right) ** (gamma - 1) * math.log(right) - (1 - right) ** gamma / right
        wanted = [by_p * right * ((index == label) - share) for index, share in enumerate(p)]
        assert slope == pytest.approx(wanted)


def test_a_row_that_is_surely_right_has_no_loss_and_a_finite_gradient() -> None:
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    loss = RowLoss(focal_gamma=0.5).of_rows(logits, torch.tensor([0]))
    loss.sum().backward()
    assert loss.item() == 0
    assert logits.grad.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_logit_adjustment_and_its_gradient_are_those_of_the_paper(tau: float) -> None:
    """Equation 10: a pairwise loss with margins of the ratios of priors."""
    counts = [70, 20, 10]
    labels = np.repeat(np.arange(3), counts)
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    found = RowLoss(adjustment=logit_adjustment(labels, 3, tau)).of_rows(logits, torch.tensor(LABELS))
    found.sum().backward()
    for row, label, loss, slope in zip(LOGITS, LABELS, found.tolist(), logits.grad.tolist(), strict=True):
        pairs = [
            (counts[other] / counts[label]) ** tau * math.exp(row[other] - row[label])
            for other in range(3)
            if other != label
        ]
        assert loss == pytest.approx(math.log(1 + sum(pairs)), abs=1e-6)
        p = shares([value + tau * math.log(count / 100) for value, count in zip(row, counts, strict=True)])
        assert slope == pytest.approx([share - (index == label) for index, share in enumerate(p)], abs=1e-6)


def test_exits_learn_by_the_same_loss_and_weights_of_rows_count() -> None:
    """Equation 5 of the focal loss: its weights a class are weights of rows here."""
    model = tiny_model(hidden_dropout=0.0, exits=[1], exit_loss_weight=0.3)
    batch = Collator(0)(tiny_split(4).__getitems__(range(4)))
    weights = torch.tensor([0.5, 1.5, 1.0, 1.0])
    output = model(**batch)

    def focal(logits: torch.Tensor) -> torch.Tensor:
        p = logits.softmax(-1)[torch.arange(4), batch["labels"]]
        return (weights * -((1 - p) ** 2) * p.log()).mean()

    wanted = 0.7 * focal(output.logits) + 0.3 * focal(output.exit_logits[0])
    found = RowLoss(focal_gamma=2.0, exit_loss_weight=0.3)(model, {**batch, "row_weights": weights})
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("key", ["focal_gamma", "logit_adjustment"])
def test_training_takes_the_loss_and_what_chooses_the_epoch_does_not(key: str, tmp_path: Path) -> None:
    """With a learning rate that moves nothing, the rows that are trained on and chosen by have the same loss else."""
    values = {**PROTOCOLS["demo"].plain(), "learning_rate": 1e-12, "max_epochs": 1}
    split = tiny_split(32)
    split.labels[:] = np.arange(32) % 4 == 0
    losses = {}
    for value in (0.0, 2.0):
        record = train_transformer(
            tiny_model(hidden_dropout=0.0), split, split, ProtocolConfig.parse({**values, key: value}),
            folder=tmp_path / str(value), seed=0, precision="fp32", reporter=Reporter(quiet=True),
        )  # fmt: skip
        losses[value] = record.history[0].train_loss, record.history[0].validation_loss
    assert losses[0.0][0] == pytest.approx(losses[0.0][1], abs=1e-3)
    assert losses[2.0][1] == pytest.approx(losses[0.0][1])
    assert abs(losses[2.0][0] - losses[0.0][0]) > 0.1


@pytest.mark.parametrize("other", ["label_smoothing", "logit_adjustment"])
def test_two_losses_at_once_are_refused(other: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'focal_gamma' is 2 beside '{other}'"):
        ProtocolConfig.parse({**PROTOCOLS["demo"].plain(), "focal_gamma": 2.0, other: 0.1})
