"""Runs that label texts: their data, and the names of their controls."""

from __future__ import annotations

from recurra.data.configuration import DataConfig, RunData

LINEAR, LINEAR_TUNED, STATIC = "linear", "linear-tuned", "static"


def labelled(data: RunData) -> DataConfig:
    """The data of a run that labels texts."""
    assert isinstance(data, DataConfig)
    return data
