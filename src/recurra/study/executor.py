"""Running what a study still lacks: a process a run, as many at once as the cores carry."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recurra.core.environment import available_cores
from recurra.core.errors import CheckpointError, RecurraError
from recurra.core.files import read_json
from recurra.core.progress import Reporter, Task
from recurra.core.record import RunRecord, read_record
from recurra.study.claim import claim_folder
from recurra.study.machine import Machine
from recurra.study.spec import RunConfig
from recurra.study.worker import ERROR_NAME

LOG_NAME = "log.txt"


@dataclass(frozen=True)
class Outcome:
    """What became of one planned run: its record, or why there is none."""

    config: RunConfig
    folder: Path
    record: RunRecord | None
    error: str | None = None
    exit_code: int = 0


def run_folder(output: Path, config: RunConfig) -> Path:
    """Where a run of a study lies."""
    return output / "runs" / config.run_id


def find_record(output: Path, config: RunConfig) -> RunRecord | None:
    """The record of a planned run if it is done and is of this very configuration."""
    folder = run_folder(output, config)
    try:
        record = read_record(folder)
    except CheckpointError:
        return None
    return record if record.config_hash == config.config_hash else None


class LocalExecutor:
    """Runs on this machine.

    Args:
        output: The study's folder.
        machine: Data root, caches; its ``threads`` are those of one run, 0 chooses.
        workers: Runs at once; 0 chooses.
        reporter: For progress.
    """

    def __init__(self, output: Path, machine: Machine, *, workers: int, reporter: Reporter) -> None:
        self.output = output
        self.machine = machine
        self.workers = workers
        self.reporter = reporter
        self._processes: set[subprocess.Popen[str]] = set()

    def execute(self, pending: Sequence[RunConfig]) -> list[Outcome]:
        """Executes runs and returns what became of each; one that fails does not stop the others."""
        if not pending:
            return []
        cores = available_cores()
        workers = self.workers or max(1, min(len(pending), cores // max(1, self.machine.threads)))
        threads = self.machine.threads or max(1, cores // workers)
        machine = replace(self.machine, threads=threads)
        queue = list(pending)
        outcomes: list[Outcome] = []
        lock = threading.Lock()
        with self.reporter.task("runs", len(pending)) as task:

            def work() -> None:
                while True:
                    with lock:
                        if not queue:
                            return
                        config = queue.pop(0)
                    outcome = self._execute_one(config, machine, task)
                    with lock:
                        outcomes.append(outcome)

            pool = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
            for thread in pool:
                thread.start()
            try:
                while any(thread.is_alive() for thread in pool):
                    time.sleep(0.1)
            except KeyboardInterrupt:
                with lock:
                    queue.clear()
                self._stop()
                raise
        return outcomes

    def _execute_one(self, config: RunConfig, machine: Machine, task: Task) -> Outcome:
        folder = run_folder(self.output, config)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            claim_folder(config, folder)
        except (RecurraError, OSError) as error:
            return Outcome(config, folder, None, str(error), getattr(error, "exit_code", 2))
        environment = {**os.environ, "OMP_NUM_THREADS": str(machine.threads), "TOKENIZERS_PARALLELISM": "false"}
        process = subprocess.Popen(
            [sys.executable, "-m", "recurra.study.worker", str(folder), machine.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
        )
        self._processes.add(process)
        assert process.stderr is not None
        last = ""
        with process.stderr, (folder / LOG_NAME).open("a", encoding="utf-8") as log:
            for line in process.stderr:
                log.write(line)
                log.flush()
                last = line.strip() or last
                named = line.startswith(" ") or config.run_id in line
                self.reporter.say((line if named else f"{config.run_id}: {line}").rstrip("\n"))
        code = process.wait()
        self._processes.discard(process)
        task.advance(1, note=config.run_id)
        record = find_record(self.output, config)
        if code == 0 and record is not None:
            return Outcome(config, folder, record)
        return Outcome(config, folder, None, self._reason(folder, code, last), code if code > 0 else 1)

    @staticmethod
    def _reason(folder: Path, code: int, last: str) -> str:
        path = folder / ERROR_NAME
        if path.exists():
            return str(read_json(path)["error"])
        cause = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return f"{cause}: {last or 'no message'} (see {folder / LOG_NAME})"

    def _stop(self) -> None:
        for process in list(self._processes):
            process.terminate()
        for process in list(self._processes):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
