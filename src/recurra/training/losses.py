"""The loss of training rows with one label: cross-entropy, focal, or with logits adjusted by the classes' shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from recurra.data.encoding import WEIGHTS
from recurra.models.heads import weigh_losses


@dataclass(frozen=True, eq=False)
class RowLoss:
    """The loss of rows with one label each, in training.

    Attributes:
        label_smoothing: Share of the target mass spread over all classes.
        focal_gamma: The loss of a row is its cross-entropy times ``(1 - p)^gamma``, with ``p`` the probability of its
            label (Lin et al. 2017, "Focal Loss for Dense Object Detection", equation 4; equation 5, with a weight a
            class, is this beside weights of rows). 0 is the cross-entropy.
        adjustment: What is added to the logits before the loss, ``(labels,)``: ``tau`` times the logarithm of how
            frequent each class is (Menon et al. 2021, "Long-tail learning via logit adjustment", equation 10). None
            adds nothing.
        exit_loss_weight: Share of the loss that the exits have together, if there are some.
    """

    label_smoothing: float = 0.0
    focal_gamma: float = 0.0
    adjustment: Tensor | None = None
    exit_loss_weight: float = 0.0

    def of_rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row, ``(batch,)``.

        Args:
            logits: ``(batch, labels)``.
            labels: ``(batch,)``.
        """
        if self.adjustment is not None:
            logits = logits + self.adjustment.to(logits)
        each = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=self.label_smoothing)
        if not self.focal_gamma:
            return each
        # The slope of a power below 1 has no end at 0, which a sure row reaches.
        wrong = (-torch.expm1(-each)).clamp(min=torch.finfo(each.dtype).tiny)
        return each * wrong**self.focal_gamma

    def __call__(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """The mean over rows, each times its weight if rows have weights, the exits' weighed in.

        Divided by the number of rows and not by their weights: with weights of mean 1 over all rows, the mean over
        batches is then that of the whole, whatever weights meet in a batch.

        Args:
            model: A classifier of one label a row.
            inputs: With ``labels`` and perhaps ``row_weights``, both ``(batch,)``.
        """
        given = {name: values for name, values in inputs.items() if name not in ("labels", WEIGHTS)}
        output = model(**given, return_dict=True)

        def loss(logits: Tensor) -> Tensor:
            each = self.of_rows(logits, inputs["labels"])
            return (each * inputs[WEIGHTS]).mean() if WEIGHTS in inputs else each.mean()

        return weigh_losses([*map(loss, output.exit_logits or ()), loss(output.logits)], self.exit_loss_weight)


def logit_adjustment(labels: npt.NDArray[np.int64], num_labels: int, tau: float) -> Tensor:
    """``tau`` times the logarithm of how frequent each class is among training rows, ``(num_labels,)``.

    Args:
        labels: ``(rows,)``.
        num_labels: Number of classes; one without rows counts as if it had one.
        tau: 1 makes the classifier that is best for the mean error over classes.
    """
    counts = np.maximum(np.bincount(labels, minlength=num_labels), 1)
    return torch.from_numpy(tau * np.log(counts / counts.sum())).float()
