"""Generated cases against one target after the other: each refused in one line, or answered; quickly, in little memory.

The cases of a target run in a forked child. One that takes too long is ended by an alarm, and the next child goes on
behind it. Case N of a target is the same whatever ran before it: see `generate`.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from faults.figures import Account, Figure
from faults.forked import Child
from faults.jobs import Workshop

MOST_S = 10.0
MOST_MIB = 1024
# Cases of one child; what it keeps from case to case stays small.
_CASES = 150
_START_S = 60.0
_STATUS = Path("/proc/self/status")


class Verdict(NamedTuple):
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
    share: int


def generate(seed: int, target: str, number: int) -> random.Random:
    """The generator of one case."""
    return random.Random(f"{seed} {target} {number}")


def attack(workshop: Workshop, targets: list[Target], seed: int, cases: int, end: float) -> Account:
    """Sends so many cases to targets, shared out among them."""
    shares = sum(target.share for target in targets)
    found: dict[str, list[dict[str, Any]]] = {target.name: [] for target in targets}
    waiting = {target.name: range(-(-cases * target.share // shares)) for target in targets}
    # In turns, so that time that runs out is no target's alone.
    while time.perf_counter() < end and any(waiting.values()):
        for target in targets:
            todo = waiting[target.name]
            if todo and time.perf_counter() < end:
                more = _in_a_child(workshop, target, seed, todo[:_CASES])
                found[target.name] += more
                waiting[target.name] = todo[len(more) :]
    everything = [verdict for verdicts in found.values() for verdict in verdicts]
    outcomes = Counter(verdict["outcome"] for verdict in everything)
    failures = [verdict["wrong"] for verdict in everything if verdict["wrong"]]
    figures = [
        *(Figure("hostile", f"{name}: cases", len(verdicts)) for name, verdicts in found.items()),
        Figure("hostile", "cases", len(everything), least=cases),
        *(Figure("hostile", outcome, count) for outcome, count in sorted(outcomes.items())),
        Figure("hostile", "slowest case", max((one["s"] for one in everything), default=0), "s", most=MOST_S),
        Figure("hostile", "most memory of a case", max((one["mib"] for one in everything), default=0), "MiB", MOST_MIB),
        Figure("hostile", "cases that broke a rule", len(failures), most=0),
    ]
    return Account(figures, failures)


def _in_a_child(workshop: Workshop, target: Target, seed: int, numbers: range) -> list[dict[str, Any]]:
    """What came of cases in a child; those behind one that ends the child are left out."""
    scratch = workshop.scratch()
    written = scratch / "verdicts.jsonl"

    def call() -> int:
        with target.open(workshop.given) as run, written.open("w", encoding="utf-8", buffering=1) as stream:
            for number in numbers:
                # Nothing handles the alarm: it ends the child, whatever is computed.
                signal.setitimer(signal.ITIMER_REAL, MOST_S + 2)
                stream.write(json.dumps(_measured(run, generate(seed, target.name, number), scratch / "case")) + "\n")
            signal.setitimer(signal.ITIMER_REAL, 0)
        return 0

    ended = Child(call, scratch).end(_START_S + len(numbers) * (MOST_S + 2))
    if not written.exists():
        raise RuntimeError(f"{target.name} does not begin: {ended.code}, {ended.err[-3000:]}")
    verdicts = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    if len(verdicts) < len(numbers):
        verdicts.append({"outcome": "died", "wrong": f"{ended.code}; {ended.err[-900:]!r}", "s": 0.0, "mib": 0.0})
    else:
        shutil.rmtree(scratch, ignore_errors=True)
    for number, verdict in zip(numbers, verdicts, strict=False):
        if verdict["s"] > MOST_S or verdict["mib"] > MOST_MIB:
            verdict["wrong"] += f" it took {verdict['s']:.1f} s and {verdict['mib']:.0f} MiB"
        if verdict["wrong"]:
            verdict["wrong"] = f"{target.name}, case {number}: {verdict['wrong']}"
    return verdicts


def _measured(run: Case, dice: random.Random, place: Path) -> dict[str, Any]:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    # The peak is forgotten.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before, start = _memory_mib("VmRSS"), time.perf_counter()
    verdict = run(dice, place)
    seconds = time.perf_counter() - start
    return {**verdict._asdict(), "s": seconds, "mib": max(0.0, _memory_mib("VmHWM") - before)}


def _memory_mib(name: str) -> float:
    found = re.search(rf"^{name}:\s*(\d+)", _STATUS.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    assert found
    return int(found[1]) / 2**10
