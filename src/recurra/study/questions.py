"""What a study file asks of its runs: models to hold against each other, and published tables to stand beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from recurra.core.configuration import Settings
from recurra.core.errors import did_you_mean, unknown
from recurra.data.configuration import DataConfig
from recurra.study.published import PUBLISHED

PRECISIONS = ("fp32", "bf16", "fp16")


def split_side(side: str) -> tuple[str, str | None]:
    """Model and precision of one side of a contrast: ``baseline@fp16``; without ``@`` the precision of its table."""
    model, at, precision = side.rpartition("@")
    return (model, precision) if at else (side, None)


class Contrast(Settings):
    """A question that was asked before the runs: ``a`` against ``b``, in every table that has both.

    Attributes:
        name: What the difference isolates, for example ``sharing at equal width``.
        a: A model of the study; ``MODEL@PRECISION`` names one precision, to compare across precisions.
        b: What it is held against.
    """

    name: str = Field(min_length=1, max_length=120)
    a: str
    b: str

    def check(self, models: list[str], precisions: list[str]) -> None:
        """Looks whether both sides are in the study.

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
            raise ValueError(f"contrast '{self.name}': '{self.a}' is held against itself; name two models")
        if ("@" in self.a) != ("@" in self.b):
            raise ValueError(f"contrast '{self.name}': name the precision of both sides or of neither")


class PublishedReference(Settings):
    """Which published table stands beside which of ours.

    Attributes:
        table: A key of `recurra.study.published.PUBLISHED`: ``6``, ``6 early``, ``7`` to ``12``, ``13 fp32``,
            ``13 fp16``.
        data: Keys of the data that a table of ours must have to stand beside it, for example ``{fraction: 0.1}``.
        precision: Precision that it must have; any if absent.
    """

    table: str
    data: dict[str, Any] = Field(default_factory=dict)
    precision: str | None = None

    @field_validator("table", mode="before")
    @classmethod
    def _known_table(cls, value: Any) -> str:
        name = str(value)
        if name not in PUBLISHED:
            raise ValueError(unknown("published table", name, PUBLISHED))
        return name

    @field_validator("data")
    @classmethod
    def _known_keys(cls, values: dict[str, Any]) -> dict[str, Any]:
        for key in values:
            if key not in DataConfig.model_fields:
                allowed = list(DataConfig.model_fields)
                raise ValueError(f"unknown key '{key}'{did_you_mean(key, allowed)}; allowed: {', '.join(allowed)}")
        return values

    @field_validator("precision")
    @classmethod
    def _known_precision(cls, value: str | None) -> str | None:
        if value is not None and value not in PRECISIONS:
            raise ValueError(unknown("precision", value, PRECISIONS))
        return value

    def fits(self, data: Mapping[str, Any], precision: str) -> bool:
        """Whether the table stands beside runs with these settings of the data and this precision."""
        if self.precision not in (None, precision):
            return False
        for key, wanted in self.data.items():
            field = DataConfig.model_fields[key]
            found = data.get(key, None if field.is_required() else field.default)
            if found != wanted:
                return False
        return True


# Where no study file says otherwise: table 6 beside the whole of SST-2.
_WHOLE_SST2 = {"name": "sst2", "fraction": 1.0, "length_tail": None}
DEFAULT_PUBLISHED = (
    PublishedReference(table="6", data=_WHOLE_SST2),
    PublishedReference(table="6 early", data=_WHOLE_SST2),
)
