"""A linear model of words and characters and one of a frozen encoder's states, whose scores are added.

The mean of two models' log-probabilities has the softmax of the mean of their logits. So two averaged regressions and
one SVM on both kinds of features are stored and computed alike: weights of n-grams, weights of the mean state of a
text's tokens, and a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, hstack

from recurra.models.controls.fitting import (
    FEW_LABELS,
    FOLDS,
    STATES_C,
    Candidate,
    choose,
    judge,
    sample_of,
    scale_of,
    tuned_problem,
)
from recurra.models.controls.linear import LinearModel, label_scores

# Values of C for one SVM on both, where each kind of n-grams has length 1 and states have length 1 on average.
_JOINED_C = (0.03, 0.1, 0.3, 1.0)
# With more rows, states as a sparse matrix would take hundreds of MB, and the SVM minutes.
_MOST_ROWS_TOGETHER = 20_000


@dataclass(frozen=True)
class JoinedFit:
    """A fitted model of words, and weights and bias of the states."""

    words: LinearModel
    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]

    def logits(self, texts: Sequence[str], states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Logits of cleaned texts and their mean states, ``(texts, labels)``."""
        return self.words.logits(texts) + states @ self.weight.T + self.bias


def fit_joined(
    texts: Sequence[str],
    targets: npt.ArrayLike,
    states: npt.NDArray[np.float32],
    *,
    encoder: str,
    num_labels: int = 2,
    independent: bool = False,
    seed: int = 0,
    weights: npt.NDArray[np.float32] | None = None,
) -> JoinedFit:
    """Fits the mean of two models' log-probabilities, or one SVM on both, whichever cross-validates better.

    The two are the tuned control and a logistic regression on mean states, ``(texts, width)``, each calibrated. For
    independent labels, more than `FEW_LABELS` labels or `_MOST_ROWS_TOGETHER` texts, only the mean is fitted.
    """
    vectorizers, problem, candidates = tuned_problem(texts, targets, num_labels, seed, weights, independent=independent)
    centre, spread = scale_of(states.astype(np.float64))
    scaled = (states - centre) / spread
    apart = replace(problem, features=scaled)
    words_choice = choose(problem, candidates)
    states_choice = choose(apart, [Candidate("logistic", c) for c in STATES_C])
    choices = (words_choice, states_choice)
    mean = np.mean([best.logits * best.factor for best in choices], axis=0)
    factor, score, measure, loss = judge(mean, sample_of(problem).targets, independent=problem.independent)
    means_only = problem.independent or num_labels > FEW_LABELS or len(texts) > _MOST_ROWS_TOGETHER
    joint, scale = problem, 1 / np.sqrt(scaled.shape[1])
    choice = None
    if not means_only:
        # The best SVM on n-grams and states side by side.
        joint = replace(problem, features=hstack([problem.features, csr_matrix(scaled * scale)]).tocsr())
        choice = choose(joint, [Candidate("hinge", c) for c in _JOINED_C])
    if choice is None or (score, -loss) >= (choice.score, -choice.loss):
        parts = [problem.fit(words_choice.candidate), apart.fit(states_choice.candidate)]
        (weight, bias), (states_weight, states_bias) = (
            [part * best.factor * factor / 2 for part in fitted] for fitted, best in zip(parts, choices, strict=True)
        )
        fitted_by = (
            f"{words_choice.candidate}, and mean token states of {encoder} + {states_choice.candidate}, "
            f"log-probabilities averaged, by {FOLDS}-fold cross-validation ({measure} {score:.3f})"
        )
        c = words_choice.candidate.c
    else:
        weight, bias = (choice.factor * part for part in joint.fit(choice.candidate))
        weight, states_weight = weight[:, : -scaled.shape[1]], weight[:, -scaled.shape[1] :] * scale
        states_bias, c = np.zeros_like(bias), choice.candidate.c
        fitted_by = f"mean token states of {encoder} + {choice}"
    slopes = states_weight / spread
    offsets = states_bias - slopes @ centre
    # The single score of two classes is split as in `LinearModel.logits`.
    slopes, offsets = (label_scores(part, independent=problem.independent).T for part in (slopes.T, offsets[None]))
    words = LinearModel(vectorizers, weight, bias, c, independent=problem.independent, fitted_by=fitted_by)
    return JoinedFit(words, slopes.astype(np.float32), offsets[:, 0].astype(np.float32))
