"""Audits: measurements of whether the numbers can be trusted. Each returns `recurra.core.record.AuditResult` values.

The names are resolved on first use: the data audits must not load torch, which only the model audit needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recurra.evaluation.audits.causality import audit_causality, audit_language_padding
    from recurra.evaluation.audits.invariance import audit_cache, audit_invariance
    from recurra.evaluation.audits.leakage import audit_leakage, audit_too_good, contained_mask
    from recurra.evaluation.audits.seen import audit_seen
    from recurra.evaluation.audits.shortcuts import audit_shortcuts

__all__ = [
    "audit_cache",
    "audit_causality",
    "audit_invariance",
    "audit_language_padding",
    "audit_leakage",
    "audit_seen",
    "audit_shortcuts",
    "audit_too_good",
    "contained_mask",
]

_HOMES = {
    "audit_cache": "invariance",
    "audit_causality": "causality",
    "audit_invariance": "invariance",
    "audit_language_padding": "causality",
    "audit_leakage": "leakage",
    "audit_seen": "seen",
    "audit_shortcuts": "shortcuts",
    "audit_too_good": "leakage",
    "contained_mask": "leakage",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
