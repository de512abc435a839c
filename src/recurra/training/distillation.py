"""Learning from a teacher: its softened answers, and what it thinks of a row on the way, beside the labels.

    loss = (1 - w) cross-entropy(labels) + w T^2 KL(teacher / T, student / T) + v mean squared error of states

The first two terms are Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", section 2; of a model with
exits every head learns from both, and the heads weigh as they do without a teacher. The last compares the mean over a
row's real tokens after each layer application with the teacher's after the layer that stands there; TinyBERT (Jiao et
al. 2020, equation 8) compares every token. The mean is what the classifier reads, and it can be kept: every token of
every layer of a large corpus would fill gigabytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from recurra.data.batching import Collator
from recurra.data.encoding import WEIGHTS, EncodedSplit
from recurra.models.heads import mean, weigh_losses


@dataclass(frozen=True, eq=False)
class RowLoss:
    """The loss of rows, each by itself, in training.

    Attributes:
        exit_distillation: Share of an exit's loss that the last head's softened answers have (Zhang et al. 2019, "Be
            Your Own Teacher", equation 5); the labels have the rest.
        temperature: What logits are divided by for that.
    """

    label_smoothing: float = 0.0
    exit_loss_weight: float = 0.0
    exit_distillation: float = 0.0
    temperature: float = 2.0

    def of_rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row, ``(batch,)``; of labels ``(batch, labels)`` the mean logistic loss."""
        if labels.ndim == 2:
            # Targets of 0 and 1 move this share of the way to one half.
            wanted = labels.to(logits.dtype) * (1 - self.label_smoothing) + self.label_smoothing / 2
            return functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(dim=1)
        return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=self.label_smoothing)

    def __call__(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """The mean over rows, each times its weight if rows have weights, the exits' weighed in.

        Divided by the number of rows and not by their weights: with weights of mean 1 over all rows, the mean over
        batches is then that of the whole, whatever weights meet in a batch.
        """
        given = {name: values for name, values in inputs.items() if name not in ("labels", WEIGHTS)}
        output = model(**given, return_dict=True)
        heads = [*(output.exit_logits or ()), output.logits]
        return self.of_heads(heads, inputs["labels"], inputs.get(WEIGHTS)) + _halting(output)

    def of_heads(self, heads: Sequence[Tensor], labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean over rows of logits ``(batch, labels)``, the exits' weighed in; the final head's come last."""
        losses = [_mean(self.of_rows(logits, labels), weights) for logits in heads]
        if self.exit_distillation:
            teacher, share = heads[-1].detach(), self.exit_distillation
            for number, logits in enumerate(heads[:-1]):
                apart = answers_apart(logits, teacher, self.temperature, several=labels.ndim == 2, weights=weights)
                losses[number] = (1 - share) * losses[number] + share * apart
        return weigh_losses(losses, self.exit_loss_weight)


def answers_apart(
    student: Tensor, teacher: Tensor, temperature: float, *, several: bool, weights: Tensor | None = None
) -> Tensor:
    """How far softened answers are apart, in nats, times the temperature squared; a mean over several labels."""
    student, teacher = student / temperature, teacher / temperature
    if several:
        target = teacher.sigmoid()
        apart = functional.binary_cross_entropy_with_logits(student, target, reduction="none")
        own = functional.binary_cross_entropy_with_logits(teacher, target, reduction="none")
        return _mean((apart - own).mean(dim=1), weights) * temperature**2
    own_log, target_log = student.log_softmax(-1), teacher.log_softmax(-1)
    each = functional.kl_div(own_log, target_log, reduction="none", log_target=True).sum(dim=1)
    return _mean(each, weights) * temperature**2


def _halting(output: Any) -> Tensor | float:
    """What a halting head adds, of all rows alike; nothing without one."""
    return 0.0 if output.halt_loss is None else output.halt_loss


def _mean(each: Tensor, weights: Tensor | None) -> Tensor:
    """The mean of rows ``(batch,)``, each times its weight."""
    return each.mean() if weights is None else (each * weights).mean()


LOGITS, STATES, LABELLED = "teacher_logits", "teacher_states", "labelled"


@dataclass(frozen=True, eq=False)
class TaughtSplit(EncodedSplit):
    """Rows with a teacher's logits, perhaps its states ``(rows, applications, hidden)``, and which have a label."""

    teacher_logits: npt.NDArray[np.float32]
    teacher_states: npt.NDArray[np.float16] | None = None
    labelled: npt.NDArray[np.bool_] | None = None

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {**super().__getitem__(index), LOGITS: self.teacher_logits[index]}
        if self.teacher_states is not None:
            row[STATES] = self.teacher_states[index]
        if self.labelled is not None:
            row[LABELLED] = self.labelled[index]
        return row


class TaughtCollator(Collator):
    """Pads rows, and stacks their weights if they have some, and what the teacher says of them if it said something."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Returns the batch; perhaps with ``row_weights`` and what this module adds, in FP32."""
        batch = super().__call__(rows)
        for name in (WEIGHTS, LOGITS, STATES, LABELLED):
            if name in rows[0]:
                batch[name] = torch.from_numpy(np.stack([row[name] for row in rows]).astype(np.float32))
        return batch


@dataclass(frozen=True)
class Distillation:
    """How much a student listens to its teacher."""

    weight: float
    temperature: float
    state_weight: float
    row_loss: RowLoss = RowLoss()

    def loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """The loss of a batch of a `TaughtCollator`.

        A row that ``labelled`` has 0 for adds nothing to the labels' part, whose sum is divided by all rows. With
        ``row_weights`` each part of a row's loss is times its weight.
        """
        labelled, weights = inputs.get(LABELLED), inputs.get(WEIGHTS)
        changed = self.row_loss.label_smoothing > 0 or self.row_loss.exit_distillation > 0
        by_row = changed or labelled is not None or weights is not None
        own = (LOGITS, STATES, LABELLED, WEIGHTS, *(("labels",) if by_row else ()))
        given = {name: values for name, values in inputs.items() if name not in own}
        wanted = inputs.get(STATES) if self.state_weight else None
        output = model(**given, output_hidden_states=wanted is not None, return_dict=True)
        heads = [*(output.exit_logits or ()), output.logits]
        of_labels = output.loss
        if by_row:
            counted = labelled if weights is None else weights if labelled is None else labelled * weights
            of_labels = self.row_loss.of_heads(heads, inputs["labels"], counted) + _halting(output)
        several = inputs["labels"].ndim == 2
        answers = [
            answers_apart(logits, inputs[LOGITS], self.temperature, several=several, weights=weights)
            for logits in heads
        ]
        taught = weigh_losses(answers, self.row_loss.exit_loss_weight)
        loss = (1 - self.weight) * of_labels + self.weight * taught
        if wanted is None:
            return loss
        mask = given["attention_mask"]
        states = torch.stack([mean(states.float(), mask) for states in output.hidden_states[1:]], dim=1)
        # A step that stops early has the states of its own applications alone.
        apart = functional.mse_loss(states, wanted[:, : states.shape[1]], reduction="none").flatten(1).mean(dim=1)
        return loss + self.state_weight * _mean(apart, weights)
