"""The loss of weighed texts in windows, and of a student, against plain loops, with its gradient.

Rows carry their teacher's answers; what is said of an epoch is of pooled logits.
"""

from __future__ import annotations

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
from recurra.data.encoding import EncodedSplit
from recurra.training.distillation import RowLoss, TaughtCollator, TaughtSplit, soft_divergence
from recurra.training.fit import classifier_beside, train_auxiliary
from recurra.training.vocabulary import reachable_vocabulary
from tiny import assert_same_gradients, stirred, tiny_model, tiny_protocol, tiny_split, train_quietly

COUNTS = [1, 3, 2, 1, 4, 1, 2, 2]
WEIGHTS = np.array([0.5, 1.5, 1, 1, 0.25, 1.75, 1, 1], dtype=np.float32)
SEVERAL: dict[str, Any] = {"num_labels": 3, "problem_type": "multi_label_classification"}


def windows(labels: int | None = None, counts: list[int] = COUNTS, seed: int = 0) -> EncodedSplit:
    """Rows of random tokens as windows of texts; with a number of labels, each text has any of them."""
    plain, dice = tiny_split(sum(counts), seed=seed), np.random.default_rng(seed)
    size = (len(counts),) if labels is None else (len(counts), labels)
    of_texts = dice.integers(0, 2, size)
    return replace(plain, labels=np.repeat(of_texts, counts, axis=0), window_counts=np.array(counts))


def taught(applications: int = 4) -> TaughtSplit:
    """Rows of texts in windows with a teacher's answer to each text and its states of each row."""
    plain, dice = windows().weighed(None), np.random.default_rng(1)
    answers = np.repeat(dice.normal(size=(8, 2)).astype(np.float32) * 2, COUNTS, axis=0)
    states = dice.normal(size=(len(plain), applications, 16)).astype(np.float16)
    return TaughtSplit(
        plain.input_ids, plain.offsets, plain.labels, answers, states,
        weights=plain.weights, window_counts=plain.window_counts,
    )  # fmt: skip


def batch(split: EncodedSplit, rows: Any = None) -> dict[str, Tensor]:
    return TaughtCollator(0)(split.__getitems__(range(len(split)) if rows is None else rows))


def plain_outputs(model: Any, split: EncodedSplit) -> list[tuple[Any, list[Any]]]:
    """The label of every text, and the output of each of its windows, computed alone."""
    found = []
    for first, count in zip(split.text_rows, split.windows_of_texts.tolist(), strict=True):
        rows = [split[first + number]["input_ids"].astype(np.int64) for number in range(count)]
        outputs = [model(torch.from_numpy(ids)[None], output_hidden_states=True) for ids in rows]
        found.append((split.labels[first], outputs))
    return found


def loss_of(logits: Tensor, label: Any) -> Tensor:
    if np.ndim(label):
        return functional.binary_cross_entropy_with_logits(logits[0], torch.tensor(label, dtype=torch.float32))
    return functional.cross_entropy(logits, torch.tensor([int(label)]))


def apart(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Kullback and Leibler's divergence of softened answers, written out."""
    target, said = (torch.exp(each / temperature) for each in (teacher, student))
    target, said = target / target.sum(-1, keepdim=True), said / said.sum(-1, keepdim=True)
    return (target * (target.log() - said.log())).sum(-1).mean() * temperature**2


@pytest.mark.parametrize("labels", [None, 3])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_a_step_is_the_weighted_sum_over_texts_of_the_mean_over_windows(
    labels: int | None, weights: np.ndarray[Any, Any] | None
) -> None:
    shape = {"hidden_dropout": 0.0, "exits": [1], "exit_loss_weight": 0.3, **(SEVERAL if labels else {})}
    model, twin = tiny_model(**shape), tiny_model(**shape)
    split = windows(labels).weighed(weights)
    loss, wanted = RowLoss(exit_loss_weight=0.3)(model, batch(split)), torch.zeros(())
    owns = np.ones(8) if weights is None else weights
    for (label, outputs), own in zip(plain_outputs(twin, split), owns, strict=True):
        each = [0.7 * loss_of(out.logits, label) + 0.3 * loss_of(out.exit_logits[0], label) for out in outputs]
        wanted = wanted + float(own) * torch.stack(each).mean() / 8
    torch.testing.assert_close(loss, wanted)
    loss.backward()
    wanted.backward()
    assert_same_gradients(model, twin, rtol=1e-3, atol=1e-5)


def taught_by(weight: float, temperature: float, state_weight: float, **options: float) -> RowLoss:
    return RowLoss(teacher_weight=weight, temperature=temperature, state_weight=state_weight, **options)


@pytest.mark.parametrize("labelled", [None, [0, 1, 4, 5], []])
@pytest.mark.parametrize(
    "how",
    [
        taught_by(1.0, 1.0, 0.0),
        taught_by(0.0, 3.0, 0.5),
        taught_by(0.3, 4.0, 0.0),
        taught_by(0.7, 2.0, 1.0),
        taught_by(0.7, 2.0, 1.0, label_smoothing=0.2),
    ],
)
def test_a_student_learns_its_teachers_answer_to_a_text_from_each_of_its_windows(
    how: RowLoss, labelled: list[int] | None
) -> None:
    known = np.isin(np.arange(8), range(8) if labelled is None else labelled)
    split = replace(taught(), labelled=None if labelled is None else np.repeat(known, COUNTS))
    model, twin = (stirred(hidden_dropout=0.0, pooling="mean") for _ in range(2))
    loss, wanted, row = how(model, batch(split)), torch.zeros(()), 0
    for text, (label, outputs) in enumerate(plain_outputs(twin, split)):
        for output in outputs:
            said = -output.logits[0].log_softmax(-1)
            right = (1 - how.label_smoothing) * said[label] + how.label_smoothing * said.mean()
            answer, states = (
                torch.from_numpy(part[row]).float() for part in (split.teacher_logits, split.teacher_states)
            )
            means = torch.stack([layer[0].mean(dim=0) for layer in output.hidden_states[1:]])
            each = (1 - how.teacher_weight) * right * float(known[text])
            each = each + how.teacher_weight * apart(output.logits[0], answer, how.temperature)
            each = each + how.state_weight * ((means - states) ** 2).mean()
            wanted, row = wanted + each / len(outputs) / 8, row + 1
    torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=1e-5)
    loss.backward()
    wanted.backward()
    assert_same_gradients(model, twin, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("several", [False, True])
def test_a_student_that_says_what_its_teacher_says_is_left_alone(several: bool) -> None:
    logits = torch.randn(5, 3)
    student = logits.clone().requires_grad_()
    loss = soft_divergence(student, logits, 2.0, several=several)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6) and student.grad.abs().max() < 1e-6
    assert soft_divergence(logits + torch.randn(5, 3), logits, 2.0, several=several) > 0


def test_answers_stay_with_their_rows() -> None:
    split = taught()
    both = batch(split, [4, 1])
    np.testing.assert_array_equal(both["teacher_logits"], split.teacher_logits[[4, 1]])
    np.testing.assert_array_equal(both["teacher_states"], split.teacher_states[[4, 1]].astype(np.float32))
    # A narrowed token table numbers tokens anew and takes the rest along.
    with reachable_vocabulary(tiny_model(vocab_size=400), [split]) as (narrowed,):
        assert isinstance(narrowed, TaughtSplit) and narrowed.teacher_logits is split.teacher_logits
        assert narrowed.input_ids.max() < 40
    assert "teacher_states" not in batch(replace(split, teacher_states=None), [0])


DEEP: dict[str, Any] = {
    "hidden_dropout": 0.0, "num_recurrences": 3, "exits": [1, 2], "heads": "separate", "pooling": "mean",
}  # fmt: skip


@pytest.mark.parametrize("teacher", [False, True])
def test_exits_learn_from_the_last_head_and_do_not_teach_it(teacher: bool) -> None:
    how, model = taught_by(0.7, 3.0, 0.0, exit_loss_weight=0.5, exit_distillation=0.6), stirred(**DEEP)
    inputs = batch(replace(taught(), weights=None) if teacher else tiny_split(12), [3, 0, 7, 5])
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


def test_a_step_that_stops_has_the_heads_and_states_as_far_as_it_went() -> None:
    model, inputs = stirred(**DEEP), batch(replace(taught(6), weights=None), [3, 0])
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    output = model(ids, mask, output_hidden_states=True)
    for depth, logits in ((1, output.exit_logits[0]), (2, output.exit_logits[1]), (3, output.logits)):
        stopped = model(ids, mask, exit_after=depth)
        torch.testing.assert_close(stopped.logits, logits)
        assert len(stopped.exit_logits or ()) == depth - 1
    loss = taught_by(0.3, 2.0, 1.0)(model, {**inputs, "exit_after": 1})
    means = [(states * mask[..., None]).sum(1) / mask.sum(1)[:, None] for states in output.hidden_states[1:3]]
    error = functional.mse_loss(torch.stack(means, 1), inputs["teacher_states"][:, :2])
    own = output.exit_logits[0]
    right, answers = functional.cross_entropy(own, inputs["labels"]), apart(own, inputs["teacher_logits"], 2.0)
    torch.testing.assert_close(loss, 0.7 * right + 0.3 * answers + error)


@pytest.mark.parametrize("labels", [None, 3])
def test_the_epoch_is_chosen_by_pooled_logits(labels: int | None, tmp_path: Path) -> None:
    """With a learning rate that moves nothing, what is said of the selection rows is what a plain loop says."""
    shape = {"hidden_dropout": 0.0, "exits": [1], "exit_loss_weight": 0.3, **(SEVERAL if labels else {})}
    model = stirred(**shape)
    # In batches of 64 rows four of these texts, of 16 windows at most, fill one: all batches have the same size.
    selection = windows(labels, [16, 1, 2, 1, 3, 1, 5, 1], seed=3)
    chosen = tiny_protocol(learning_rate=1e-12, max_epochs=1, batch_size=8)
    (epoch,) = train_quietly(tmp_path, model, chosen, windows(labels).weighed(None), selection).history
    losses, right = [], []
    with torch.inference_mode():
        said_alone = plain_outputs(model.cpu().eval(), selection)
    for label, outputs in said_alone:
        logits = torch.stack([output.logits for output in outputs]).mean(dim=0)
        early = torch.stack([output.exit_logits[0] for output in outputs]).mean(dim=0)
        losses.append(float(0.7 * loss_of(logits, label) + 0.3 * loss_of(early, label)))
        said = logits.argmax() if labels is None else logits[0] >= 0
        right.append(bool(np.all(said.numpy() == label)))
    assert epoch.validation_loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert epoch.validation_accuracy == np.mean(right)
    assert 0 < np.mean(right) < 1 or labels


def test_labels_of_another_task_are_learned_from_each_window_of_a_text(tmp_path: Path) -> None:
    """The loss that is said of one step over all windows, with a learning rate that moves nothing."""
    rows, said = windows().weighed(None), list[str]()
    reporter = Reporter(quiet=True)
    reporter.say = said.append  # type: ignore[method-assign]
    chosen = tiny_protocol(auxiliary_epochs=1, auxiliary_learning_rate=1e-12, batch_size=len(rows))
    model = tiny_model(hidden_dropout=0.0)
    train_auxiliary(model, rows, chosen, tmp_path, seed=0, precision="fp32", change_inputs=None, reporter=reporter)
    torch.manual_seed(derive_seed(0, "auxiliary weights"))
    with torch.inference_mode():
        found = plain_outputs(classifier_beside(model.cpu(), 2).eval(), rows)
    each = [np.mean([float(loss_of(output.logits, label)) for output in outputs]) for label, outputs in found]
    assert said == [f"  auxiliary epoch 1: loss {round(float(np.mean(each)), 4)}"]


@pytest.mark.parametrize("known", [None, [0, 3], []])
def test_rows_without_weights_count_1_each(known: list[int] | None) -> None:
    split, how = taught(), taught_by(0.7, 2.0, 1.0)
    split = replace(split, labelled=None if known is None else np.isin(np.arange(len(split)), known))
    model, twin = (stirred(hidden_dropout=0.0, pooling="mean") for _ in range(2))
    loss = how(model, batch(replace(split, weights=None), [3, 0, 7, 5]))
    wanted = how(twin, batch(replace(split, weights=np.ones(len(split), dtype=np.float32)), [3, 0, 7, 5]))
    torch.testing.assert_close(loss, wanted)
    loss.backward()
    wanted.backward()
    assert_same_gradients(model, twin, rtol=1e-4, atol=1e-6)
