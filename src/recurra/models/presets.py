"""The presets: named shapes of the one architecture."""

from __future__ import annotations

from typing import Any

from recurra.core.errors import ConfigurationError, unknown
from recurra.models.configuration import RecurraConfig
from recurra.models.names import LANGUAGE_PRESETS, PRESETS


def preset_names() -> list[str]:
    """Names of all presets, classifiers first."""
    return [*PRESETS, *LANGUAGE_PRESETS]


def preset(name: str, *, num_labels: int = 2, **overrides: Any) -> RecurraConfig:
    """Returns the configuration of a preset.

    Args:
        name: One of `preset_names`.
        num_labels: Classes, if the model is to be a classifier.
        overrides: Any key of `RecurraConfig`.

    Raises:
        ConfigurationError: For an unknown name or key, or an impossible value.
    """
    found = PRESETS.get(name) or LANGUAGE_PRESETS.get(name)
    if found is None:
        raise ConfigurationError(unknown("model preset", name, preset_names()))
    return RecurraConfig(**{**found[1], "num_labels": num_labels, **overrides})
