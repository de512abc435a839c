"""The data of runs that label texts: their configuration and lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from recurra.data.configuration import DataConfig, RunData


def labelled(data: RunData) -> DataConfig:
    """The data of such a run."""
    assert isinstance(data, DataConfig)
    return data


def count_lengths(lengths: Any) -> dict[str, int]:
    """Rows of each length, by the length as text (a key of JSON)."""
    values, rows = np.unique(lengths, return_counts=True)
    return {str(length): int(count) for length, count in zip(values, rows, strict=True)}
