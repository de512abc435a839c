"""The presets: named shapes of the one architecture."""

from __future__ import annotations

from typing import Any

from recurra.core.errors import ConfigurationError, unknown
from recurra.models.configuration import RecurraConfig
from recurra.models.names import PRESETS


def preset_names() -> list[str]:
    """Names of all presets."""
    return list(PRESETS)


def preset(name: str, *, num_labels: int = 2, **overrides: Any) -> RecurraConfig:
    """Returns the configuration of a preset.

    Args:
        name: One of `preset_names`.
        num_labels: Classes of the classifier.
        overrides: Any key of `RecurraConfig`.

    Raises:
        ConfigurationError: For an unknown name or key, or an impossible value.
    """
    if name not in PRESETS:
        raise ConfigurationError(unknown("model preset", name, preset_names()))
    return RecurraConfig(**{**PRESETS[name][1], "num_labels": num_labels, **overrides})
