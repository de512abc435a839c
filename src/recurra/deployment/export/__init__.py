"""From a finished run to a folder that other tools read. Names are imported when they are first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recurra.deployment.export.build import export_run
    from recurra.deployment.export.manifest import ExportOptions

__all__ = ["ExportOptions", "export_run"]

_HOMES = {
    "ExportOptions": "recurra.deployment.export.manifest",
    "export_run": "recurra.deployment.export.build",
}


def __getattr__(name: str) -> Any:
    """Imports a name when it is first asked for: what makes exports takes torch."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
