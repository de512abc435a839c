"""Commands that are killed or find no room, held against their twins, which nothing disturbs.

The moment of a kill is drawn evenly from the time that the twin took here. A kill counts if a signal ended the
command; one that came too late is drawn again. Storage is full in that no file may grow beyond a size that is drawn,
whichever library writes it. A command that fails says so in one line and leaves nothing half-written; started again,
it leaves what its twin leaves.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import resource
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.figures import Account, Figure
from faults.forked import Child, Ended, command
from faults.jobs import JOBS, Job, Workshop

Files = dict[str, object]

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# Kills of one output before it is let go on: a second may meet what the first one left.
MOST_IN_A_ROW = 3
# Of commands whose output is one file or folder: whole or as it was.
_WHOLE_OR_OLD = {"adapt", "export", "export onnx", "predict csv", "predict jsonl", "predict parquet"}
# What a command says is written to a file too.
_LEAST_BYTES = 1024
# Times, memory, what a hash of them says, how often a command was begun, and the commit, which may move on meanwhile.
_VOLATILE = {
    *("created", "tokens_per_s", "peak_memory_mib", "content_hash", "record_hash", "resumed", "made"),
    *("code", "commit", "dirty"),
}
# What a person reads: made of records, with their times in it. That they are there is compared.
_PAGES = {".html", ".md", ".tex", ".svg", ".txt", ".csv"}


@dataclass(frozen=True)
class Twin:
    """What a command leaves undisturbed, the sizes of its files, and how long it takes without a cache."""

    files: Files
    sizes: list[int]
    seconds: float


@functools.cache
def twin_of(workshop: Workshop, job: Job) -> Twin:
    """The twin of a command, which is run once."""
    place, arguments = workshop.begin(job)
    ended = workshop.succeeds(workshop.run(arguments))
    sizes = sorted(path.stat().st_size for path in place.rglob("*") if path.is_file())
    twin = Twin(left_by(place), sizes, ended.wall_s)
    shutil.rmtree(place)
    return twin


def left_by(place: Path) -> Files:
    """Every file below a folder, and every empty folder, with what must be the same whenever it is made."""
    paths = {path.relative_to(place).as_posix(): path for path in sorted(place.rglob("*"))}
    return {name: _content(name, path) for name, path in paths.items() if path.is_file() or not any(path.iterdir())}


def _content(name: str, path: Path) -> object:
    if path.is_dir() or path.name == "log.txt" or name.startswith("study") or "report" in path.parts[-2:]:
        return b""
    if path.suffix in _PAGES and not name.startswith("p."):
        return b""
    data = path.read_bytes()
    if path.suffix == ".json":
        return _without_times(json.loads(data))
    if path.suffix == ".jsonl":
        return [_without_times(json.loads(line)) for line in data.splitlines()]
    if path.suffix == ".safetensors":
        # The library writes what it says of a file in any order.
        length = int.from_bytes(data[:8], "little")
        return [json.loads(data[8 : 8 + length]), data[8 + length :]]
    return data


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        volatile = {key for key in value if key in _VOLATILE or key.endswith("wall_s")}
        return {key: _without_times(item) for key, item in value.items() if key not in volatile}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def differences(found: Files, wanted: Files) -> list[str]:
    """What is missing, what is too much, what is another."""
    missing = [f"{name} is missing" for name in wanted if name not in found]
    surplus = [f"{name} was left" for name in found if name not in wanted]
    return [
        *missing,
        *surplus,
        *(f"{name} differs" for name in wanted if found.get(name, wanted[name]) != wanted[name]),
    ]


def kill_commands(workshop: Workshop, dice: random.Random, kills: int, end: float) -> Account:
    """Kills commands so often."""
    account, by_signal, by_job = Account(), Counter[str](), Counter[str]()
    outputs = 0
    shares = [job.share for job in JOBS.values()]
    while by_signal.total() < kills and time.perf_counter() < end:
        (job,) = dice.choices(list(JOBS.values()), shares)
        twin, (place, arguments) = twin_of(workshop, job), workshop.begin(job)
        story: list[str] = []
        wrong: list[str] = []
        row = dice.randint(1, min(MOST_IN_A_ROW, kills - by_signal.total()))
        while len(story) < row:
            number, moment = dice.choice(SIGNALS), dice.uniform(0, twin.seconds)
            child = Child(command(arguments), workshop.scratch())
            child.signal_after(moment, number)
            ended = child.end()
            if not ended.interrupted:
                break
            by_signal[number.name] += 1
            by_job[job.name] += 1
            story.append(f"{number.name} after {moment:.3f} s")
            if not ended.is_clean:
                wrong.append(f"it said {ended.err[-600:]!r}")
            # Only who is asked with Ctrl-C has the time to tidy up.
            if number == signal.SIGINT and ended.temporary:
                wrong.append(f"{ended.temporary} was left in the temporary folder")
        if ended.interrupted:
            ended = workshop.run(arguments)
        outputs += 1
        wrong += _wrong_at_the_end(ended, place, twin)
        _note(account, f"{job.name}, {story}", wrong, arguments, place)
    left = sum(failure.count("was left") for failure in account.failures)
    account.figures = [
        Figure("kills", "survived", by_signal.total(), least=kills),
        *(Figure("kills", f"by {name}", by_signal[name]) for name in sorted(by_signal)),
        *(Figure("kills", f"of {name}", by_job[name]) for name in JOBS if by_job[name]),
        Figure("kills", "outputs held against their twins", outputs),
        Figure("kills", "outputs that differ, or complaints of more than a line", len(account.failures), most=0),
        Figure("kills", "leftovers", left, most=0),
    ]
    return account


def starve_commands(
    workshop: Workshop, dice: random.Random, end: float, *, only: str | None = None, most: int
) -> Account:
    """Lets commands, in turns, write no file beyond a size that is drawn from those of their files."""
    account, done, refused = Account(), Counter[str](), 0
    jobs = [job for job in JOBS.values() if job.starves and only in (None, job.name)]
    for job in itertools.islice(itertools.cycle(jobs), most):
        if time.perf_counter() >= end:
            break
        twin, (place, arguments) = twin_of(workshop, job), workshop.begin(job)
        before = left_by(place)
        room = dice.choice([size for size in twin.sizes if size > _LEAST_BYTES]) - dice.randint(1, 512)
        ended = Child(functools.partial(_starve, arguments, room), workshop.scratch()).end()
        done[job.name] += 1
        refused += ended.code != 0
        wrong = _wrong_without_room(job, ended, place, before, twin)
        if not wrong and ended.code != 0:
            wrong = [f"started again: {line}" for line in _wrong_at_the_end(workshop.run(arguments), place, twin)]
        _note(account, f"{job.name}, {room:,} bytes", wrong, arguments, place)
    account.figures = [
        *(Figure("storage", f"{name}: times without room", number) for name, number in done.items()),
        Figure("storage", "commands that said so in one line; the others went on", refused, least=1),
        Figure("storage", "half files, tracebacks, outputs that differ at the end", len(account.failures), most=0),
    ]
    return account


def _starve(arguments: list[str], most_bytes: int) -> int:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    return command(arguments)()


def _wrong_without_room(job: Job, ended: Ended, place: Path, before: Files, twin: Twin) -> list[str]:
    if not ended.is_clean:
        return [f"exit code {ended.code}: {ended.err[-900:]!r}"]
    if ended.code == 0:
        # A cache that cannot be written costs time, and is none.
        return [line for line in differences(left_by(place), twin.files) if not line.startswith("cache/")]
    return differences(left_by(place), before) if job.name in _WHOLE_OR_OLD else []


def _wrong_at_the_end(ended: Ended, place: Path, twin: Twin) -> list[str]:
    if ended.code != 0 or ended.temporary:
        return [f"exit code {ended.code}, temporary files {ended.temporary}: {ended.err[-600:]!r}"]
    return differences(left_by(place), twin.files)


def _note(account: Account, story: str, wrong: list[str], arguments: list[str], place: Path) -> None:
    """Notes what was wrong and keeps what lies there; tidies up if nothing was."""
    if wrong:
        account.failures.append(f"{story}: {wrong[:5]}; {json.dumps(arguments)}")
    else:
        shutil.rmtree(place)
