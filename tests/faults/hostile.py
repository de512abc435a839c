"""Generated cases against one target after the other: each refused in one line, or answered; quickly, in little memory.

The cases of a target run in a forked child. One that takes too long is ended by an alarm, and the next child goes on
behind it. Case N of a target is the same whatever ran before it: see `generate`.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.figures import Account, Budget, Figure
from faults.forked import Child
from faults.jobs import Workshop

MOST_S = 10.0
MOST_MIB = 1024
# Cases of one child; what it keeps from case to case stays small.
_CASES = 150
_START_S = 60.0


@dataclass(frozen=True)
class Verdict:
    """What came of a case."""

    outcome: str
    wrong: str = ""


# Gets the generator of the case and an empty folder.
Case = Callable[[random.Random, Path], Verdict]


@dataclass(frozen=True)
class Target:
    """What cases are sent to."""

    name: str
    open: Callable[[Path], AbstractContextManager[Case]]
    share: int = 1


@dataclass
class _Tally:
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    most_mib: float = 0.0
    failures: list[str] = field(default_factory=list)


def generate(seed: int, target: str, number: int) -> random.Random:
    """The generator of one case."""
    return random.Random(f"{seed} {target} {number}")


def attack(workshop: Workshop, targets: list[Target], seed: int, cases: int, budget: Budget) -> Account:
    """Sends so many cases to targets, shared out among them."""
    account = Account()
    shares = sum(target.share for target in targets)
    everything = _Tally()
    tallies = {target.name: _Tally() for target in targets}
    waiting = {target.name: range(-(-cases * target.share // shares)) for target in targets}
    # In turns, so that time that runs out is no target's alone.
    while budget.is_left and any(waiting.values()):
        for target in targets:
            todo = waiting[target.name]
            if todo and budget.is_left:
                done = _in_a_child(workshop, target, seed, todo[:_CASES], tallies[target.name])
                waiting[target.name] = range(done, todo.stop)
    for target in targets:
        tally = tallies[target.name]
        account.figures.append(Figure("hostile", f"{target.name}: cases", tally.outcomes.total()))
        account.failures += tally.failures
        everything.outcomes += tally.outcomes
        everything.slowest_s = max(everything.slowest_s, tally.slowest_s)
        everything.most_mib = max(everything.most_mib, tally.most_mib)
    account.figures += [
        Figure("hostile", "cases", everything.outcomes.total(), least=cases),
        *(Figure("hostile", outcome, count) for outcome, count in sorted(everything.outcomes.items())),
        Figure("hostile", "slowest case", everything.slowest_s, "s", most=MOST_S),
        Figure("hostile", "most memory that a case took", everything.most_mib, "MiB", most=MOST_MIB),
        Figure("hostile", "cases that broke a rule", len(account.failures), most=0),
    ]
    return account


def _in_a_child(workshop: Workshop, target: Target, seed: int, numbers: range, tally: _Tally) -> int:
    """Runs cases in a child; returns the number of the first that it did not get to."""
    scratch = workshop.scratch()
    verdicts = scratch / "verdicts.jsonl"

    def call() -> int:
        with target.open(workshop.given) as run, verdicts.open("w", encoding="utf-8", buffering=1) as stream:
            for number in numbers:
                # Nothing handles the alarm: it ends the child, whatever is computed.
                signal.setitimer(signal.ITIMER_REAL, MOST_S + 2)
                stream.write(json.dumps(_measured(run, generate(seed, target.name, number), scratch / "case")) + "\n")
            signal.setitimer(signal.ITIMER_REAL, 0)
        return 0

    ended = Child(call, scratch).end(_START_S + len(numbers) * (MOST_S + 2))
    if not verdicts.exists():
        raise RuntimeError(f"{target.name} does not begin: {ended.code}, {ended.err[-3000:]}")
    done = numbers.start
    for line in verdicts.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        tally.outcomes[found["outcome"]] += 1
        tally.slowest_s = max(tally.slowest_s, found["s"])
        tally.most_mib = max(tally.most_mib, found["mib"])
        wrong = found["wrong"]
        if found["s"] > MOST_S or found["mib"] > MOST_MIB:
            wrong = f"{wrong} it took {found['s']:.1f} s and {found['mib']:.0f} MiB"
        if wrong:
            tally.failures.append(f"{target.name}, case {done}: {wrong}")
        done += 1
    if done < numbers.stop:
        tally.outcomes["died"] += 1
        tally.failures.append(f"{target.name}, case {done}: {ended.code}; {ended.err[-900:]!r}")
        return done + 1
    shutil.rmtree(scratch, ignore_errors=True)
    return done


def _measured(run: Case, dice: random.Random, place: Path) -> dict[str, Any]:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    before = _forget_peak()
    start = time.perf_counter()
    verdict = run(dice, place)
    seconds = time.perf_counter() - start
    grown = max(0.0, _memory_mib("VmHWM") - before)
    return {"outcome": verdict.outcome, "wrong": verdict.wrong, "s": seconds, "mib": grown}


def _forget_peak() -> float:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _memory_mib("VmRSS")


def _memory_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 2**10
    return 0.0
