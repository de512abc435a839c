"""Finds tasks by name. The measures and the reporting of a task load neither torch nor its data."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from recurra.core.errors import CheckpointError

# The package of each task by the name in its records, in the order in which tasks are asked whether data are theirs.
# A package is loaded on first use.
PACKAGES = {
    "language modelling": "recurra.tasks.language",
    "multi-label classification": "recurra.tasks.multilabel",
    "classification": "recurra.tasks.classification",
}


@cache
def part_of(name: str, part: str) -> Any:
    """Loads one part of a task.

    Raises:
        CheckpointError: If there is no such task: a newer version wrote the record.
    """
    if name not in PACKAGES:
        raise CheckpointError(
            f"the task '{name}' is not known to this version (known: {', '.join(sorted(PACKAGES))}); upgrade recurra"
        )
    return getattr(importlib.import_module(f"{PACKAGES[name]}.{part}"), part.upper())
