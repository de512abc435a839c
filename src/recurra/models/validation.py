"""Checks of single values of a model configuration; each names the key, the value that came and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from recurra.core.errors import ConfigurationError


class ValueChecks:
    """Checks on attributes of the class they are mixed into."""

    def require_whole(self, key: str, least: int) -> None:
        """A whole number from ``least``."""
        self.require(is_whole(getattr(self, key), least), key, f"a whole number from {least}")

    def require_whole_list(self, key: str, least: int, *, empty: bool) -> None:
        """A list of whole numbers from ``least``, kept as a list whatever sequence came."""
        value = getattr(self, key)
        right = isinstance(value, list | tuple) and all(is_whole(item, least) for item in value)
        some = "a list" if empty else "a list, not empty,"
        self.require(right and (empty or len(value) > 0), key, f"{some} of whole numbers from {least}")
        setattr(self, key, list(value))

    def require_number(self, key: str, holds: Callable[[float], bool], allowed: str) -> None:
        """A finite number for which ``holds`` is true."""
        value = getattr(self, key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        self.require(number and math.isfinite(value) and holds(value), key, allowed)

    def require_switch(self, key: str) -> None:
        """True or false."""
        self.require(isinstance(getattr(self, key), bool), key, "true or false")

    def require_choice(self, key: str, choices: Collection[str]) -> None:
        """One of some words."""
        value = getattr(self, key)
        self.require(isinstance(value, str) and value in choices, key, f"one of {choices}")

    def require(self, holds: bool, key: str, allowed: str) -> None:
        """Raises unless ``holds``.

        Raises:
            ConfigurationError: With the key, its value and what is allowed.
        """
        if not holds:
            raise ConfigurationError(f"model configuration: '{key}' is {getattr(self, key)!r}; allowed: {allowed}")


def is_whole(value: Any, least: int) -> bool:
    """Whether a value is a whole number from ``least``; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
