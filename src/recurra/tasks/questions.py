"""Questions of a study file: models to compare with each other, and published tables to show beside ours."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from recurra.core.configuration import Settings
from recurra.core.errors import ConfigurationError, DataError, did_you_mean, unknown
from recurra.data.configuration import DataConfig
from recurra.data.formats import decoded_whole, delimiter_of

Costs = dict[str, dict[str, float]]
# YAML reads 7 as a number.
_Label = Annotated[str, BeforeValidator(str)]


# As a text, a boolean is no number.
_Cost = Annotated[float, BeforeValidator(str), Field(ge=0, allow_inf_nan=False)]
_COSTS = TypeAdapter(dict[_Label, dict[_Label, _Cost]])
LARGEST_BYTES = 2**20
_FORM = "write a row for each true label and a column for each predicted one, with labels as headings"


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
        if len(raw) > LARGEST_BYTES:
            raise ValueError(f"more than {LARGEST_BYTES:,} bytes")
        text, *_ = decoded_whole(io.BytesIO(raw), f"'{path}'", None)
        values = json.loads(text) if path.suffix.lower() == ".json" else _of_csv(text)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the costs '{path}': {error.strerror}; give a CSV or JSON file"
        ) from error
    except DataError as error:
        raise ConfigurationError(f"the costs '{path}' are not UTF-8 text; save the file as UTF-8") from error
    except (ValueError, RecursionError, csv.Error) as error:
        raise ConfigurationError(f"the costs '{path}' cannot be read ({error}); {_FORM}") from error
    return check_costs(values, f"the costs '{path}'")


def _of_csv(text: str) -> dict[str, dict[str, str]]:
    lines = [line for line in text.splitlines() if line.strip()]
    delimiter = delimiter_of(lines[0] if lines else "", (), ",")
    rows = [
        [cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter) if any(map(str.strip, row))
    ]
    if delimiter != ",":
        # Such files write decimals with a comma.
        rows[1:] = [[name, *(cost.replace(",", ".") for cost in costs)] for name, *costs in rows[1:]]
    header = rows[0][1:] if rows else []
    for row in rows[1:]:
        if len(row) != len(header) + 1:
            raise ValueError(f"the row of '{row[0]}' has {len(row) - 1} costs for {len(header)} labels")
    if len({row[0] for row in rows}) < len(rows) or len(set(header)) < len(header):
        raise ValueError("a label is given twice")
    return {row[0]: dict(zip(header, row[1:], strict=True)) for row in rows[1:]}


def check_costs(values: Any, source: str) -> Costs:
    """Checks that values are a square table of finite costs, at least 0.

    Raises:
        ConfigurationError: If they are not.
    """
    try:
        costs: Costs = _COSTS.validate_python(values)
    except ValidationError as error:
        first_error = error.errors()[0]
        if first_error["type"] == "dict_type":
            raise ConfigurationError(f"{source} are not a table of true by predicted labels; {_FORM}") from error
        labels = " predicted as ".join(f"'{label}'" for label in first_error["loc"])
        raise ConfigurationError(
            f"{source}: {labels} costs '{first_error['input']}'; a number of at least 0 is needed; {_FORM}"
        ) from error
    # Written as text, 7 and '7' are the same label.
    if len(costs) < len(values) or any(len(costs[str(true)]) < len(row) for true, row in values.items()):
        raise ConfigurationError(f"{source} give a label twice; {_FORM}")
    if len(costs) < 2:
        raise ConfigurationError(f"{source} have {len(costs)} true labels, at least 2 are needed; {_FORM}")
    for true, row in costs.items():
        if set(row) != set(costs):
            raise ConfigurationError(
                f"{source} name the true labels {', '.join(costs)}, and for '{true}' the predicted ones "
                f"{', '.join(row)}; both must be the same"
            )
    return costs


def ordered_costs(costs: Mapping[str, Mapping[str, float]], label_names: Sequence[str]) -> list[list[float]]:
    """Costs ``[true][predicted]`` in the order of the data's labels.

    Raises:
        ConfigurationError: If they are not of exactly these labels.
    """
    if set(costs) != set(label_names):
        raise ConfigurationError(
            f"the costs are of the labels {', '.join(costs)}, the data have {', '.join(label_names)}; name each once"
        )
    return [[costs[true][predicted] for predicted in label_names] for true in label_names]


Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS = get_args(Precision)


def split_side(side: str) -> tuple[str, str | None]:
    """Model and precision of one side of a contrast: ``baseline@fp16``; without ``@`` the precision of its table."""
    model, separator, precision = side.rpartition("@")
    return (model, precision) if separator else (side, None)


class Contrast(Settings):
    """A question that was asked before the runs: ``a`` against ``b``, in every table that has both."""

    name: str = Field(min_length=1, max_length=120)
    a: str
    b: str

    def check(self, models: list[str], precisions: list[str]) -> None:
        """Checks that both sides are in the study.

        Raises:
            ValueError: If one is not, or both are the same.
        """
        for side in (self.a, self.b):
            model, precision = split_side(side)
            if model not in models:
                raise ValueError(f"contrast '{self.name}': {unknown('model of this study', model, models)}")
            if precision is not None and precision not in precisions:
                raise ValueError(f"contrast '{self.name}': {unknown('precision of this study', precision, precisions)}")
        if self.a == self.b:
            raise ValueError(f"contrast '{self.name}': '{self.a}' is compared with itself; name two models")
        if ("@" in self.a) != ("@" in self.b):
            raise ValueError(f"contrast '{self.name}': name the precision of both sides or of neither")


class PublishedReference(Settings):
    """A published table, and the data and precision of our tables that it is shown beside."""

    table: _Label
    data: dict[str, Any] = Field(default_factory=dict)
    precision: Precision | None = None

    def check(self, tables: Mapping[str, Any]) -> None:
        """Checks that the table and the keys of the data are known.

        Raises:
            ValueError: If one is not.
        """
        if self.table not in tables:
            raise ValueError(unknown("published table", self.table, tables))
        allowed = list(DataConfig.model_fields)
        for key in self.data:
            if key not in allowed:
                raise ValueError(f"unknown key '{key}'{did_you_mean(key, allowed)}; allowed: {', '.join(allowed)}")

    def fits(self, data: Mapping[str, Any], precision: str) -> bool:
        """Whether the table stands beside runs with these settings of the data and this precision."""
        defaults = {key: data_field.default for key, data_field in DataConfig.model_fields.items()}
        return self.precision in (None, precision) and self.data.items() <= {**defaults, **data}.items()


COST = "cost"


def with_costs(values: Any) -> Any:
    """Keys of a study file, or of a part of it, with the content of the file that ``measure: cost:FILE`` names.

    Raises:
        ConfigurationError: If the file is no table of costs, or ``costs`` and ``measure`` do not fit together.
    """
    if not isinstance(values, Mapping):
        return values
    name, colon, path = str(values.get("measure") or "").partition(":")
    costs = values.get("costs")
    if name != COST:
        if costs is not None:
            raise ConfigurationError("'costs' is given without the measure that uses it; add measure: cost")
        return values
    if colon:
        return {**values, "measure": COST, "costs": read_costs(Path(path))}
    if costs is None:
        raise ConfigurationError("the measure 'cost' needs the costs of mistakes; write cost:FILE")
    return {**values, "costs": check_costs(costs, "'costs'")}


class Limits(Settings):
    """Limits on the size and the time of a recommended model."""

    max_mib: float | None = Field(default=None, gt=0)
    max_ms: float | None = Field(default=None, gt=0)

    def excess(self, mib: float, ms: float | None) -> float:
        """Ratio of a model's cost to its limit, the larger of both; at most 1 is within, an untimed model is beyond."""
        factors = [] if self.max_ms is None else [math.inf if ms is None else ms / self.max_ms]
        return max([*factors, *([] if self.max_mib is None else [mib / self.max_mib])], default=0.0)

    def allow(self, mib: float, ms: float | None) -> bool:
        """Whether a model is within the limits."""
        return self.excess(mib, ms) <= 1

    def __str__(self) -> str:
        parts = [] if self.max_mib is None else [f"{self.max_mib:g} MiB"]
        return " and ".join([*parts, *([] if self.max_ms is None else [f"{self.max_ms:g} ms a text"])])


@dataclass(frozen=True)
class Questions:
    """The questions of a study to its records.

    Attributes:
        published: Published tables to show beside ours; None shows table 6 beside the whole of SST-2.
        measure: Measure by which models are judged; None lets the data decide.
        costs: Costs of mistakes, if they are the measure.
        texts: Texts of the rows, by split and identity, if the data are a user's file that can still be read.
        words: Word count of each row of a split, by `recurra.evaluation.predictions.Predictions.key`, if asked for.
    """

    contrasts: Sequence[Contrast] = field(default_factory=tuple)
    published: Sequence[PublishedReference] | None = None
    limits: Limits = field(default_factory=Limits)
    measure: str | None = None
    costs: Costs | None = None
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    fingerprint: str = ""
    words: Mapping[bytes, NDArray[np.int64]] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)

    def texts_of(self, fingerprint: str, split: str) -> Mapping[str, str]:
        """Texts of a split by identity, where a table is of these data; else none."""
        return self.texts.get(split, {}) if self.fingerprint in ("", fingerprint) else {}


NO_QUESTIONS = Questions()
