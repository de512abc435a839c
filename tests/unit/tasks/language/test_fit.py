"""Training language models: what a step weighs, what an epoch reports, how the learning rate goes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from recurra.core.progress import Reporter
from recurra.core.record import LanguageTrainingRecord
from recurra.data.batching import LanguageCollator
from recurra.data.language.tokenization import EncodedText, LineSamples, PackedBlocks
from recurra.models.heads import weigh_losses
from recurra.models.inference import default_device
from recurra.models.recurrence import LayerStack
from recurra.tasks.language.training import train_language_model
from recurra.training.checkpoint import SCALER_NAME, load_optimizer
from recurra.training.fit import CHECKPOINTS_NAME
from recurra.training.protocols import ProtocolConfig
from recurra.training.trainer import RecurraTrainer
from tiny import language_model

CONTEXT = 12


def counting(texts: int = 40, seed: int = 0) -> EncodedText:
    """Texts of different lengths that count upwards."""
    dice = np.random.default_rng(seed)
    pieces = [(np.arange(dice.integers(2, 14)) + dice.integers(0, 10)) % 10 + 1 for _ in range(texts)]
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
    return EncodedText(np.concatenate(pieces).astype(np.int32), offsets, 0, words=1, num_bytes=1)


def fit(
    folder: Path, *, kind: Any = LineSamples, texts: int = 40, precision: str = "fp32", **values: Any
) -> tuple[Any, LanguageTrainingRecord]:
    protocol = ProtocolConfig(
        **{
            "name": "test", "learning_rate": 1e-2, "batch_size": 8, "max_epochs": 1, "early_stopping_patience": 0,
            "evaluation_batch_size": 3, **values,
        }
    )  # fmt: skip
    model = language_model(seed=0).to(default_device())
    record = train_language_model(
        model, kind(counting(texts), CONTEXT), kind(counting(24, seed=1), CONTEXT), protocol,
        folder=folder, seed=0, precision=precision, reporter=Reporter(quiet=True), pad_token_id=0,
    )  # fmt: skip
    return model, record


@torch.no_grad()
def losses_of(model: Any, samples: Any) -> torch.Tensor:
    """Mean over tokens of the loss of every head, row by row."""
    model.eval()
    nats, tokens = torch.zeros(2, dtype=torch.float64), 0
    for row in samples:
        ids = torch.tensor(row["input_ids"][None].astype(np.int64))
        nats += model(ids, labels=ids).exit_losses.double() * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    return nats / tokens


@contextmanager
def spied(owner: type, name: str, look: Callable[[Any], None]) -> Iterator[None]:
    """Looks at an object whenever a method of it is called."""
    original = getattr(owner, name)

    def called(self: Any, *arguments: Any, **keywords: Any) -> Any:
        look(self)
        return original(self, *arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, called)
        yield


def test_accumulated_lines_of_different_lengths_give_the_gradient_of_one_large_batch(tmp_path: Path) -> None:
    gradients = []
    for accumulation in (1, 4):
        folder = tmp_path / str(accumulation)
        # One step over all rows: the first moment is then a tenth of the gradient.
        fit(folder, texts=8, gradient_accumulation=accumulation, max_grad_norm=0.0, weight_decay=0.0)
        moments = load_optimizer(folder / CHECKPOINTS_NAME / "checkpoint-1" / "optimizer.safetensors")["state"]
        gradients.append(torch.cat([moments[index]["exp_avg"].flatten() * 10 for index in sorted(moments)]))
    model = language_model(seed=0)
    batch = LanguageCollator(0, CONTEXT)(list(LineSamples(counting(8), CONTEXT)))
    model(**batch).loss.backward()
    expected = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
    assert gradients[0].norm() == pytest.approx(torch.stack(expected).norm().item(), rel=1e-4)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-5 * float(gradients[0].abs().max()))


@pytest.mark.parametrize("kind", [LineSamples, PackedBlocks])
def test_an_epoch_reports_the_mean_over_tokens_of_every_head(kind: Any, tmp_path: Path) -> None:
    model, record = fit(tmp_path, kind=kind)
    epoch, losses = record.history[0], losses_of(model, kind(counting(24, seed=1), CONTEXT))
    assert list(epoch.validation_heads) == ["exit-1", "final"]
    assert list(epoch.validation_heads.values()) == pytest.approx(losses.tolist(), rel=1e-5)
    objective = weigh_losses(list(losses), model.config.exit_loss_weight)
    assert epoch.validation_loss == pytest.approx(float(objective), rel=1e-5)


def test_activation_checkpointing_changes_no_weight(tmp_path: Path) -> None:
    computed: list[bool] = []
    with spied(LayerStack, "forward", lambda stack: computed.append(stack.gradient_checkpointing)):
        models = [fit(tmp_path / str(on), activation_checkpointing=on)[0] for on in (False, True)]
    assert set(computed) == {False, True}
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())


def test_the_kept_weights_are_those_of_the_best_epoch(tmp_path: Path) -> None:
    model, record = fit(tmp_path, max_epochs=4, learning_rate=0.1)
    losses = [epoch.validation_loss for epoch in record.history]
    assert record.best_epoch == 1 + int(np.argmin(losses)) and record.epochs == 4
    found = losses_of(model, LineSamples(counting(24, seed=1), CONTEXT))
    assert found.tolist() == pytest.approx([*record.history[record.best_epoch - 1].validation_heads.values()], rel=1e-5)
    lines = (tmp_path / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["validation_heads"] for line in lines] == [e.validation_heads for e in record.history]


def test_one_cycle_rises_for_three_tenths_and_falls_to_almost_nothing(tmp_path: Path) -> None:
    seen: list[tuple[float, Any]] = []

    def look(optimizer: Any) -> None:
        group = optimizer.param_groups[0]
        seen.append((group["lr"], tuple(group["betas"])))

    with spied(torch.optim.AdamW, "step", look):
        _, record = fit(tmp_path, schedule="onecycle", batch_size=1, adam_betas=(0.9, 0.95))
    rates = [rate for rate, _ in seen]
    assert len(rates) == record.steps == 40
    # A 25th at first, the peak after 30 % of the steps, at the end a 250,000th.
    assert rates[0] == pytest.approx(1e-2 / 25) and max(rates) == pytest.approx(1e-2)
    assert int(np.argmax(rates)) == 11 and rates[-1] == pytest.approx(1e-2 / 25e4)
    expected = [1e-2 / 25 + (1e-2 - 1e-2 / 25) * (1 - math.cos(math.pi * place / 11)) / 2 for place in range(12)]
    assert rates[:12] == pytest.approx(expected)
    assert {betas for _, betas in seen} == {(0.9, 0.95)}


def test_the_state_of_a_loss_scaler_is_kept_without_pickle(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    trainer = SimpleNamespace(accelerator=SimpleNamespace(scaler=scaler), args=SimpleNamespace(should_save=True))
    RecurraTrainer._save_scaler(trainer, str(tmp_path))
    assert json.loads((tmp_path / SCALER_NAME).read_text(encoding="utf-8"))["scale"] == 1024.0
    fresh = torch.amp.GradScaler("cpu", init_scale=2.0)
    trainer.accelerator.scaler = fresh
    RecurraTrainer._load_scaler(trainer, str(tmp_path))
    assert fresh.state_dict() == scaler.state_dict()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="FP16 is trained on an accelerator")
def test_fp16_training_scales_the_loss_and_learns(tmp_path: Path) -> None:
    scales: list[float] = []
    with spied(torch.amp.GradScaler, "step", lambda scaler: scales.append(scaler.get_scale())):
        _, record = fit(tmp_path, precision="fp16", max_epochs=3)
    assert min(scales) > 1 and record.history[-1].validation_loss < record.history[0].validation_loss


def test_a_language_model_trains_at_drawn_depths_which_its_seed_says(tmp_path: Path) -> None:
    model, record = fit(tmp_path / "one", sampled_recurrences=True)
    again, _ = fit(tmp_path / "two", sampled_recurrences=True)
    plain, _ = fit(tmp_path / "plain")
    weights = [dict(found.named_parameters())["heads.exits.0.weight"] for found in (model, again, plain)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert all(math.isfinite(epoch.validation_loss) for epoch in record.history)
