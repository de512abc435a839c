"""Running what a study still lacks on this machine: as many runs at once as the cores carry."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from recurra.core.environment import available_cores
from recurra.core.errors import RecurraError
from recurra.core.progress import Reporter
from recurra.core.record import AnyRecord
from recurra.study.plan import ERROR_NAME, claim_folder, look_at, note_failure, read_reason, run_folder
from recurra.study.workers import Ended, Workers
from recurra.tasks.base import task_of_data
from recurra.tasks.machine import Machine
from recurra.tasks.runs import RunConfig

LOG_NAME = "log.txt"
# What a worker calls for a run.
EXECUTE = "recurra.study.worker:execute"


@dataclass(frozen=True)
class Outcome:
    """What became of one planned run: its record, or why there is none."""

    config: RunConfig
    folder: Path
    record: AnyRecord | None
    error: str | None = None
    exit_code: int = 0


Tell = Callable[[Outcome], str]


def claim(output: Path, config: RunConfig) -> Outcome | None:
    """Makes the folder of a run of a study; what became of the run if the folder cannot be had."""
    folder = run_folder(output, config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim_folder(config, folder)
    except (RecurraError, OSError) as error:
        return Outcome(config, folder, None, str(error), getattr(error, "exit_code", 2))
    return None


class LocalExecutor:
    """Runs on this machine."""

    def __init__(
        self, output: Path, machine: Machine, workers: Workers, *, reporter: Reporter, tell: Tell | None = None
    ) -> None:
        self.output = output
        self.machine = machine
        self.workers = workers
        self.reporter = reporter
        self.tell = tell

    def execute(self, pending: Sequence[RunConfig]) -> list[Outcome]:
        """Executes runs and returns what became of each; one that fails does not stop the others."""
        if not pending:
            return []
        queue, guard = list(pending), threading.Lock()
        outcomes: list[Outcome] = []
        with self.reporter.task("runs", len(pending)) as task, ThreadPoolExecutor(self.workers.count) as threads:
            try:
                for future in as_completed([threads.submit(self._execute_next, queue, guard) for _ in pending]):
                    outcome = future.result()
                    outcomes.append(outcome)
                    task.advance(1, note=outcome.config.run_id)
                    if self.tell is not None:
                        self.reporter.stage(outcome.config.run_id, self.tell(outcome))
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self.workers.stop()
                raise
        return outcomes

    def _execute_next(self, queue: list[RunConfig], guard: threading.Lock) -> Outcome:
        with guard:
            config = queue.pop(choose_next(queue, self.workers.count))
        if (refused := claim(self.output, config)) is not None:
            return refused
        folder = run_folder(self.output, config)

        def say(line: str) -> None:
            named = line.startswith(" ") or config.run_id in line
            self.reporter.say(line if named else f"{config.run_id}: {line}")

        with logging_to(folder, say) as log:
            ended = self.workers.call(EXECUTE, str(folder), machine=self.machine, say=log)
        if self.workers.stopped:
            # Ended by us: that is no failure of the run.
            return Outcome(config, folder, None, "interrupted", 1)
        return outcome_of(self.output, config, ended)


@contextlib.contextmanager
def logging_to(folder: Path, say: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Yields what writes a line to ``log.txt`` of a run folder, and says it."""
    with (folder / LOG_NAME).open("a", encoding="utf-8") as log:

        def log_line(line: str) -> None:
            log.write(f"{line}\n")
            log.flush()
            say(line)

        yield log_line


def outcome_of(output: Path, config: RunConfig, ended: Ended) -> Outcome:
    """What became of a run; a failure that left no reason gets one in the run folder."""
    run = look_at(output, config)
    if ended.code == 0 and run.state == "done":
        return Outcome(config, run.folder, run.record)
    reason = run.reason if run.state == "refused" else read_reason(run.folder / ERROR_NAME)
    exit_code = ended.code if ended.code > 0 else 1
    if reason is None:
        reason = f"{ended.cause}: {ended.last or 'no message'} (see {run.folder / LOG_NAME})"
        # Ctrl-C reaches the worker before it reaches us; it is no failure of the run.
        if ended.code != -signal.SIGINT:
            note_failure(run.folder / ERROR_NAME, reason, kind="RunError", code=exit_code)
    return Outcome(config, run.folder, None, reason, exit_code)


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


def threads_of(machine: Machine, cores: int, workers: int) -> Machine:
    """The machine with the threads of one run settled, so that all runs at once take the cores and no more."""
    return replace(machine, threads=machine.threads or max(1, cores // workers))
