"""Every task by the name that its records carry, and the parts that it is made of, loaded when they are asked for.

A task is a package here with three modules of fixed names, so that a reader of records loads no torch:

* ``task``: how runs of it are configured (`TASK`),
* ``reporting``: measures, columns, published figures, sentences (`REPORTING`),
* ``engine``: training, evaluation, audits (`ENGINE`); the only one that imports torch.

A new task is its package and an entry in `recurra.core.tasks`.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from recurra.core.errors import CheckpointError
from recurra.core.tasks import TASKS

# In the order in which they are asked whether data are theirs.
PACKAGES = {name: task.package for name, task in TASKS.items()}


@cache
def part_of(name: str, part: str) -> Any:
    """Loads one part of a task.

    Args:
        name: As records have it.
        part: ``task``, ``reporting`` or ``engine``.

    Raises:
        CheckpointError: If there is no such task: a newer version wrote the record.
    """
    if name not in PACKAGES:
        raise CheckpointError(
            f"the task '{name}' is not known to this version (known: {', '.join(sorted(PACKAGES))}); upgrade recurra"
        )
    return getattr(importlib.import_module(f"{PACKAGES[name]}.{part}"), part.upper())
