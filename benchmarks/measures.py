"""One measured figure with its target, where it was measured, and the setting that all parts share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lockstep import Competitor, Job
from recurra.core.environment import code_record, environment_record


def provenance(*, threads: int = 1, precision: str = "mixed", accelerator: str | None = None) -> dict[str, Any]:
    """The code that measured and the machine that it ran on, as JSON values of a record."""
    machine = environment_record(threads=threads, precision=precision, accelerator=accelerator)
    return {"code": code_record().model_dump(mode="json"), "environment": machine.model_dump(mode="json")}


@dataclass(frozen=True)
class Measure:
    """A line of the table.

    Attributes:
        part: The part that measured it, as named on the command line.
        title: Description of the measure.
        preset: Preset of the model.
        ours_name: Name of ``ours``.
        ours: Our figure, in ``unit``.
        other_name: Name of ``other``.
        other: The figure that it is compared with, in ``unit``.
        unit: Unit of both.
        result: The figure that is judged.
        result_unit: ``x`` (how many times) or ``%``.
        target: Value that it must reach; None if it is only printed.
        aim: Desired value.
        at_most: Whether ``target`` is an upper bound.
    """

    part: str
    title: str
    preset: str
    ours_name: str
    ours: float
    other_name: str
    other: float
    unit: str
    result: float
    result_unit: str
    target: float | None = None
    aim: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.result <= self.target if self.at_most else self.result >= self.target

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {**vars(self), "met": self.met}


@dataclass(frozen=True)
class Setting:
    """Settings that all parts share.

    Attributes:
        corpus: Folder of the prepared corpus.
        presets: Presets to measure.
        threads: Threads of the numeric library.
        quick: Whether only to try that everything runs: few repeats, figures without meaning.
        run: Folder of a trained language model with exits, if one was given.
        classifier: Folder of a trained classifier with exits, if one was given.
        data_root: Folder of the local corpora, if one was given.
        peers: Names of the engines that MiniLM alone is compared with; empty for all, and all models.
    """

    corpus: str
    presets: tuple[str, ...]
    threads: int
    quick: bool
    run: str = ""
    classifier: str = ""
    data_root: Path | None = None
    peers: tuple[str, ...] = ()

    def sized(self, full: int, quick: int) -> int:
        """A count: the full one, or the quick one."""
        return quick if self.quick else full

    def job(self, workload: str, variant: str, preset: str, steps: int = 1, *, keep_memory: bool = False) -> Job:
        """A job in this setting."""
        return Job(workload, variant, preset, self.corpus, self.threads, steps, keep_memory)

    @contextlib.contextmanager
    def competitors(self, jobs: Mapping[str, Job]) -> Iterator[dict[str, Competitor]]:
        """Starts a process for each job and ends them all."""
        with contextlib.ExitStack() as stack:
            yield {name: stack.enter_context(Competitor(job)) for name, job in jobs.items()}
