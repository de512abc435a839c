"""Learning from a teacher: from its softened answers and its hidden states, beside the labels.

    loss = (1 - w) cross-entropy(labels) + w T^2 KL(teacher / T, student / T) + v mean squared error of states

The first two terms are Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", section 2. If a model has
exits, every head learns from both terms, and the heads are weighted as without a teacher. The last term compares the
mean over a row's real tokens after each layer application with the teacher's mean after the matching layer; TinyBERT
(Jiao et al. 2020, equation 8) compares every token. The classifier reads this mean, and it is small enough to store:
every token of every layer of a large corpus would fill gigabytes.
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

LOGITS, STATES, LABELLED = "teacher_logits", "teacher_states", "labelled"


@dataclass(frozen=True, eq=False)
class RowLoss:
    """The training loss of each row.

    Attributes:
        exit_distillation: Share of an exit's loss that compares it with the last head's softened answers (Zhang et al.
            2019, "Be Your Own Teacher", equation 5); the rest compares it with the labels.
        temperature: Divides the logits for that comparison, and for the one with a teacher's answers.
        teacher_weight: w, for batches with a teacher's answers.
        state_weight: v, for batches with a teacher's states.
    """

    label_smoothing: float = 0.0
    exit_loss_weight: float = 0.0
    exit_distillation: float = 0.0
    temperature: float = 2.0
    teacher_weight: float = 0.0
    state_weight: float = 0.0

    def of_rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row, ``(batch,)``; for labels ``(batch, labels)`` it is the mean logistic loss."""
        if labels.ndim == 2:
            # Smoothing moves targets of 0 and 1 towards one half by this share of the way.
            targets = labels.to(logits.dtype) * (1 - self.label_smoothing) + self.label_smoothing / 2
            return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)
        return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=self.label_smoothing)

    def __call__(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """The weighted mean over rows and heads; rows without weights count 1 each.

        The sum is divided by the number of rows, not by the sum of their weights. If the weights have mean 1 over all
        rows, the mean over batches then equals the mean over all rows, however weights are spread over the batches. A
        row whose ``labelled`` is 0 adds nothing to the labels' part, whose sum is still divided by all rows.
        """
        labels, weights, labelled = inputs["labels"], inputs.get(WEIGHTS), inputs.get(LABELLED)
        answers, teacher_states = inputs.get(LOGITS), inputs.get(STATES) if self.state_weight else None
        # Beside a teacher, and where all rows count alike, the model computes the labels' part.
        plain = not (self.label_smoothing or self.exit_distillation) and labelled is None and weights is None
        by_row = answers is None or not plain
        excluded = (LOGITS, STATES, LABELLED, WEIGHTS, *(("labels",) if by_row else ()))
        model_inputs = {name: values for name, values in inputs.items() if name not in excluded}
        output = model(**model_inputs, output_hidden_states=teacher_states is not None, return_dict=True)
        heads = [*(output.exit_logits or ()), output.logits]
        loss = output.loss
        if by_row:
            label_weights = labelled if weights is None else weights if labelled is None else labelled * weights
            halting = 0.0 if output.halt_loss is None else output.halt_loss
            loss = self.of_heads(heads, labels, label_weights) + halting
        if answers is not None:
            several = labels.ndim == 2
            divergences = [
                soft_divergence(logits, answers, self.temperature, several=several, weights=weights) for logits in heads
            ]
            loss = (1 - self.teacher_weight) * loss
            loss = loss + self.teacher_weight * weigh_losses(divergences, self.exit_loss_weight)
        if teacher_states is not None:
            mask = model_inputs["attention_mask"]
            states = torch.stack([mean(states.float(), mask) for states in output.hidden_states[1:]], dim=1)
            # A step that stops early only has the states of the layer applications it computed.
            errors = functional.mse_loss(states, teacher_states[:, : states.shape[1]], reduction="none")
            loss = loss + self.state_weight * _mean(errors.flatten(1).mean(dim=1), weights)
        return loss

    def of_heads(self, heads: Sequence[Tensor], labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """The weighted mean of the heads' losses; ``heads`` are logits ``(batch, labels)``, the final head's last."""
        losses = [_mean(self.of_rows(logits, labels), weights) for logits in heads]
        if self.exit_distillation:
            teacher, share = heads[-1].detach(), self.exit_distillation
            for number, logits in enumerate(heads[:-1]):
                divergence = soft_divergence(
                    logits, teacher, self.temperature, several=labels.ndim == 2, weights=weights
                )
                losses[number] = (1 - share) * losses[number] + share * divergence
        return weigh_losses(losses, self.exit_loss_weight)


def soft_divergence(
    student: Tensor, teacher: Tensor, temperature: float, *, several: bool, weights: Tensor | None = None
) -> Tensor:
    """Divergence of softened answers in nats, times the temperature squared; with several labels their mean."""
    student, teacher = student / temperature, teacher / temperature
    if several:
        target = teacher.sigmoid()
        cross_entropies = functional.binary_cross_entropy_with_logits(student, target, reduction="none")
        entropies = functional.binary_cross_entropy_with_logits(teacher, target, reduction="none")
        return _mean((cross_entropies - entropies).mean(dim=1), weights) * temperature**2
    student_log, teacher_log = student.log_softmax(-1), teacher.log_softmax(-1)
    divergences = functional.kl_div(student_log, teacher_log, reduction="none", log_target=True).sum(dim=1)
    return _mean(divergences, weights) * temperature**2


def _mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """The mean of row losses ``(batch,)``, each times its weight."""
    return losses.mean() if weights is None else (losses * weights).mean()


@dataclass(frozen=True, eq=False)
class TaughtSplit(EncodedSplit):
    """Rows with a teacher's logits, perhaps its states ``(rows, applications, hidden)`` and which rows have labels."""

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
    """Pads rows, and stacks their weights and the teacher's outputs where rows have them."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Returns the batch; ``row_weights`` and the teacher's outputs, if rows have them, are in FP32."""
        batch = super().__call__(rows)
        for name in (WEIGHTS, LOGITS, STATES, LABELLED):
            if name in rows[0]:
                batch[name] = torch.from_numpy(np.stack([row[name] for row in rows]).astype(np.float32))
        return batch
