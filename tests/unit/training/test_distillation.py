"""The loss of a student, against one written out, with its gradient; and rows that carry their teacher's answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from recurra.training.distillation import RowLoss, TaughtCollator, TaughtSplit, soft_divergence
from recurra.training.vocabulary import reachable_vocabulary
from tiny import stir, tiny_model, tiny_split

SHAPE: dict[str, Any] = {"hidden_dropout": 0.0, "pooling": "mean"}


def taught(rows: int = 12, applications: int = 4) -> TaughtSplit:
    plain, dice = tiny_split(rows), np.random.default_rng(1)
    logits = dice.normal(size=(rows, 2)).astype(np.float32) * 2
    states = dice.normal(size=(rows, applications, 16)).astype(np.float16)
    return TaughtSplit(plain.input_ids, plain.offsets, plain.labels, logits, states)


def batch(split: TaughtSplit, rows: list[int]) -> dict[str, Tensor]:
    return TaughtCollator(0)(split.__getitems__(rows))


def taught_by(weight: float, temperature: float, state_weight: float, **options: float) -> RowLoss:
    return RowLoss(teacher_weight=weight, temperature=temperature, state_weight=state_weight, **options)


def written_out(model: Any, split: TaughtSplit, rows: list[int], how: RowLoss) -> Tensor:
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
        said_own, smoothed = -torch.log_softmax(own, -1), how.label_smoothing
        right = (1 - smoothed) * said_own[row["labels"]] + smoothed * said_own.mean()
        right = right * (split.labelled is None or bool(split.labelled[number]))
        states = torch.stack([states[0].double().mean(dim=0) for states in output.hidden_states[1:]])
        error = ((states - torch.from_numpy(row["teacher_states"]).double()) ** 2).mean()
        total = (
            total
            + (1 - how.teacher_weight) * right
            + how.teacher_weight * how.temperature**2 * apart
            + how.state_weight * error
        )
    return total / len(rows)


@pytest.mark.parametrize(
    "how",
    [
        taught_by(0.7, 2.0, 1.0),
        taught_by(1.0, 1.0, 0.0),
        taught_by(0.0, 3.0, 0.5),
        taught_by(0.3, 4, 0),
        taught_by(0.7, 2.0, 1.0, label_smoothing=0.2),
    ],
)
@pytest.mark.parametrize("labelled", [None, [0, 3], []])
def test_the_loss_and_its_gradient_are_those_written_out(how: RowLoss, labelled: list[int] | None) -> None:
    split, rows = taught(), [3, 0, 7, 5]
    if labelled is not None:
        split = replace(split, labelled=np.isin(np.arange(len(split)), labelled))
    found, wanted = tiny_model(**SHAPE), tiny_model(**SHAPE)
    for model in (found, wanted):
        stir(model)
    loss, other = how(found, batch(split, rows)), written_out(wanted, split, rows, how)
    torch.testing.assert_close(loss.double(), other, rtol=1e-4, atol=1e-5)
    loss.backward()
    other.backward()
    for (name, parameter), twin in zip(found.named_parameters(), wanted.parameters(), strict=True):
        if twin.grad is not None:
            torch.testing.assert_close(
                parameter.grad, twin.grad, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_a_student_that_says_what_its_teacher_says_is_left_alone() -> None:
    logits = torch.randn(5, 3)
    for several in (False, True):
        student = logits.clone().requires_grad_()
        loss = soft_divergence(student, logits, 2.0, several=several)
        loss.backward()
        assert loss.item() == pytest.approx(0, abs=1e-6) and student.grad.abs().max() < 1e-6
        assert soft_divergence(logits + torch.randn(5, 3), logits, 2.0, several=several) > 0


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


DEEP: dict[str, Any] = {"hidden_dropout": 0.0, "num_recurrences": 3, "exits": [1, 2], "heads": "separate"}


def apart(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Kullback and Leibler's divergence of softened answers, written out."""
    target = torch.softmax(teacher / temperature, -1)
    each = (target * (target.log() - torch.log_softmax(student / temperature, -1))).sum(-1)
    return each.mean() * temperature**2


def test_a_classifier_that_stops_gives_what_its_head_there_says() -> None:
    model = tiny_model(**DEEP).eval()
    stir(model)
    ids = torch.randint(1, 40, (4, 9))
    whole = model(ids)
    for depth, logits in ((1, whole.exit_logits[0]), (2, whole.exit_logits[1]), (3, whole.logits)):
        stopped = model(ids, exit_after=depth)
        torch.testing.assert_close(stopped.logits, logits)
        assert len(stopped.exit_logits or ()) == depth - 1


@pytest.mark.parametrize("teacher", [False, True])
def test_exits_learn_from_the_last_head_and_do_not_teach_it(teacher: bool) -> None:
    how, model = (
        taught_by(0.7, 3.0, 0.0, exit_loss_weight=0.5, exit_distillation=0.6),
        tiny_model(**DEEP, pooling="mean"),
    )
    stir(model)
    inputs = batch(taught(), [3, 0, 7, 5]) if teacher else TaughtCollator(0)(tiny_split(12).__getitems__([1, 2]))
    loss = how(model, inputs)
    output = model(inputs["input_ids"], inputs["attention_mask"])
    labels, last = inputs["labels"], output.logits
    exits = [
        0.4 * functional.cross_entropy(logits, labels) + 0.6 * apart(logits, last.detach(), 3.0)
        for logits in output.exit_logits
    ]
    wanted = 0.5 * functional.cross_entropy(last, labels) + 0.5 * sum(exits) / 2
    if teacher:
        # The teacher speaks to each head.
        first, second, final = (apart(head, inputs["teacher_logits"], 3.0) for head in (*output.exit_logits, last))
        wanted = 0.3 * wanted + 0.7 * (0.5 * final + 0.5 * (first + second) / 2)
    torch.testing.assert_close(loss, wanted)
    weight = model.classifier.weight
    torch.testing.assert_close(*(torch.autograd.grad(each, weight, retain_graph=True)[0] for each in (loss, wanted)))


def test_states_of_a_step_that_stops_are_compared_as_far_as_it_went() -> None:
    model, inputs = tiny_model(**DEEP, pooling="mean"), batch(taught(applications=6), [3, 0])
    layers = model.config.num_core_layers
    loss = taught_by(0.0, 2.0, 1.0)(model, {**inputs, "exit_after": 1})
    output = model(inputs["input_ids"], inputs["attention_mask"], output_hidden_states=True)
    mask = inputs["attention_mask"][..., None]
    means = [(states * mask).sum(1) / mask.sum(1) for states in output.hidden_states[1 : 1 + layers]]
    error = functional.mse_loss(torch.stack(means, 1), inputs["teacher_states"][:, :layers])
    torch.testing.assert_close(loss, functional.cross_entropy(output.exit_logits[0], inputs["labels"]) + error)
