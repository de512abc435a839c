"""Executes the pending runs of a study on this machine, as many at once as the cores carry."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from recurra.core.environment import available_cores
from recurra.core.errors import RecurraError
from recurra.core.progress import Reporter
from recurra.study.plan import ERROR_NAME, PlannedRun, claim_folder, note_failure, read_reason, read_state, run_folder
from recurra.study.spec import StudySpec
from recurra.study.workers import Ended, Workers
from recurra.tasks.base import RunConfig, task_of_data
from recurra.tasks.study_data import Machine

LOG_NAME = "log.txt"
# Function that a worker calls for a run.
RUN_MODULE = "recurra.study.run"
EXECUTE = f"{RUN_MODULE}:execute_run"


def claim(output: Path, config: RunConfig) -> PlannedRun | None:
    """Creates and claims the folder of a run; returns the failed run if that is impossible."""
    folder = run_folder(output, config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim_folder(config, folder)
    except (RecurraError, OSError) as error:
        return PlannedRun(config, folder, "failed", str(error), exit_code=getattr(error, "exit_code", 2))
    return None


class Executor(ABC):
    """Executes runs side by side; a subclass decides where.

    Args:
        at_once: Runs at once; 0 starts all.
        tell: Returns the message about a run that has ended.
    """

    def __init__(
        self,
        output: Path,
        machine: Machine,
        at_once: int,
        *,
        reporter: Reporter,
        tell: Callable[[PlannedRun], str] | None = None,
    ) -> None:
        self.output, self.machine, self.at_once = output, machine, at_once
        self.reporter, self.tell = reporter, tell

    @abstractmethod
    def ready(self) -> AbstractContextManager[object]:
        """Context that holds the resources of running runs."""

    @abstractmethod
    def start(self, config: RunConfig) -> Future[Any]:
        """Starts a run whose folder is claimed."""

    @abstractmethod
    def outcome(self, config: RunConfig, ended: Future[Any]) -> PlannedRun | None:
        """The run as it ended; None if it must be started again."""

    @abstractmethod
    def stop(self) -> None:
        """Ends all running runs."""

    def execute(self, pending: Sequence[RunConfig]) -> list[PlannedRun]:
        """Executes runs and returns them as they ended; a run that fails does not stop the others."""
        if not pending:
            return []
        queue, outcomes = list(pending), []
        running: dict[Future[Any], RunConfig] = {}
        with self.ready(), self.reporter.task("runs", len(pending)) as task:
            try:
                while queue or running:
                    ended: list[PlannedRun | None] = []
                    if queue and (not self.at_once or len(running) < self.at_once):
                        config = queue.pop(choose_next(queue, self.at_once))
                        ended.append(claim(self.output, config))
                        if ended[0] is None:
                            running[self.start(config)] = config
                    else:
                        for future in wait(running, return_when=FIRST_COMPLETED).done:
                            config = running.pop(future)
                            ended.append(self.outcome(config, future))
                            if ended[-1] is None:
                                queue.insert(0, config)
                    for outcome in filter(None, ended):
                        outcomes.append(outcome)
                        task.advance(1, note=outcome.config.run_id)
                        if self.tell is not None:
                            self.reporter.stage(outcome.config.run_id, self.tell(outcome))
            except BaseException:
                self.stop()
                raise
        return outcomes


def waves(spec: StudySpec, pending: Sequence[RunConfig]) -> list[list[RunConfig]]:
    """Groups runs into waves in the order in which they begin: teachers are trained before their students."""
    taught_by = {teacher.run_id for run in pending for teacher in run.teachers if teacher.run_id}
    positions = {seed: position for position, seed in enumerate(spec.seeds)}
    first, second = list[RunConfig](), list[RunConfig]()
    for run in sorted(pending, key=lambda run: (0 if run.is_control else positions[run.seed], rough_weight(run))):
        begins = run.run_id in taught_by or (bool(taught_by) and not run.is_repeated)
        (first if begins else second).append(run)
    return [wave for wave in (first, second) if wave]


class LocalExecutor(Executor):
    """Runs on this machine, in workers."""

    def __init__(self, output: Path, machine: Machine, workers: Workers, **options: Any) -> None:
        super().__init__(output, machine, workers.count, **options)
        self.workers = workers

    def ready(self) -> AbstractContextManager[object]:
        """Threads that follow the workers."""
        self._threads = ThreadPoolExecutor(self.at_once)
        return self._threads

    def start(self, config: RunConfig) -> Future[Ended]:
        """Starts it in a worker."""

        def say(line: str) -> None:
            is_labelled = line.startswith(" ") or config.run_id in line
            self.reporter.say(line if is_labelled else f"{config.run_id}: {line}")

        folder = run_folder(self.output, config)
        call = partial(self.workers.call, EXECUTE, str(folder), machine=self.machine, say=say, log=folder / LOG_NAME)
        return self._threads.submit(call)

    def outcome(self, config: RunConfig, ended: Future[Ended]) -> PlannedRun:
        """The run as its folder shows it."""
        return outcome_of(self.output, config, ended.result())

    def stop(self) -> None:
        """Kills the workers; that is no failure of their runs."""
        self.workers.stop()


def outcome_of(output: Path, config: RunConfig, ended: Ended) -> PlannedRun:
    """The run as it ended; writes a reason into its folder if the failure left none."""
    run = read_state(output, config)
    if ended.code == 0 and run.state == "done":
        return run
    reason = run.reason if run.state == "refused" else read_reason(run.folder / ERROR_NAME)
    exit_code = ended.code if ended.code > 0 else 1
    if reason is None:
        reason = f"{ended.cause}: {ended.last or 'no message'} (see {run.folder / LOG_NAME})"
        # Ctrl-C reaches the worker before it reaches us; it is no failure of the run.
        if ended.code != -signal.SIGINT:
            note_failure(run.folder / ERROR_NAME, reason, kind="RunError", code=exit_code)
    return PlannedRun(config, run.folder, "failed", reason, exit_code=exit_code)


def choose_next(queue: Sequence[RunConfig], workers: int) -> int:
    """Position of the run that begins next: the first of the queue, or the longest once few are left.

    In the plan's order results cover every model early; but a long run that begins last leaves cores idle at the end.
    """
    if workers == 1 or len(queue) > 2 * workers:
        return 0
    return max(range(len(queue)), key=lambda index: rough_weight(queue[index]))


def rough_weight(config: RunConfig) -> float:
    """Relative duration of a run among runs on like data, from shape, epochs and share of the rows."""
    if config.is_control:
        return 0.0
    shape = task_of_data(config.data).shape(config.model, config.model_overrides)
    outer_layers = shape.get("num_prelude_layers", 0) + shape.get("num_coda_layers", 0)
    layers = shape["num_core_layers"] * shape["num_recurrences"] + outer_layers
    return float(shape["hidden_size"] ** 2 * layers * config.protocol.max_epochs * config.data.fraction)


def workers_for(runs: int, machine: Machine) -> int:
    """Number of runs at once on this machine: its cores divided by the threads of one run, at most ``runs``."""
    return max(1, min(runs, available_cores() // max(1, machine.threads)))


def threads_of(machine: Machine, cores: int, workers: int) -> Machine:
    """Sets the threads of one run where none are given, so that runs at once share the cores."""
    return replace(machine, threads=machine.threads or max(1, cores // workers))
