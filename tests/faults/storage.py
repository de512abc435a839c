"""Storage that fails under commands: a full disk, an I/O error, a short write, at each call or at a draw of them.

Every call that makes, writes, flushes or renames a file below the folder of the command counts, whichever library makes
it (``layer.c``). A command that fails says so in one line and leaves nothing half-written; started again, it leaves
what its undisturbed twin leaves. A short write is no error at all.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.figures import Account, Budget, Figure
from faults.forked import Child, Ended, command
from faults.jobs import JOBS, Job, Workshop, describe
from faults.kills import Twins
from faults.layer import Failure, arm, counted
from faults.twins import differences, left_by

FAILURES = (Failure.FULL, Failure.BROKEN, Failure.SHORT)
# Of commands whose output is one file or folder: whole or as it was.
_WHOLE_OR_OLD = {"adapt", "export", "export onnx", "predict csv", "predict jsonl", "predict parquet"}
_CALLS = "calls"


def starve_commands(
    workshop: Workshop, twins: Twins, dice: random.Random, budget: Budget, *, only: str | None = None, most: int | None
) -> Account:
    """Makes storage fail under commands."""
    account = Account()
    jobs = [job for job in JOBS.values() if job.starves and (only is None or job.name == only)]
    calls = {job.name: _count(workshop, job) for job in jobs}
    done: Counter[str] = Counter()
    by_failure: Counter[str] = Counter()
    refused = 0
    for job, failure, call in _in_turns(jobs, calls, dice):
        if not budget.is_left or (most is not None and done.total() >= most):
            break
        done[job.name] += 1
        by_failure[failure.name] += 1
        place = workshop.place(job)
        before = left_by(place)
        arguments = job.arguments(workshop.given, place)
        ended = Child(_failing(arguments, place, failure, call), workshop.scratch()).end()
        refused += ended.code != 0
        wrong = _wrong(job, ended, place, failure, before, twins.of(job)[0])
        if not wrong and ended.code != 0:
            again = workshop.run(arguments)
            if again.code != 0:
                wrong = [f"started again: exit code {again.code}: {again.err[-600:]!r}"]
            else:
                wrong = [f"started again: {line}" for line in differences(left_by(place), twins.of(job)[0])]
        if wrong:
            account.failures.append(
                f"{job.name}, {failure.name} at call {call} of {calls[job.name]}: {wrong[:4]}; {describe(arguments)}"
            )
        else:
            shutil.rmtree(place)
    account.figures += [
        *(
            Figure("storage", f"{name}: calls spoilt, of {3 * calls[name]} (each call in three ways)", number)
            for name, number in done.items()
        ),
        *(Figure("storage", f"{failure.name.lower()}", by_failure[failure.name]) for failure in FAILURES),
        Figure("storage", "commands that said so in one line; the others went on", refused),
        Figure("storage", "half files, tracebacks, outputs that differ at the end", len(account.failures), most=0),
    ]
    return account


def _in_turns(jobs: list[Job], calls: dict[str, int], dice: random.Random) -> Iterator[tuple[Job, Failure, int]]:
    """Every command, failure and call, in turns between commands, calls of each in random order."""
    waiting = {}
    for job in jobs:
        cases = [(job, failure, call) for failure in FAILURES for call in range(1, calls[job.name] + 1)]
        dice.shuffle(cases)
        waiting[job.name] = cases
    while any(waiting.values()):
        for cases in waiting.values():
            if cases:
                yield cases.pop()


def _count(workshop: Workshop, job: Job) -> int:
    place, scratch = workshop.place(job), workshop.scratch()
    call = command(job.arguments(workshop.given, place))

    def count() -> int:
        arm(place, Failure.NONE)
        code = call()
        (scratch / _CALLS).write_text(str(counted()), encoding="utf-8")
        return code

    ended = Child(count, scratch).end()
    if ended.code != 0:
        raise RuntimeError(ended.err)
    shutil.rmtree(place)
    return int((scratch / _CALLS).read_text(encoding="utf-8"))


def _failing(arguments: list[object], place: Path, failure: Failure, call: int) -> Callable[[], int]:
    run = command(arguments)

    def fail() -> int:
        arm(place, failure, call)
        return run()

    return fail


def _wrong(
    job: Job, ended: Ended, place: Path, failure: Failure, before: dict[str, object], wanted: dict[str, object]
) -> list[str]:
    if not ended.is_clean:
        return [f"exit code {ended.code}: {ended.err[-900:]!r}"]
    if ended.code == 0:
        # A cache that cannot be written costs time, and is none.
        found = differences(left_by(place), wanted)
        return [line for line in found if failure is Failure.SHORT or not _is_cache(line)]
    if failure is Failure.SHORT:
        return [f"a short write is no error: {ended.err[-600:]!r}"]
    if job.name in _WHOLE_OR_OLD:
        return differences(left_by(place), before)
    return []


def _is_cache(line: str) -> bool:
    return line.startswith("cache/") and line.endswith("is missing")
