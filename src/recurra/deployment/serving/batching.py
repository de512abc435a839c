"""Texts of many requests computed together: threads of the model's own, a bounded queue, a bound on waiting."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from recurra.deployment.engines.computation import Classified
from recurra.deployment.serving.bodies import Extras
from recurra.deployment.serving.limits import Refusal, ServerLimits, stopping, try_again

# Weight of the last batch in the moving average of the time that a text takes.
_NEWEST = 0.2


@dataclass(frozen=True, eq=False)
class Computed:
    """The answers to one request's texts, and how they came about; see `ModelResult`."""

    answers: Classified
    waited_ms: float
    computed_ms: float
    batch_texts: int


@dataclass(eq=False)
class _Job:
    texts: Sequence[str]
    extras: Extras
    arrived: float
    deadline: float
    future: Future[Computed] = field(default_factory=Future)


class Batcher:
    """Asks a model about texts in threads of its own.

    A thread that is free takes what waits, so that batches grow with the load; a request is never cut.
    Requests for other extras are another batch; none overtakes an earlier one. A request that was cancelled or is too
    late is left out. If a batch fails, its requests are computed one by one, so that a text only ever spoils its own
    request. ``observe`` is called with each successful batch's texts, seconds and recurrences taken.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[list[str], Extras], Classified],
        limits: ServerLimits,
        *,
        workers: int = 1,
        observe: Callable[[int, float, Sequence[int] | None], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self._ask = ask
        self._limits = limits
        self._observe = observe
        self._failed = failed
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._waiting_texts = 0
        self._computing_texts = 0
        self._seconds_a_text = 0.0
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"batches-{name}-{number}", daemon=True)
            for number in range(workers)
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Takes no more requests, finishes those that were accepted, and ends the threads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return all(thread.is_alive() for thread in self._threads) and not self._stopping

    @property
    def waiting_texts(self) -> int:
        """Texts that are accepted and not yet computed on."""
        return self._waiting_texts

    def submit(self, texts: Sequence[str], extras: Extras | None = None) -> Future[Computed]:
        """Accepts one text or more, or turns them away at once: 429 if too many wait, 503 if it is being stopped."""
        now = time.monotonic()
        job = _Job(texts, extras or Extras(), now, now + self._limits.timeout_s)
        with self._changed:
            if self._stopping:
                raise stopping()
            ahead = self._waiting_texts + self._computing_texts
            expected_s = ahead * self._seconds_a_text / len(self._threads)
            full = self._waiting_texts + len(texts) > self._limits.max_waiting_texts
            # An empty queue takes any request: otherwise one slow batch could shut the door for good.
            if self._jobs and (full or expected_s > self._limits.max_wait_s):
                raise try_again("overloaded", "too many texts are waiting", expected_s)
            self._jobs.append(job)
            self._waiting_texts += len(texts)
            self._changed.notify()
        return job.future

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._stopping:
                    self._changed.wait()
                if not self._jobs:
                    return
                jobs = self._take()
            if jobs:
                self._compute(jobs)
                with self._changed:
                    self._computing_texts -= sum(len(job.texts) for job in jobs)

    def _take(self) -> list[_Job]:
        """A batch of what waits; empty if all were given up."""
        taken: list[_Job] = []
        texts = 0
        while self._jobs:
            job = self._jobs[0]
            fits = texts + len(job.texts) <= self._limits.batch_texts and not self._limits.alone
            if taken and not (fits and job.extras == taken[0].extras):
                break
            self._jobs.popleft()
            self._waiting_texts -= len(job.texts)
            if not job.future.set_running_or_notify_cancel():
                continue
            if time.monotonic() > job.deadline:
                job.future.set_exception(TimeoutError())
                continue
            taken.append(job)
            texts += len(job.texts)
        self._computing_texts += texts
        return taken

    def _compute(self, jobs: Sequence[_Job]) -> None:
        texts = [text for job in jobs for text in job.texts]
        started = time.monotonic()
        try:
            answers = self._ask(texts, jobs[0].extras)
        except Exception as error:  # noqa: BLE001 - the thread must outlive any text
            if len(jobs) > 1:
                for job in jobs:
                    self._compute([job])
                return
            if self._failed is not None:
                self._failed(error)
            message = "these texts could not be computed; the server's log says why"
            jobs[0].future.set_exception(Refusal(500, "failed", message))
            return
        seconds = time.monotonic() - started
        self._learn(seconds / len(texts))
        if self._observe is not None:
            # Where a request says itself where texts stop, nothing can be read of them.
            after = None if jobs[0].extras.exit_after else answers.exited_after
            self._observe(len(texts), seconds, None if after is None else after.tolist())
        start = 0
        for job in jobs:
            end = start + len(job.texts)
            waited_ms = 1000 * (started - job.arrived)
            job.future.set_result(Computed(_part(answers, start, end), waited_ms, 1000 * seconds, len(texts)))
            start = end

    def _learn(self, seconds: float) -> None:
        old = self._seconds_a_text
        self._seconds_a_text = seconds if old == 0 else (1 - _NEWEST) * old + _NEWEST * seconds


def _part(answers: Classified, start: int, end: int) -> Classified:
    exited_after, trace = answers.exited_after, answers.trace
    return Classified(
        answers.probabilities[start:end],
        None if exited_after is None else exited_after[start:end],
        None if trace is None else trace.part(start, end),
    )
