"""Which task a run has: what its model is for, and what its data are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recurra.core.errors import ConfigurationError, did_you_mean
from recurra.data.configuration import DataConfig
from recurra.data.language.configuration import ALIASES, LanguageDataConfig
from recurra.data.language.sources import SOURCES
from recurra.models.names import LANGUAGE_PRESET_NAMES, LANGUAGE_PRESETS, PRESET_NAMES
from recurra.study.variants import LINEAR

AnyDataConfig = DataConfig | LanguageDataConfig


def base_preset(model: str, overrides: Mapping[str, Any]) -> str:
    """The preset that a model starts from."""
    own = model if model in PRESET_NAMES + LANGUAGE_PRESET_NAMES else "recurrent"
    return str(overrides.get("preset", own))


def models_language(model: str, overrides: Mapping[str, Any]) -> bool:
    """Whether a model, by its preset, predicts the next token; the others classify."""
    return base_preset(model, overrides) in LANGUAGE_PRESET_NAMES


def leaks(model: str, overrides: Mapping[str, Any]) -> bool:
    """Whether a language model reads the future by its shape: `RecurraConfig.leaks` without loading transformers."""
    shape = {**LANGUAGE_PRESETS.get(base_preset(model, overrides), ("", {}))[1], **overrides}
    if not models_language(model, overrides) or shape.get("feed_forward", "swiglu") in ("swiglu", "linear"):
        return False
    return shape.get("causal_convolution", True) is False and shape.get("kernel_size", 3) > 1


def check_task(model: str, overrides: Mapping[str, Any], data: AnyDataConfig) -> None:
    """Refuses a model and data that do not belong together.

    Raises:
        ConfigurationError: For a language model with labelled data, or a classifier with running text.
    """
    language = models_language(model, overrides)
    if language and not isinstance(data, LanguageDataConfig):
        raise ConfigurationError(
            f"'{model}' is a language model, and '{data.name}' is not running text"
            f"{did_you_mean(data.name, [*ALIASES, *SOURCES])}; give it running text (wikitext-2, english_novels, "
            f"a .txt file), or take a classifier: {', '.join(PRESET_NAMES)}"
        )
    if isinstance(data, LanguageDataConfig) and not language:
        kind = "classifies texts" if model != LINEAR else "is the linear classifier"
        raise ConfigurationError(
            f"'{model}' {kind}, and '{data.name}' is running text without labels; "
            f"take a language model: {', '.join(LANGUAGE_PRESET_NAMES)}, or a model file with such a preset"
        )
