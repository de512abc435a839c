"""The loss of a student, against one written out, with its gradient; and rows that carry their teacher's answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recurra.training.distillation import Distillation, TaughtCollator, TaughtSplit
from recurra.training.vocabulary import reachable_vocabulary
from tiny import stir, tiny_model, tiny_split

SHAPE: dict[str, Any] = {"hidden_dropout": 0.0, "pooling": "mean"}


def taught(rows: int = 12, labels: int = 2, applications: int = 4) -> TaughtSplit:
    plain, dice = tiny_split(rows), np.random.default_rng(1)
    return TaughtSplit(
        plain.input_ids,
        plain.offsets,
        plain.labels,
        dice.normal(size=(rows, labels)).astype(np.float32) * 2,
        dice.normal(size=(rows, applications, 16)).astype(np.float16),
    )


def batch(split: TaughtSplit, rows: list[int]) -> dict[str, Tensor]:
    return TaughtCollator(0)(split.__getitems__(rows))


def written_out(model: Any, split: TaughtSplit, rows: list[int], how: Distillation) -> Tensor:
    """Row by row, without padding."""
    total = torch.zeros((), dtype=torch.float64)
    for number in rows:
        row = split[number]
        ids = torch.from_numpy(row["input_ids"].astype(np.int64))[None]
        output = model(ids, output_hidden_states=True)
        own, theirs = output.logits[0].double(), torch.from_numpy(row["teacher_logits"]).double()
        probabilities = torch.exp(theirs / how.temperature) / torch.exp(theirs / how.temperature).sum()
        said = torch.exp(own / how.temperature) / torch.exp(own / how.temperature).sum()
        apart = (probabilities * (probabilities.log() - said.log())).sum()
        right = -torch.log_softmax(own, -1)[row["labels"]] * (split.labelled is None or bool(split.labelled[number]))
        states = torch.stack([states[0].double().mean(dim=0) for states in output.hidden_states[1:]])
        error = ((states - torch.from_numpy(row["teacher_states"]).double()) ** 2).mean()
        total = total + (1 - how.weight) * right + how.weight * how.temperature**2 * apart + how.state_weight * error
    return total / len(rows)


@pytest.mark.parametrize(
    "how",
    [Distillation(0.7, 2.0, 1.0), Distillation(1.0, 1.0, 0.0), Distillation(0.0, 3.0, 0.5), Distillation(0.3, 4, 0)],
)
@pytest.mark.parametrize("labelled", [None, [0, 3], []])
def test_the_loss_and_its_gradient_are_those_written_out(how: Distillation, labelled: list[int] | None) -> None:
    split, rows = taught(), [3, 0, 7, 5]
    if labelled is not None:
        split = replace(split, labelled=np.isin(np.arange(len(split)), labelled))
    found, wanted = tiny_model(**SHAPE), tiny_model(**SHAPE)
    for model in (found, wanted):
        stir(model)
    loss, other = how.loss(found, batch(split, rows)), written_out(wanted, split, rows, how)
    torch.testing.assert_close(loss.double(), other, rtol=1e-4, atol=1e-5)
    loss.backward()
    other.backward()
    for (name, parameter), twin in zip(found.named_parameters(), wanted.parameters(), strict=True):
        if twin.grad is not None:
            torch.testing.assert_close(
                parameter.grad, twin.grad, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_a_student_that_says_what_its_teacher_says_is_left_alone() -> None:
    how, logits = Distillation(1.0, 2.0, 0.0), torch.randn(5, 3)
    for several in (False, True):
        student = logits.clone().requires_grad_()
        loss = how.answers(student, logits, several=several)
        loss.backward()
        assert loss.item() == pytest.approx(0, abs=1e-6) and student.grad.abs().max() < 1e-6
        assert how.answers(logits + torch.randn(5, 3), logits, several=several) > 0


def test_answers_stay_with_their_rows() -> None:
    split = taught()
    both = batch(split, [4, 1])
    np.testing.assert_array_equal(both["teacher_logits"], split.teacher_logits[[4, 1]])
    np.testing.assert_allclose(both["teacher_states"], split.teacher_states[[4, 1]].astype(np.float32))
    assert both["teacher_states"].dtype == torch.float32
    # A narrowed token table numbers tokens anew and takes the rest along.
    with reachable_vocabulary(tiny_model(vocab_size=400), [split]) as (narrowed,):
        assert isinstance(narrowed, TaughtSplit) and narrowed.teacher_logits is split.teacher_logits
        assert narrowed.input_ids.max() < 40
    assert "teacher_states" not in batch(replace(split, teacher_states=None), [0])
