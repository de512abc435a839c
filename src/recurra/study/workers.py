"""Workers of a study: processes that import once, take one call after the other, and are started anew if they die."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from recurra.study.worker import REPLY
from recurra.tasks.study_data import Machine


@dataclass(frozen=True)
class Ended:
    """How a call ended.

    Attributes:
        code: 0, or the exit code of an error, or of the worker if it died; negative: the signal.
    """

    code: int
    last: str = ""
    result: Any = None

    @property
    def cause(self) -> str:
        """Signal or exit code, in words."""
        return f"killed by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"

    @property
    def reason(self) -> str:
        """The cause, and the last line of output."""
        return f"{self.cause}: {self.last[:300] or 'no message'}"


class _Worker:
    """One process of `recurra.study.worker`."""

    def __init__(self, threads: int, modules: Sequence[str], cwd: Path | None) -> None:
        self.threads = threads
        self.process = subprocess.Popen(
            [sys.executable, "-m", "recurra.study.worker", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(threads),
                "TOKENIZERS_PARALLELISM": "false",
                # A worker writes what is read here, whatever the locale; a lone surrogate has no UTF-8.
                "PYTHONIOENCODING": "utf-8:backslashreplace",
            },
            cwd=cwd,
        )

    def close(self) -> None:
        """Kills the process and waits for its end; between two calls it holds no state."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Workers:
    """The workers of a study; a context that ends them.

    Args:
        threads: Threads of their numeric libraries.
    """

    def __init__(self, count: int, threads: int, modules: Sequence[str] = (), cwd: Path | None = None) -> None:
        self.count, self.threads = count, threads
        self.stopped = False
        self._modules, self._cwd = modules, cwd
        self._guard = threading.Lock()
        self._busy: set[_Worker] = set()
        self._idle = [_Worker(threads, modules, cwd) for _ in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop()
        for worker in self._idle:
            worker.close()

    def call(
        self,
        function: str,
        *arguments: Any,
        machine: Machine | None = None,
        say: Callable[[str], None] = lambda _: None,
        log: Path | None = None,
        threads: int = 0,
    ) -> Ended:
        """Calls a function in a worker that is idle, or in a new one, and follows it to its end.

        Args:
            machine: For a function whose first argument is the worker's `StudyData`.
            say: Takes each line of its output.
            log: File to which these lines are added.
            threads: Threads of the numeric libraries; 0 takes the number of all workers.
        """
        worker = self._take(threads or self.threads)
        assert worker.process.stdin is not None and worker.process.stdout is not None
        reusable, last = False, ""
        try:
            # If the worker has died, its end is read below.
            with contextlib.suppress(BrokenPipeError):
                worker.process.stdin.write(f"{json.dumps([function, machine and machine.to_json(), arguments])}\n")
                worker.process.stdin.flush()
            # Unbuffered: a disk that is full refuses a line when it is written, and not once more at the end.
            with nullcontext() if log is None else log.open("ab", buffering=0) as file:
                for line in worker.process.stdout:
                    if line.startswith(REPLY):
                        reply = json.loads(line.removeprefix(REPLY))
                        reusable = reply["reusable"]
                        return Ended(reply["code"], last, reply.get("result"))
                    if line.strip():
                        last = line.strip()
                        if file is not None:
                            # The run goes on, and says itself what it cannot write.
                            with contextlib.suppress(OSError):
                                file.write(f"{line.rstrip()}\n".encode())
                        say(line.rstrip("\n"))
            return Ended(worker.process.wait(), last)
        finally:
            with self._guard:
                self._busy.discard(worker)
                if reusable:
                    self._idle.append(worker)
            if not reusable:
                worker.close()

    def _take(self, threads: int) -> _Worker:
        with self._guard:
            for worker in [worker for worker in self._idle if worker.threads != threads]:
                # Libraries read their threads when they are loaded.
                self._idle.remove(worker)
                worker.close()
            worker = self._idle.pop() if self._idle else _Worker(threads, self._modules, self._cwd)
            self._busy.add(worker)
            if self.stopped:
                worker.process.kill()
            return worker

    def stop(self) -> None:
        """Kills every worker, also later ones: a call under way ends with the signal that killed its worker."""
        with self._guard:
            self.stopped = True
            for worker in (*self._busy, *self._idle):
                worker.process.kill()
