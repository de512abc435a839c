"""Every task by the name that its records carry, and where its parts are: the one list that a new task is added to.

Names of modules and classes alone: each layer loads what belongs to it, when it is asked for.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class RegisteredTask:
    """Where the parts of a task are."""

    package: str
    record: str
    data: str


# In the order in which they are asked whether data are theirs.
TASKS = {
    "language modelling": RegisteredTask(
        "recurra.tasks.language",
        "recurra.core.record:LanguageRunRecord",
        "recurra.data.language.configuration:LanguageDataConfig",
    ),
    "multi-label classification": RegisteredTask(
        "recurra.tasks.multilabel",
        "recurra.core.record:MultiLabelRunRecord",
        "recurra.data.configuration:MultiLabelData",
    ),
    "classification": RegisteredTask(
        "recurra.tasks.classification", "recurra.core.record:RunRecord", "recurra.data.configuration:DataConfig"
    ),
}


@cache
def load_class(path: str) -> Any:
    """The class at ``module:class``."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
