"""Running what a study still lacks on this machine: a process a run, as many at once as the cores carry."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from recurra.core.environment import available_cores
from recurra.core.errors import RecurraError
from recurra.core.progress import ProgressTask, Reporter
from recurra.study.claim import claim_folder
from recurra.study.plan import run_folder
from recurra.study.process import Child, Outcome, Start, outcome_of, start_python, threads_of, work
from recurra.tasks.base import task_of_data
from recurra.tasks.machine import Machine
from recurra.tasks.runs import RunConfig

Tell = Callable[[Outcome], str]


class Executor(Protocol):
    """What carries out runs."""

    def execute(self, pending: Sequence[RunConfig]) -> list[Outcome]:
        """Executes runs and returns what became of each, in any order; one that fails does not stop the others."""


class LocalExecutor:
    """Runs on this machine.

    Args:
        output: The study's folder.
        machine: Data root, caches; its ``threads`` are those of one run, 0 chooses.
        workers: Runs at once; 0 chooses.
        reporter: For progress.
        tell: What is said of a run that is done.
        start: Starts the process of a run.
    """

    def __init__(
        self,
        output: Path,
        machine: Machine,
        *,
        workers: int,
        reporter: Reporter,
        tell: Tell | None = None,
        start: Start = start_python,
    ) -> None:
        self.tell = tell
        self.start = start
        self.output = output
        self.machine = machine
        self.workers = workers
        self.reporter = reporter
        self._processes: set[Child] = set()
        self._stopping = False

    def execute(self, pending: Sequence[RunConfig]) -> list[Outcome]:
        """Executes runs and returns what became of each; one that fails does not stop the others."""
        if not pending:
            return []
        workers = self.workers or workers_for(len(pending), self.machine)
        machine = threads_of(self.machine, available_cores(), workers)
        queue = list(pending)
        outcomes: list[Outcome] = []
        lock = threading.Lock()
        with self.reporter.task("runs", len(pending)) as task:

            def take_and_work() -> None:
                while True:
                    with lock:
                        if not queue:
                            return
                        config = queue.pop(choose_next(queue, workers))
                    outcome = self._execute_one(config, machine, task)
                    with lock:
                        outcomes.append(outcome)
                        if self.tell is not None and not self._stopping:
                            self.reporter.stage(config.run_id, self.tell(outcome))

            pool = [threading.Thread(target=take_and_work, daemon=True) for _ in range(workers)]
            for thread in pool:
                thread.start()
            try:
                while any(thread.is_alive() for thread in pool):
                    time.sleep(0.1)
            except KeyboardInterrupt:
                self._stopping = True
                with lock:
                    queue.clear()
                self._stop()
                raise
        return outcomes

    def _execute_one(self, config: RunConfig, machine: Machine, task: ProgressTask) -> Outcome:
        folder = run_folder(self.output, config)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            claim_folder(config, folder)
        except (RecurraError, OSError) as error:
            return Outcome(config, folder, None, str(error), getattr(error, "exit_code", 2))

        def say(line: str) -> None:
            named = line.startswith(" ") or config.run_id in line
            self.reporter.say(line if named else f"{config.run_id}: {line}")

        ended = work(folder, machine, say=say, started=self._began, start=self.start)
        task.advance(1, note=config.run_id)
        if self._stopping:
            # Ended by us: that is no failure of the run.
            return Outcome(config, folder, None, "interrupted", 1)
        return outcome_of(self.output, config, ended)

    def _began(self, process: Child) -> None:
        self._processes.add(process)
        if self._stopping:
            # It was about to start when all were stopped.
            process.terminate()

    def _stop(self) -> None:
        # Those that have ended are left alone by both calls.
        for process in list(self._processes):
            process.terminate()
        for process in list(self._processes):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def choose_next(queue: Sequence[RunConfig], workers: int) -> int:
    """Which of the waiting runs begins next: the first, and among the last few the longest.

    In the plan's order results cover every model early; but a long run that begins last leaves cores idle at the end.
    """
    if workers == 1 or len(queue) > 2 * workers:
        return 0
    return max(range(len(queue)), key=lambda index: rough_weight(queue[index]))


def rough_weight(config: RunConfig) -> float:
    """How long a run takes compared with others on like data: from shape, epochs and share of the rows."""
    if config.is_control:
        return 0.0
    task = task_of_data(config.data)
    shape = task.shape(config.model, config.model_overrides)
    outside = shape.get("num_prelude_layers", 0) + shape.get("num_coda_layers", 0)
    layers = shape["num_core_layers"] * shape["num_recurrences"] + outside
    share = task.training_share(config.data)
    return float(shape["hidden_size"] ** 2 * layers * config.protocol.max_epochs * share)


def workers_for(runs: int, machine: Machine) -> int:
    """Runs at once on this machine: as many as its cores carry at the threads of one run, at most all."""
    return max(1, min(runs, available_cores() // max(1, machine.threads)))
