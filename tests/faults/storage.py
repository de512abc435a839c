"""Storage that is full under commands: no file may grow beyond a size that is drawn, whichever library writes it.

A command that fails says so in one line and leaves nothing half-written; started again with room, it leaves what its
undisturbed twin leaves.
"""

from __future__ import annotations

import itertools
import random
import resource
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from faults.figures import Account, Budget, Figure
from faults.forked import Child, Ended, command
from faults.jobs import JOBS, Job, Workshop, describe
from faults.kills import Twins
from faults.twins import differences, left_by

# Of commands whose output is one file or folder: whole or as it was.
_WHOLE_OR_OLD = {"adapt", "export", "export onnx", "predict csv", "predict jsonl", "predict parquet"}
# What a command says is written to a file too.
_LEAST_BYTES = 1024


def starve_commands(
    workshop: Workshop, twins: Twins, dice: random.Random, budget: Budget, *, only: str | None = None, most: int
) -> Account:
    """Lets commands, in turns, write no file beyond a size that is drawn from those of their files."""
    account, done, refused = Account(), Counter[str](), 0
    jobs = [job for job in JOBS.values() if job.starves and (only is None or job.name == only)]
    for job in itertools.islice(itertools.cycle(jobs), most):
        if not budget.is_left:
            break
        wanted = twins.of(job)[0]
        done[job.name] += 1
        place = workshop.place(job)
        before = left_by(place)
        arguments = job.arguments(workshop.given, place)
        room = dice.choice([size for size in twins.sizes(job) if size > _LEAST_BYTES]) - dice.randint(1, 512)
        ended = Child(_with_little_room(arguments, room), workshop.scratch()).end()
        refused += ended.code != 0
        wrong = _wrong(job, ended, place, before, wanted)
        if not wrong and ended.code != 0:
            again = workshop.run(arguments)
            wrong = [again.err[-600:]] if again.code != 0 else differences(left_by(place), wanted)
            wrong = [f"started again: {line}" for line in wrong]
        if wrong:
            account.failures.append(f"{job.name}, {room:,} bytes: {wrong[:4]}; {describe(arguments)}")
        else:
            shutil.rmtree(place)
    account.figures += [
        *(Figure("storage", f"{name}: times without room", number) for name, number in done.items()),
        Figure("storage", "commands that said so in one line; the others went on", refused, least=1),
        Figure("storage", "half files, tracebacks, outputs that differ at the end", len(account.failures), most=0),
    ]
    return account


def _with_little_room(arguments: list[object], most_bytes: int) -> Callable[[], int]:
    run = command(arguments)

    def starve() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        return run()

    return starve


def _wrong(job: Job, ended: Ended, place: Path, before: dict[str, object], wanted: dict[str, object]) -> list[str]:
    if not ended.is_clean:
        return [f"exit code {ended.code}: {ended.err[-900:]!r}"]
    if ended.code == 0:
        # A cache that cannot be written costs time, and is none.
        return [line for line in differences(left_by(place), wanted) if not line.startswith("cache/")]
    return differences(left_by(place), before) if job.name in _WHOLE_OR_OLD else []
