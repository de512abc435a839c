"""Reads a column of values from a list, an array, a Series, an Arrow column or a frame with one column.

This module imports none of these libraries: a value of theirs means that the program has done so.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sized
from typing import Any

import numpy as np

from recurra.core.errors import DataError


def one_dimension(values: Any, what: str) -> list[Any]:
    """Plain values of a list, an array, a Series or another column (or one-column table), named ``what`` in errors."""
    listed = isinstance(values, list | tuple) or hasattr(values, "__array__") or is_of(values, "datasets", "Column")
    if not listed:
        raise DataError(f"{what} is {with_article(kind_of(values))}; give a list, an array or a Series")
    shape = getattr(values, "shape", None)
    if isinstance(shape, tuple):
        if len(shape) != 1 and shape[1:] != (1,):
            several = "; of labels name the columns with label_columns=" if what == "labels" else ""
            raise DataError(f"{what} has the shape {shape}; give one column of values{several}")
        if len(shape) == 2:
            values = np.asarray(values).ravel()
    if hasattr(values, "to_pylist"):
        return list(values.to_pylist())
    return [*map(plain_value, values if hasattr(values, "__iter__") else np.asarray(values))]


def check_lengths(columns: Mapping[str, Sized], what: str) -> None:
    """Refuses columns of different lengths."""
    if len({*map(len, columns.values())}) > 1:
        lengths = ", ".join(f"'{name}' {len(column):,}" for name, column in columns.items())
        raise DataError(f"{what} has columns of different lengths ({lengths}); give one cell a row in each")


def is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing: None, NaN, or what pandas writes for it."""
    return (
        cell is None or (isinstance(cell, float) and math.isnan(cell)) or type(cell).__name__ in ("NAType", "NaTType")
    )


def kind_of(value: Any) -> str:
    """The name of a value's type for an error."""
    return "pair (texts, labels)" if isinstance(value, tuple) else type(value).__name__


def with_article(noun: str) -> str:
    """A noun with its article."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def is_of(value: Any, library: str, name: str) -> bool:
    """Whether a value has a class of a library; the library is not imported to find out."""
    kind = getattr(sys.modules.get(library), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def plain_value(cell: Any) -> Any:
    """Turns a NumPy scalar into a Python value."""
    return cell.item() if isinstance(cell, np.generic) else cell
