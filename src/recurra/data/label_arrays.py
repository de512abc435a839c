"""Labels as programs have them: an array of any one type, numbered and put in order, and written as words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from recurra.core.errors import DataError
from recurra.data.files import as_word
from recurra.data.in_memory import is_missing, one_dimension


class InputError(DataError, ValueError):
    """What an estimator cannot be fitted on; a ``ValueError`` as well, as scikit-learn has it."""


def label_array(labels: Any, what: str) -> npt.NDArray[Any]:
    """Labels as an array ``(rows,)`` that keeps what they are.

    Args:
        labels: A list, an array or a Series; a table of one column is taken with scikit-learn's warning.
        what: Their name, for messages.

    Raises:
        DataError: If they are no column.
        ValueError: If one is missing, with its row, or they are no classes but measurements.
    """
    if labels is None:
        raise InputError("RecurraClassifier requires y to be passed, but the target y is None; give a label a text")
    if getattr(labels, "ndim", 1) == 2:
        labels = column_or_1d(np.asarray(labels), warn=True)
    values = one_dimension(labels, what)
    for row, label in enumerate(values, start=1):
        if is_missing(label):
            raise InputError(f"{what}: the label of row {row:,} is missing (Input contains NaN or None); fill it in")
    own = labels if isinstance(labels, np.ndarray) and labels.dtype != object else None
    column = own if own is not None else _array(values)
    if column.dtype.kind == "f":
        if not np.isfinite(column).all():
            raise InputError(f"{what} has the label inf (Input contains infinity); give finite numbers, or words")
        check_classification_targets(column)
    return column


def _array(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Values as an array that keeps what they are: NumPy writes 1 and "a" as words, and tuples as a table."""
    kinds = {type(value) for value in values}
    if kinds in ({str}, {bool}, {int}, {float}, {int, float}):
        return np.asarray(values)
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def number_labels(labels: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The labels in sorted order, and the number of each row's.

    Raises:
        InputError: If they cannot be sorted, or are not at least two.
    """
    values = labels.tolist()
    try:
        found = sorted(set(values))
    except TypeError as error:
        kinds = " and ".join(sorted({type(value).__name__ for value in values}))
        raise InputError(f"y has labels ({kinds}) that cannot be hashed and sorted; give labels of one type") from error
    if len(found) < 2:
        only = f"one class only: {found[0]!r}" if found else "no labels"
        raise InputError(f"y has {only}; a classifier needs texts of at least two")
    classes = np.empty(len(found), dtype=object)
    for number, label in enumerate(found):
        classes[number] = label
    index = {label: number for number, label in enumerate(found)}
    return classes.astype(labels.dtype), np.array([index[label] for label in values], dtype=np.int64)


def label_words(classes: npt.NDArray[Any]) -> list[str]:
    """Names of the labels where a file or a page has words.

    Raises:
        InputError: If two would read the same.
    """
    words = [
        as_word(label, "y", "label", number, "y") if isinstance(label, str | int | float) else str(label)
        for number, label in enumerate(classes.tolist(), start=1)
    ]
    twice = sorted({word for word in words if words.count(word) > 1})
    if twice:
        raise InputError(f"y has several labels that read '{twice[0]}' when they are written; name them apart")
    return words
