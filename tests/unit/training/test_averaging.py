"""The moving average of the weights, held against its closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainerCallback

from recurra.core.progress import Reporter
from recurra.training import fit as fit_module
from recurra.training.fit import train_transformer
from recurra.training.protocols import ProtocolConfig
from recurra.training.trainer import UNAVERAGED_NAME, WeightAverage
from tiny import tiny_model, tiny_split

DECAY = 0.6


def protocol(**values: Any) -> ProtocolConfig:
    settings = {"learning_rate": 1e-2, "batch_size": 16, "max_epochs": 2, "early_stopping_patience": 0}
    return ProtocolConfig(**{"name": "test", **settings, **values})


def closed_form(history: list[Tensor], decay: float) -> Tensor:
    """Sum of all weights so far, each times its share; the shares are products of decays, and add up to 1."""
    steps = len(history) - 1
    decays = [min(decay, (1 + step) / (10 + step)) for step in range(1, steps + 1)]
    shares = [(1 - decays[step - 1] if step else 1.0) for step in range(steps + 1)]
    for step in range(steps + 1):
        for later in decays[step:]:
            shares[step] *= later
    assert sum(shares) == pytest.approx(1)
    return sum(share * weight.double() for share, weight in zip(shares, history, strict=True))  # type: ignore[return-value]


class Watch(TrainerCallback):
    """Keeps the classifier's weight after every step."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.seen = [model.classifier.weight.detach().clone().cpu()]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seen.append(self.model.classifier.weight.detach().clone().cpu())


def test_the_average_of_a_training_is_its_closed_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    watch = Watch(model)
    monkeypatch.setattr(fit_module, "TimedCheckpoints", lambda: watch)
    train_transformer(
        model, tiny_split(rows=48, seed=1), tiny_split(rows=32, seed=2), protocol(weight_averaging=DECAY),
        folder=tmp_path, seed=0, precision="fp32", reporter=Reporter(quiet=True),
    )  # fmt: skip
    assert len(watch.seen) == 7
    last = tmp_path / "checkpoints" / "checkpoint-6"
    averaged, own = load_file(last / "model.safetensors"), load_file(last / UNAVERAGED_NAME)
    torch.testing.assert_close(
        averaged["classifier.weight"].double(), closed_form(watch.seen, DECAY), atol=1e-6, rtol=0
    )
    assert torch.equal(own["classifier.weight"], watch.seen[-1])
    assert not torch.equal(averaged["classifier.weight"], own["classifier.weight"])


def test_the_averages_are_what_is_evaluated_and_left_in_the_model(tmp_path: Path) -> None:
    model = tiny_model()
    selection = tiny_split(rows=32, seed=2)
    record = train_transformer(
        model, tiny_split(rows=48, seed=1), selection, protocol(weight_averaging=DECAY),
        folder=tmp_path, seed=0, precision="fp32", reporter=Reporter(quiet=True),
    )  # fmt: skip
    best = load_file(tmp_path / "checkpoints" / f"checkpoint-{3 * record.best_epoch}" / "model.safetensors")
    assert torch.equal(model.cpu().state_dict()["classifier.weight"], best["classifier.weight"])
    losses = []
    with torch.no_grad():
        for row in (selection[index] for index in range(len(selection))):
            ids, label = torch.tensor(row["input_ids"][None].astype("int64")), torch.tensor([row["labels"]])
            losses.append(float(model.eval()(ids, labels=label).loss))
    expected = min(epoch.validation_loss for epoch in record.history)
    assert sum(losses) / len(losses) == pytest.approx(expected, rel=1e-5)


def test_the_averages_are_in_place_for_the_time_only() -> None:
    model = tiny_model()
    average = WeightAverage(model, DECAY)
    before = model.classifier.weight.detach().clone()
    with torch.no_grad():
        model.classifier.weight.add_(1.0)
    parameter = model.classifier.weight
    with pytest.raises(KeyboardInterrupt), average.in_place():
        assert torch.equal(model.classifier.weight, before)
        raise KeyboardInterrupt
    assert model.classifier.weight is parameter
    assert torch.equal(parameter, before + 1)
