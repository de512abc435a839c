"""Losses of rows with one label."""

from __future__ import annotations

import torch

from recurra.data.batching import Collator
from recurra.training.distillation import RowLoss
from tiny import tiny_model, tiny_split


def test_exits_learn_by_the_same_loss_and_weights_of_rows_count() -> None:
    model = tiny_model(hidden_dropout=0.0, exits=[1], exit_loss_weight=0.3)
    batch = Collator(0)(tiny_split(4).__getitems__(range(4)))
    weights = torch.tensor([0.5, 1.5, 1.0, 1.0])
    output = model(**batch)

    def weighted(logits: torch.Tensor) -> torch.Tensor:
        return (weights * -logits.log_softmax(-1)[torch.arange(4), batch["labels"]]).mean()

    wanted = 0.7 * weighted(output.logits) + 0.3 * weighted(output.exit_logits[0])
    found = RowLoss(exit_loss_weight=0.3)(model, {**batch, "row_weights": weights})
    torch.testing.assert_close(found, wanted)
