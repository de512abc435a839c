"""Checks, cleans, splits and weights the rows that `recurra.RecurraClassifier.fit` is given."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from recurra.core.errors import DataError
from recurra.data.cleaning import CAREFUL, check_texts, clean_texts
from recurra.data.columns import is_missing, one_dimension
from recurra.data.corpora import IN_MEMORY
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.labels import as_word
from recurra.data.splits import split_rows

TRAIN, VALIDATION = "train", "validation"


class InputError(DataError, ValueError):
    """Input that an estimator cannot be fitted on; also a ``ValueError``, as scikit-learn expects."""


@contextlib.contextmanager
def input_errors() -> Iterator[None]:
    """Raises a `DataError` as an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except DataError as error:
        raise InputError(str(error)) from error


def fitting_rows(
    texts: Any,
    labels: Any,
    *,
    sample_weight: Any,
    class_weight: Any,
    eval_set: Any,
    validation_fraction: float,
    seed: int,
) -> tuple[TextDataset, npt.NDArray[np.float32] | None, npt.NDArray[Any]]:
    """Returns the splits, weights of the training rows if they differ, and the distinct labels in order.

    ``eval_set`` is ``(texts, labels)`` to choose the epoch by; with None, ``validation_fraction`` of the rows is drawn.
    """
    plain, column = _rows(texts, labels, "X", "y")
    classes, numbers = _number_labels(column)
    weights = _weights(column, sample_weight, class_weight)
    all_rows = _split(TRAIN, plain, numbers)
    if eval_set is None:
        if not 0 < validation_fraction < 1:
            raise InputError(
                f"validation_fraction is {validation_fraction}; give a share between 0 and 1, or an eval_set"
            )
        parts = split_rows(all_rows.texts, all_rows.labels, None, {VALIDATION: validation_fraction}, seed)
        selection, train = all_rows.select(parts[VALIDATION], name=VALIDATION), all_rows.select(parts[TRAIN])
    else:
        selection, train = _selection(eval_set, classes), all_rows
    if not len(train) or not len(selection):
        raise InputError(
            f"{len(all_rows)} texts leave {len(train)} to train on and {len(selection)} to choose the epoch by; "
            "give more, at least three different ones of one class, or an eval_set"
        )
    splits = {TRAIN: train, VALIDATION: selection}
    dataset = TextDataset(IN_MEMORY, "split", _label_words(classes), splits, VALIDATION, [VALIDATION])
    if weights is None:
        return dataset, None, classes
    chosen = weights[[int(row) for row in train.ids]]
    if not chosen.sum() > 0:
        raise InputError("the weights of the training rows sum to zero; give a positive one")
    return dataset, (chosen * (len(chosen) / chosen.sum())).astype(np.float32), classes


def given_texts(texts: Any, what: str) -> list[str]:
    """Returns plain texts; refuses a missing one."""
    plain = one_dimension(texts, what)
    for row, text in enumerate(plain, start=1):
        if is_missing(text):
            raise InputError(f"{what}: text {row:,} of {len(plain):,} is missing ({text}); fill it in or leave it out")
    check_texts(plain)
    return plain


def _rows(texts: Any, labels: Any, what: str, labels_what: str) -> tuple[list[str], npt.NDArray[Any]]:
    """Returns texts, and their labels as an array ``(texts,)``."""
    plain = given_texts(texts, what)
    column = _label_array(labels, labels_what)
    if len(column) != len(plain):
        raise InputError(f"{what} has {len(plain):,} texts and {labels_what} {len(column):,} labels; give one each")
    return plain, column


def _selection(eval_set: Any, classes: npt.NDArray[Any]) -> TextSplit:
    if not isinstance(eval_set, tuple) or len(eval_set) != 2:
        raise InputError(f"eval_set is a {type(eval_set).__name__}; give (texts, labels)")
    known = {label: number for number, label in enumerate(classes.tolist())}
    texts, labels = _rows(*eval_set, "texts of eval_set", "labels of eval_set")
    if new := [label for label in labels.tolist() if label not in known]:
        raise InputError(f"eval_set has the label {new[0]!r}, which y lacks; y has {classes.tolist()[:20]}")
    return _split(VALIDATION, texts, np.array([known[label] for label in labels.tolist()]))


def _weights(labels: npt.NDArray[Any], sample_weight: Any, class_weight: Any) -> npt.NDArray[np.float64] | None:
    """The weight of each row; None if all weigh alike."""
    if sample_weight is None and class_weight is None:
        return None
    weights = np.ones(len(labels))
    if sample_weight is not None:
        weights = np.array(one_dimension(sample_weight, "sample_weight"), dtype=np.float64)
    if len(weights) != len(labels):
        raise InputError(f"sample_weight.shape is {weights.shape}, and there are {len(labels)} texts; give one each")
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise InputError(f"sample_weight of row {wrong[0] + 1} is {weights[wrong[0]]}; give 0 or more")
    weight = dict(class_weight) if isinstance(class_weight, Mapping) else class_weight
    return weights if weight is None else weights * compute_sample_weight(weight, labels)


def _split(name: str, texts: Sequence[str], labels: npt.NDArray[np.int64]) -> TextSplit:
    cleaned = clean_texts(texts, CAREFUL)
    rows = [row for row, text in enumerate(cleaned) if text]
    return TextSplit(name, [cleaned[row] for row in rows], labels[rows], [str(row) for row in rows])


def _label_array(labels: Any, what: str) -> npt.NDArray[Any]:
    """Returns labels as an array ``(rows,)`` that keeps their types."""
    if labels is None:
        raise InputError("RecurraClassifier requires y to be passed, but the target y is None; give a label a text")
    if getattr(labels, "ndim", 1) == 2:
        labels = column_or_1d(np.asarray(labels), warn=True)
    values = one_dimension(labels, what)
    for row, label in enumerate(values, start=1):
        if is_missing(label):
            raise InputError(f"{what}: the label of row {row:,} is missing (Input contains NaN or None); fill it in")
    column = labels if isinstance(labels, np.ndarray) and labels.dtype != object else _array(values)
    if column.dtype.kind == "f":
        if not np.isfinite(column).all():
            raise InputError(f"{what} has the label inf (Input contains infinity); give finite numbers, or words")
        check_classification_targets(column)
    return column


def _array(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Returns values as an array that keeps their types: NumPy would turn 1 and "a" into words, tuples into a table."""
    kinds = {type(value) for value in values}
    if kinds in ({str}, {bool}, {int}, {float}, {int, float}):
        return np.asarray(values)
    return np.fromiter(values, dtype=object, count=len(values))


def _number_labels(labels: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    values = labels.tolist()
    try:
        distinct = sorted(set(values))
    except TypeError as error:
        kinds = " and ".join(sorted({type(value).__name__ for value in values}))
        raise InputError(
            f"y has labels ({kinds}) that cannot be hashed and sorted; give labels of one type, one a text (several a "
            "text: recurra.compare with label_separator)"
        ) from error
    if len(distinct) < 2:
        only = f"one class only: {distinct[0]!r}" if distinct else "no labels"
        raise InputError(f"y has {only}; a classifier needs texts of at least two")
    index = {label: number for number, label in enumerate(distinct)}
    classes = np.fromiter(distinct, dtype=object, count=len(distinct)).astype(labels.dtype)
    return classes, np.array([index[label] for label in values], dtype=np.int64)


def _label_words(classes: npt.NDArray[Any]) -> list[str]:
    words = [
        as_word(label, "y", "label", number, "y") if isinstance(label, str | int | float) else str(label)
        for number, label in enumerate(classes.tolist(), start=1)
    ]
    if repeated := sorted(word for word, count in Counter(words).items() if count > 1):
        raise InputError(f"y has several labels that are written as '{repeated[0]}'; give them different names")
    return words
