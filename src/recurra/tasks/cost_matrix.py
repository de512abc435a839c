"""What each mistake costs, as a user writes it down: a small CSV or JSON file of true by predicted labels."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recurra.core.errors import ConfigurationError

Costs = dict[str, dict[str, float]]
LARGEST_BYTES = 2**20
_FORM = "write a row a true label and a column a predicted one, with the labels as headings"


def read_costs(path: Path) -> Costs:
    """Reads what a row costs, by its true label and the predicted one.

    Args:
        path: A CSV file whose first row names the predicted labels and whose first column names the true ones, or a
            JSON object of objects, ``{true: {predicted: cost}}``.

    Raises:
        ConfigurationError: If it cannot be read, is too large, or does not hold a cost, at least 0, of every pair.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(LARGEST_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigurationError(f"cannot read the costs '{path}': {reason}; give a CSV or JSON file") from error
    if len(raw) > LARGEST_BYTES:
        raise ConfigurationError(f"the costs '{path}' have more than {LARGEST_BYTES:,} bytes; {_FORM}")
    try:
        values = json.loads(text) if path.suffix.lower() == ".json" else _of_csv(text)
    except (ValueError, RecursionError, csv.Error) as error:
        raise ConfigurationError(f"the costs '{path}' cannot be read ({error}); {_FORM}") from error
    return check_costs(values, f"the costs '{path}'")


def _of_csv(text: str) -> dict[str, dict[str, str]]:
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if any(map(str.strip, row))]
    header = rows[0][1:] if rows else []
    for row in rows[1:]:
        if len(row) != len(header) + 1:
            raise ValueError(f"the row of '{row[0]}' has {len(row) - 1} costs for {len(header)} labels")
    if len({row[0] for row in rows}) < len(rows) or len(set(header)) < len(header):
        raise ValueError("a label stands there twice")
    return {row[0]: dict(zip(header, row[1:], strict=True)) for row in rows[1:]}


def check_costs(values: Any, source: str) -> Costs:
    """A square of finite costs, at least 0.

    Raises:
        ConfigurationError: If it is none.
    """
    if not isinstance(values, Mapping) or not all(isinstance(row, Mapping) for row in values.values()):
        raise ConfigurationError(f"{source} are no table of true by predicted labels; {_FORM}")
    if len(values) < 2:
        raise ConfigurationError(f"{source} have {len(values)} true labels, at least 2 are needed; {_FORM}")
    found: Costs = {}
    for true, row in values.items():
        if set(row) != set(values):
            raise ConfigurationError(
                f"{source} name the true labels {', '.join(map(str, values))}, and for '{true}' the predicted ones "
                f"{', '.join(map(str, row))}; both must be the same"
            )
        found[str(true)] = {str(said): _cost(cost, f"{source}: '{true}' said '{said}'") for said, cost in row.items()}
    return found


def _cost(value: Any, source: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ConfigurationError(f"{source} costs '{value}'; a number of at least 0 is needed")
    return number


def ordered_costs(costs: Mapping[str, Mapping[str, float]], label_names: Sequence[str]) -> list[list[float]]:
    """Costs ``[true][predicted]`` in the order of the data's labels.

    Raises:
        ConfigurationError: If they are not of exactly these labels.
    """
    if set(costs) != set(label_names):
        raise ConfigurationError(
            f"the costs are of the labels {', '.join(costs)}, the data have {', '.join(label_names)}; name each once"
        )
    return [[costs[true][said] for said in label_names] for true in label_names]
