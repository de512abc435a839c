"""What belongs to the machine and not to a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_PATHS = ("data_root", "cache_dir")


@dataclass(frozen=True)
class Machine:
    """Where data lie, threads, whether to time, what to keep: nothing that defines a run.

    Attributes:
        threads: Threads of the numeric library; 0 means all cores.
        latency: Whether to time the model at the end; a study times all its models side by side instead.
    """

    data_root: Path | None = None
    cache_dir: Path | None = None
    threads: int = 0
    latency: bool = True
    keep_checkpoints: bool = False

    def to_json(self) -> str:
        """Plain form, to hand to a worker process."""
        values = dict(vars(self))
        return json.dumps({**values, **{key: str(values[key]) if values[key] else None for key in _PATHS}})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads what `to_json` wrote."""
        values = json.loads(text)
        return cls(**{**values, **{key: Path(values[key]) if values[key] else None for key in _PATHS}})
