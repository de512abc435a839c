"""Parts of the bench in this process: a process for each competitor takes seconds to start."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from benchmarks.lockstep import Job
from benchmarks.measures import Measure, Setting


class Here:
    """A competitor in this process."""

    def __init__(self, build: Any, job: Job) -> None:
        self._call = build(job)

    def call(self, index: int) -> dict[str, Any]:
        """As `benchmarks.lockstep.Competitor.call`."""
        start = time.perf_counter()
        value = self._call(index)
        return {"ms": (time.perf_counter() - start) * 1e3, "value": value}


def in_process(part: Any, monkeypatch: pytest.MonkeyPatch, *, run: str = "") -> list[Measure]:
    """Measures a part in quick mode."""

    @contextlib.contextmanager
    def competitors(_: Setting, jobs: Mapping[str, Job]) -> Iterator[dict[str, Here]]:
        yield {name: Here(part.build, job) for name, job in jobs.items()}

    monkeypatch.setattr(Setting, "competitors", competitors)
    monkeypatch.setattr(part, "ask", lambda job: part.build(job)(0), raising=False)
    return part.measure(Setting("", (), 1, quick=True, run=run))
