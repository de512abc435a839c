"""Training on texts in windows, against a plain loop over texts and windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from recurra.core.configuration import derive_seed
from recurra.core.progress import Reporter
from recurra.core.record import TrainingRecord
from recurra.data.encoding import EncodedSplit
from recurra.training.distillation import RowLoss, TaughtCollator, TaughtSplit
from recurra.training.fit import classifier_beside, train_auxiliary, train_transformer
from recurra.training.protocols import ProtocolConfig
from tiny import stir, tiny_model, tiny_split

COUNTS = [1, 3, 2, 1, 4, 1, 2, 2]
WEIGHTS = np.array([0.5, 1.5, 1, 1, 0.25, 1.75, 1, 1], dtype=np.float32)


def windows(counts: Sequence[int] = COUNTS, labels: int | None = None, seed: int = 0) -> EncodedSplit:
    """Rows of random tokens as windows of texts; with a number of labels, each text has any of them."""
    plain, dice = tiny_split(sum(counts), seed=seed), np.random.default_rng(seed)
    size = (len(counts),) if labels is None else (len(counts), labels)
    of_texts = dice.integers(0, 2, size)
    return replace(plain, labels=np.repeat(of_texts, counts, axis=0), window_counts=np.array(counts))


def plain_logits(model: Any, split: EncodedSplit) -> list[list[Any]]:
    """The output of every window of every text, computed alone."""
    found, at = [], 0
    for count in split.windows_of_texts.tolist():
        rows = [split[at + number]["input_ids"].astype(np.int64) for number in range(count)]
        found.append([model(torch.from_numpy(ids)[None], output_hidden_states=True) for ids in rows])
        at += count
    return found


def loss_of(logits: Tensor, label: Any) -> Tensor:
    if np.ndim(label):
        return functional.binary_cross_entropy_with_logits(logits[0], torch.tensor(label, dtype=torch.float32))
    return functional.cross_entropy(logits, torch.tensor([int(label)]))


def same_gradients(model: Any, twin: Any) -> None:
    for (name, found), wanted in zip(model.named_parameters(), twin.parameters(), strict=True):
        if wanted.grad is not None:
            torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("labels", [None, 3])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_a_step_is_the_weighted_sum_over_texts_of_the_mean_over_windows(
    labels: int | None, weights: np.ndarray[Any, Any] | None
) -> None:
    kind = {} if labels is None else {"num_labels": labels, "problem_type": "multi_label_classification"}
    shape = {"hidden_dropout": 0.0, "exits": [1], "exit_loss_weight": 0.3, **kind}
    model, twin = tiny_model(**shape), tiny_model(**shape)
    split = windows(labels=labels).weighed(weights)
    batch = TaughtCollator(0)(split.__getitems__(range(len(split))))
    loss = RowLoss(exit_loss_weight=0.3)(model, batch)
    wanted = torch.zeros(())
    for text, (first, outputs) in enumerate(zip(split.text_rows, plain_logits(twin, split), strict=True)):
        label = split.labels[first]
        each = [0.7 * loss_of(out.logits, label) + 0.3 * loss_of(out.exit_logits[0], label) for out in outputs]
        own = 1.0 if weights is None else float(weights[text])
        wanted = wanted + own * torch.stack(each).mean() / len(COUNTS)
    torch.testing.assert_close(loss, wanted)
    loss.backward()
    wanted.backward()
    same_gradients(model, twin)


@pytest.mark.parametrize("labelled", [None, [0, 1, 4, 5]])
def test_a_student_learns_its_teachers_answer_to_a_text_from_each_of_its_windows(labelled: list[int] | None) -> None:
    how = RowLoss(teacher_weight=0.7, state_weight=0.5)
    plain, dice = windows().weighed(None), np.random.default_rng(1)
    counts = plain.windows_of_texts
    answers = dice.normal(size=(len(counts), 2)).astype(np.float32)
    states = dice.normal(size=(len(plain), 4, 16)).astype(np.float16)
    known = np.isin(np.arange(len(counts)), range(len(counts)) if labelled is None else labelled)
    split = TaughtSplit(
        plain.input_ids, plain.offsets, plain.labels, np.repeat(answers, counts, axis=0), states,
        None if labelled is None else np.repeat(known, counts), weights=plain.weights, window_counts=counts,
    )  # fmt: skip
    shape: dict[str, Any] = {"hidden_dropout": 0.0, "pooling": "mean"}
    model, twin = tiny_model(**shape), tiny_model(**shape)
    for each in (model, twin):
        stir(each)
    loss = how(model, TaughtCollator(0)(split.__getitems__(range(len(split)))))
    wanted = torch.zeros(())
    for text, (first, outputs) in enumerate(zip(split.text_rows, plain_logits(twin, split), strict=True)):
        theirs = (torch.from_numpy(answers[text]) / 2).softmax(-1)
        for number, output in enumerate(outputs):
            apart = (theirs * (theirs.log() - (output.logits[0] / 2).log_softmax(-1))).sum() * 4
            means = torch.stack([layer[0].mean(dim=0) for layer in output.hidden_states[1:]])
            error = ((means - torch.from_numpy(states[first + number]).float()) ** 2).mean()
            right = loss_of(output.logits, split.labels[first]) * float(known[text])
            wanted = wanted + (0.3 * right + 0.7 * apart + 0.5 * error) / len(outputs) / len(counts)
    torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=1e-5)
    loss.backward()
    wanted.backward()
    same_gradients(model, twin)


def protocol(**values: Any) -> ProtocolConfig:
    first = {"name": "test", "learning_rate": 5e-3, "batch_size": 8, "max_epochs": 2, "early_stopping_patience": 0}
    return ProtocolConfig(**{**first, **values})


def fit(
    model: Any, train: EncodedSplit, selection: EncodedSplit, folder: Path, chosen: ProtocolConfig
) -> TrainingRecord:
    return train_transformer(
        model, train.weighed(None), selection, chosen,
        folder=folder, seed=0, precision="fp32", reporter=Reporter(quiet=True),
    )  # fmt: skip


@pytest.mark.parametrize("labels", [None, 3])
def test_the_epoch_is_chosen_by_pooled_logits(labels: int | None, tmp_path: Path) -> None:
    """With a learning rate that moves nothing, what is said of the selection rows is what a plain loop says."""
    kind = {} if labels is None else {"num_labels": labels, "problem_type": "multi_label_classification"}
    model = tiny_model(hidden_dropout=0.0, exits=[1], exit_loss_weight=0.3, **kind)
    stir(model)
    # In batches of 64 rows four of these texts, of 16 windows at most, fill one: all batches have the same size.
    selection = windows([16, 1, 2, 1, 3, 1, 5, 1], labels=labels, seed=3)
    record = fit(model, windows(labels=labels), selection, tmp_path, protocol(learning_rate=1e-12, max_epochs=1))
    losses, right = [], []
    with torch.inference_mode():
        said_alone = plain_logits(model.cpu().eval(), selection)
    for first, outputs in zip(selection.text_rows, said_alone, strict=True):
        label = selection.labels[first]
        logits = torch.stack([output.logits for output in outputs]).mean(dim=0)
        early = torch.stack([output.exit_logits[0] for output in outputs]).mean(dim=0)
        losses.append(float(0.7 * loss_of(logits, label) + 0.3 * loss_of(early, label)))
        said = logits.argmax() if labels is None else logits[0] >= 0
        right.append(bool(np.all(said.numpy() == label)))
    assert record.history[0].validation_loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert record.history[0].validation_accuracy == np.mean(right)
    assert 0 < np.mean(right) < 1 or labels


def test_labels_of_another_task_are_learned_from_each_window_of_a_text(tmp_path: Path) -> None:
    """The loss that is said of one step over all windows, with a learning rate that moves nothing."""
    rows, said = windows().weighed(None), list[str]()
    reporter = Reporter(quiet=True)
    reporter.say = said.append  # type: ignore[method-assign]
    chosen = protocol(auxiliary_epochs=1, auxiliary_learning_rate=1e-12, batch_size=len(rows))
    model = tiny_model(hidden_dropout=0.0)
    train_auxiliary(model, rows, chosen, tmp_path, seed=0, precision="fp32", change_inputs=None, reporter=reporter)
    torch.manual_seed(derive_seed(0, "auxiliary weights"))
    with torch.inference_mode():
        outputs = plain_logits(classifier_beside(model.cpu(), 2).eval(), rows)
    labels = rows.labels[rows.text_rows]
    each = [
        float(torch.stack([loss_of(output.logits, label) for output in windows_of]).mean())
        for windows_of, label in zip(outputs, labels, strict=True)
    ]
    assert said == [f"  auxiliary epoch 1: loss {round(float(np.mean(each)), 4)}"]
