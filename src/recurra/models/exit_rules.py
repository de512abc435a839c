"""Where the rules of early exit were; they are in `recurra.models.exits` now."""

from __future__ import annotations

import warnings

from recurra.models.exits import ConfidenceRule, EntropyRule, FixedExit
from recurra.models.exits.rules import ExitRule, make_rule, read_rule

__all__ = ["ConfidenceRule", "EntropyRule", "ExitRule", "FixedExit", "make_rule", "read_rule"]

warnings.warn("recurra.models.exit_rules is recurra.models.exits now", DeprecationWarning, stacklevel=2)
