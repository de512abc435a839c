"""Early exit: rules that decide after which recurrence a row stops. Imports no torch.

Importing anything from here registers the rules, so that they can be had by name (`recurra.models.exits.rules`).
"""

from __future__ import annotations

from recurra.models.exits.rules import ConfidenceRule, EntropyRule, FixedExit

__all__ = ["ConfidenceRule", "EntropyRule", "FixedExit"]
