"""What belongs to the machine and not to a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter


@dataclass(frozen=True)
class Machine:
    """Where data lie, threads, whether to time: nothing that defines a run.

    Attributes:
        threads: Threads of the numeric library; 0 means all cores.
        latency: Whether to time the model at the end; a study times all its models side by side instead.
    """

    data_root: Path | None = None
    cache_dir: Path | None = None
    threads: int = 0
    latency: bool = True

    def to_json(self) -> str:
        """Plain form, to hand to a worker process."""
        return TypeAdapter(type(self)).dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads what `to_json` wrote."""
        return TypeAdapter(cls).validate_json(text)
