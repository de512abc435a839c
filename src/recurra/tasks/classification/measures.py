"""Measures of classifiers, from the confusion matrix or the logits, with intervals over rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import eye_array

from recurra.core.errors import ConfigurationError, unknown
from recurra.core.record import MetricsRecord
from recurra.evaluation.metrics import f1_by_class, log_softmax, rank_labels, ratio
from recurra.evaluation.significance import ClassScore
from recurra.tasks.labelling.reporting import LabellingTable, bootstrap_interval
from recurra.tasks.measures import Measure, WeightedScore, in_points
from recurra.tasks.questions import COST

F1_OF = "f1"
AVERAGE_PRECISION = "average_precision"
# Of a standard normal distribution.
_Z_95 = 1.959964

Floats = NDArray[np.float64]


# A figure ``(...)`` of a confusion matrix ``[true][predicted]`` from its cells that are not zero: the labels of each
# cell, ``(cells,)`` twice, how often it counts, ``(..., cells)``, and the number of labels.
CellScore = Callable[[NDArray[np.int64], NDArray[np.int64], Floats, int], Floats]


def macro_f1(right: Floats, support: Floats, predicted: Floats) -> Floats:
    """Mean F1 over labels; one that neither occurs nor is predicted counts for nothing, as in `evaluation.metrics`."""
    occurring = (support + predicted > 0).sum(axis=-1)
    return np.asarray(f1_by_class(right, support, predicted).sum(axis=-1) / np.maximum(occurring, 1))


def usual_f1(right: Floats, support: Floats, predicted: Floats) -> Floats:
    """F1 of label 1 for two labels, the mean over labels for more."""
    return (
        f1_by_class(right, support, predicted)[..., 1] if right.shape[-1] == 2 else macro_f1(right, support, predicted)
    )


def balanced_accuracy(right: Floats, support: Floats, predicted: Floats) -> Floats:
    """Mean recall over the labels that occur (Brodersen et al. 2010), in a resample too."""
    del predicted
    return np.asarray(ratio(right, support).sum(axis=-1) / np.maximum((support > 0).sum(axis=-1), 1))


def _f1_of_label(index: int) -> ClassScore:
    def score(right: Floats, support: Floats, predicted: Floats) -> Floats:
        # Counts may end with the last label that some rows have.
        by_label = f1_by_class(right, support, predicted)
        return by_label[..., index] if index < by_label.shape[-1] else np.zeros(by_label.shape[:-1])

    return score


def by_class(score: ClassScore) -> CellScore:
    """Turns a figure of the counts of classes into one of cells."""

    def of_cells(true: NDArray[np.int64], predicted: NDArray[np.int64], counts: Floats, labels: int) -> Floats:
        one_hot = eye_array(labels, format="csr")
        is_true, is_predicted = one_hot[true], one_hot[predicted]
        right = is_true.multiply((true == predicted)[:, None]).tocsr()
        return score(counts @ right, counts @ is_true, counts @ is_predicted)

    return of_cells


def by_cost(costs: Sequence[Sequence[float]]) -> CellScore:
    """Mean cost of a row, from costs ``[true][predicted]``."""
    cost_of = np.asarray(costs, dtype=np.float64)

    def of_cells(true: NDArray[np.int64], predicted: NDArray[np.int64], counts: Floats, labels: int) -> Floats:
        del labels
        return np.asarray((counts * cost_of[true, predicted]).sum(axis=-1) / counts.sum(axis=-1))

    return of_cells


def _cells(confusion_matrix: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, int]:
    matrix = np.asarray(confusion_matrix, dtype=np.float64)
    true, predicted = np.nonzero(matrix)
    return true, predicted, matrix[true, predicted], len(matrix)


def bootstrap_matrix(confusion_matrix: Sequence[Sequence[int]], score: CellScore) -> tuple[float, float] | None:
    """95 % percentile interval of a figure over rows; none without rows or with one label."""
    true, predicted, counts, labels = _cells(confusion_matrix)
    if not counts.any() or labels < 2:
        return None
    return bootstrap_interval(lambda draws: score(true, predicted, draws, labels), counts, labels)


def _of_matrix(score: CellScore) -> dict[str, Any]:
    """How a measure is read from the confusion matrix of a record, and its interval over rows."""
    return {
        "read": lambda metrics: float(score(*_cells(metrics.confusion_matrix))),
        "over_rows": lambda metrics: bootstrap_matrix(metrics.confusion_matrix, score),
    }


ACCURACY = in_points(
    "accuracy", "Accuracy", over_rows=attrgetter("accuracy_interval"), paired_by_rows=True, better="more accurate"
)
F1 = in_points("f1", "F1", over_rows=_of_matrix(by_class(usual_f1))["over_rows"])
PRECISION, RECALL = in_points("precision", "Precision"), in_points("recall", "Recall")


def _mean_recurrences(metrics: MetricsRecord) -> float | None:
    rows_of = metrics.recurrences
    return sum(number * rows for number, rows in rows_of.items()) / metrics.rows if rows_of else None


# The recurrences of a model that decides their number itself, row by row.
RECURRENCES = Measure(
    "recurrences", "Recurrences", "recurrences", False, _mean_recurrences, limits=(1.0, None), digits=2
)


def accuracy_after(recurrence: int) -> Measure:
    """Accuracy of the head after a recurrence that is not the last."""
    return replace(
        ACCURACY,
        key=f"{ACCURACY.key}:exit-{recurrence}",
        heading=f"After {recurrence}",
        read=lambda metrics: (metrics.exit_accuracy or {}).get(recurrence),
        over_rows=None,
        paired_by_rows=False,
    )


def exit_measures(table: LabellingTable) -> list[Measure]:
    """The accuracy of every exit that some model of a table has."""
    keys = {key for model in table.models for score in model.scores.values() for key in score.figures}
    prefix = f"{ACCURACY.key}:exit-"
    numbers = sorted(int(key.removeprefix(prefix)) for key in keys if key.startswith(prefix))
    return [accuracy_after(number) for number in numbers]


def _paired_measure(key: str, heading: str, **changes: Any) -> Measure:
    """A measure in points by which models are compared on the same rows."""
    measure = replace(F1, key=key, heading=heading, paired_by_rows=True, **changes)
    return replace(measure, better=f"better by {measure.in_text}")


def _class_measure(key: str, heading: str, score: ClassScore) -> Measure:
    return _paired_measure(key, heading, **_of_matrix(by_class(score)), of_classes=score)


# For unequal classes, with which a model that ignores the rare ones has a high accuracy.
MACRO_F1 = _class_measure("macro_f1", "Macro F1", macro_f1)
BALANCED_ACCURACY = _class_measure("balanced_accuracy", "Balanced accuracy", balanced_accuracy)


def _average_precision(key: str, heading: str, chosen: int | None) -> Measure:
    """How well the probability of a label ranks its rows first, at any threshold; the mean of all if none is chosen."""

    def read(metrics: MetricsRecord) -> float | None:
        values = metrics.average_precision
        if values is None:
            return None
        if chosen is not None:
            return values[chosen] or 0.0
        return float(np.mean([value for value in values if value is not None]))

    def over_rows(metrics: MetricsRecord) -> tuple[float, float] | None:
        value = read(metrics)
        if chosen is None or value is None:
            return None
        return _logit_interval(value, sum(metrics.confusion_matrix[chosen]))

    def of_logits(truth: NDArray[np.int64], logits: NDArray[np.floating[Any]]) -> WeightedScore:
        ranks = rank_labels(truth, log_softmax(logits))
        ranked = [label for label in (ranks if chosen is None else ranks[chosen : chosen + 1]) if label is not None]
        if not ranked:
            return lambda weights: np.zeros(() if weights is None else weights.shape[:-1])
        return lambda weights: np.asarray(np.mean([label.average_precision(weights) for label in ranked], axis=0))

    return _paired_measure(key, heading, read=read, over_rows=over_rows, of_logits=of_logits)


def _logit_interval(value: float, relevant: int) -> tuple[float, float] | None:
    """95 % interval of an average precision over so many rows of its label (Boyd, Eng and Page 2013, section 3)."""
    if relevant == 0 or not 0 < value < 1:
        return None
    centre, half = math.log(value / (1 - value)), _Z_95 / math.sqrt(relevant * value * (1 - value))
    low, high = (1 / (1 + math.exp(-end)) for end in (centre - half, centre + half))
    return low, high


def _cost_measure(costs: Sequence[Sequence[float]]) -> Measure:
    cost_of = np.asarray(costs, dtype=np.float64)
    return Measure(
        COST,
        "Mean cost",
        "cost a row",
        higher_is_better=False,
        **_of_matrix(by_cost(costs)),
        paired_by_rows=True,
        of_rows=lambda truth, predicted: cost_of[truth, predicted],
        better="less costly in its mistakes",
        limits=(0.0, None),
    )


def named_measure(name: str, label_names: Sequence[str], costs: Sequence[Sequence[float]] | None = None) -> Measure:
    """A measure by the name that a user gives it; costs are ``[true][predicted]`` in the order of the labels.

    Raises:
        ConfigurationError: If there is no measure of that name, or no such label.
    """
    mean = _average_precision(AVERAGE_PRECISION, "Mean average precision", None)
    plain = {measure.key: measure for measure in (ACCURACY, MACRO_F1, BALANCED_ACCURACY, mean)}
    if name in plain:
        return plain[name]
    if name == COST and costs is not None:
        return _cost_measure(costs)
    kind, colon, label = name.partition(":")
    if not colon or kind not in (F1_OF, AVERAGE_PRECISION):
        raise ConfigurationError(unknown("measure", name, [*plain, "f1:LABEL", "average_precision:LABEL", "cost:FILE"]))
    if label not in label_names:
        raise ConfigurationError(unknown("label of the measure", label, label_names))
    index = list(label_names).index(label)
    if kind == AVERAGE_PRECISION:
        return _average_precision(name, f"Average precision of '{label}'", index)
    return _class_measure(name, f"F1 of '{label}'", _f1_of_label(index))


def label_of(measure: Measure) -> str:
    """The label that a measure is about; empty if it is about all."""
    kind, _, label = measure.key.partition(":")
    return label if kind in (F1_OF, AVERAGE_PRECISION) else ""


def margin(table: LabellingTable, confusion_matrix: Sequence[Sequence[int]]) -> float:
    """What a smaller model may give up: a point, or 1 % of the cost of always giving the cheapest answer.

    A hundredth of the best model's cost would shrink to nothing with the cost, and a hundredth of the dearest mistake
    may be more than all mistakes cost together. Detection costs are normalised in the same way, by the cost of an
    answer given without looking (NIST 1997, the DET evaluations of speaker recognition).

    The confusion matrix, of any model on the judged split, says how often each label occurs.
    """
    return 0.01 if table.costs is None else 0.01 * cheapest_answer(table.costs, confusion_matrix)[1]


def cheapest_answer(costs: Sequence[Sequence[float]], confusion_matrix: Sequence[Sequence[int]]) -> tuple[int, float]:
    """The label that costs least if it is always given, and its mean cost of a row."""
    support = np.asarray(confusion_matrix, dtype=np.float64).sum(axis=1)
    constant_costs = support @ np.asarray(costs, dtype=np.float64) / support.sum()
    return int(constant_costs.argmin()), float(constant_costs.min())
