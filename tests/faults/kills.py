"""Commands that are killed at random moments and started again until they are done, then held against a twin.

A moment is drawn evenly from the time that the undisturbed command takes here. A kill counts if a signal ended the
command; one that came too late is drawn again.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from faults.figures import Account, Budget, Figure
from faults.forked import Child, Ended, command
from faults.jobs import JOBS, Job, Workshop, describe
from faults.twins import differences, left_by

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# Kills of one output before it is let go on: a second may meet what the first one left.
MOST_IN_A_ROW = 3


class Twins:
    """What each command leaves undisturbed, and how long it takes."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._known: dict[str, tuple[dict[str, object], float]] = {}
        self._sizes: dict[str, list[int]] = {}

    def of(self, job: Job) -> tuple[dict[str, object], float]:
        """Files and seconds; from a first run, whose time is not the cache's."""
        if job.name not in self._known:
            place = self._workshop.place(job)
            ended = self._workshop.run(job.arguments(self._workshop.given, place))
            if ended.code != 0:
                raise RuntimeError(f"{job.name}: {ended.err}")
            self._known[job.name] = left_by(place), ended.wall_s
            self._sizes[job.name] = sorted(path.stat().st_size for path in place.rglob("*") if path.is_file())
            shutil.rmtree(place)
        return self._known[job.name]

    def sizes(self, job: Job) -> list[int]:
        """Bytes of each file that it leaves."""
        self.of(job)
        return self._sizes[job.name]


def kill_commands(workshop: Workshop, twins: Twins, dice: random.Random, kills: int, budget: Budget) -> Account:
    """Kills commands so often."""
    account = Account()
    by_signal: Counter[str] = Counter()
    by_job: Counter[str] = Counter()
    outputs = 0
    names = [job.name for job in JOBS.values() for _ in range(job.share)]
    while by_signal.total() < kills and budget.is_left:
        job = JOBS[dice.choice(names)]
        place = workshop.place(job)
        arguments = job.arguments(workshop.given, place)
        wanted, seconds = twins.of(job)
        story: list[str] = []
        row = dice.randint(1, min(MOST_IN_A_ROW, kills - by_signal.total()))
        ended: Ended | None = None
        for _ in range(3 * row):
            number, moment = dice.choice(SIGNALS), dice.uniform(0, seconds)
            ended = _killed(workshop, arguments, number, moment)
            if not ended.interrupted:
                break
            by_signal[number.name] += 1
            by_job[job.name] += 1
            story.append(f"{number.name} after {moment:.3f} s")
            if ended.temporary:
                account.failures.append(f"{job.name}, {story}: {ended.temporary} was left in the temporary folder")
            if not ended.is_clean:
                account.failures.append(f"{job.name}, {story}: it said {ended.err[-600:]!r}")
            if len(story) == row:
                break
        if ended is None or ended.interrupted:
            ended = workshop.run(arguments)
        outputs += 1
        wrong = _wrong(ended, place, wanted)
        if wrong:
            account.failures.append(f"{job.name}, {story}: {wrong[:5]}; {describe(arguments)}")
        else:
            shutil.rmtree(place)
    account.figures += _figures(by_job, by_signal, outputs, account, kills)
    return account


def _killed(workshop: Workshop, arguments: list[object], number: signal.Signals, moment: float) -> Ended:
    child = Child(command(arguments), workshop.scratch())
    if not child.wait(moment):
        child.send(number)
    return child.end()


def _wrong(ended: Ended, place: Path, wanted: Mapping[str, object]) -> list[str]:
    if ended.code != 0:
        return [f"exit code {ended.code}: {ended.err[-600:]!r}"]
    return differences(left_by(place), dict(wanted))


def _figures(by_job: Counter[str], by_signal: Counter[str], outputs: int, account: Account, kills: int) -> list[Figure]:
    left = sum(failure.count("was left") for failure in account.failures)
    return [
        Figure("kills", "survived", by_signal.total(), least=kills),
        *(Figure("kills", f"by {name}", by_signal[name]) for name in sorted(by_signal)),
        *(Figure("kills", f"of {name}", by_job[name]) for name in JOBS if by_job[name]),
        Figure("kills", "outputs held against their twins", outputs),
        Figure("kills", "outputs that differ, or complaints of more than a line", len(account.failures), most=0),
        Figure("kills", "leftovers", left, most=0),
    ]
