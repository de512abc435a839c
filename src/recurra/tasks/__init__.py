"""Tasks, found by name: what is measured and reported of one is read without torch and without its data."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from recurra.core.errors import CheckpointError

# The package of each task by the name that its records carry, in the order in which they are asked whether data are
# theirs. Each is loaded when it is asked for.
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
