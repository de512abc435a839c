"""Competitors in processes of their own that work in turns: A B A B, one at a time.

A process of its own gives each one its own allocator setting and its own caches; the turns give each the same machine,
whose speed drifts by more than most competitors differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class Job:
    """Job of a competitor.

    Attributes:
        workload: Name of the module whose function `build` makes it.
        variant: Which competitor of that workload.
        preset: Shape of the model.
        corpus: Folder of the prepared corpus.
        threads: Threads of the numeric library.
        steps: How many different calls there will be.
        keep_memory: Whether the process keeps freed memory, as our commands do.
    """

    workload: str
    variant: str
    preset: str
    corpus: str
    threads: int
    steps: int
    keep_memory: bool = False

    @property
    def corpus_folder(self) -> Path:
        """Folder of the prepared corpus."""
        return Path(self.corpus)


class Competitor:
    """A process that waits for its turn. Used as a context manager."""

    def __init__(self, job: Job) -> None:
        self.job = job
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(job.threads),
            "TOKENIZERS_PARALLELISM": "true" if job.threads > 1 else "false",
            "RAYON_NUM_THREADS": str(job.threads),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def call(self, index: int) -> dict[str, Any]:
        """Runs call ``index`` in the process; returns ``ms`` and ``value``.

        Raises:
            RuntimeError: If the process died; its messages are on standard error.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{index}\n")
        self._process.stdin.flush()
        return json.loads(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line
        raise RuntimeError(f"the competitor {self.job.variant} ({self.job.workload}, {self.job.preset}) died")

    def __enter__(self) -> Self:
        """Waits until it is ready: while others start, nothing that it times would be right."""
        self._answer()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._process.terminate()
        self._process.__exit__(kind, error, at)


def in_turns(
    competitors: Mapping[str, Competitor], calls: int, repeats: int, *, seldom: Sequence[str] = (), warmup: int = 2
) -> dict[str, float]:
    """Times every competitor on its calls 0, 1, ... in turns, several times over.

    Args:
        competitors: By name.
        calls: Different calls.
        repeats: How often each is timed.
        seldom: Competitors whose calls all cost the same: timed on a quarter of the calls only, and once.
        warmup: Untimed calls of each before.

    Returns:
        Milliseconds a call: for each call the median over its repeats, then the mean over the calls, so that batches of
        all lengths count as in an epoch.
    """
    names = list(competitors)
    for name in names:
        for index in range(1 if name in seldom else warmup):
            competitors[name].call(index * (calls - 1))
    elapsed: dict[str, dict[int, list[float]]] = {name: {} for name in names}
    for repeat in range(repeats):
        for index in range(calls):
            turn = (repeat + index) % len(names)
            for name in names[turn:] + names[:turn]:
                if name in seldom and (repeat > 0 or index % 4):
                    continue
                elapsed[name].setdefault(index, []).append(competitors[name].call(index)["ms"])
    return {name: float(np.mean([np.median(times) for times in by_call.values()])) for name, by_call in elapsed.items()}


def ask(job: Job) -> Any:
    """Runs a job that measures by itself, in a fresh process, and returns its value."""
    with Competitor(job) as competitor:
        return competitor.call(0)["value"]
