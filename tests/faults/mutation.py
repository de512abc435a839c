"""Changes in the source that a test should notice, tried beside the other parts: on another core, until they are done.

The draw is small, so a room misses its bound only if its score is below 85 % beyond chance. `make mutants` draws more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from faults.figures import Account, Figure
from recurra.evaluation.significance import wilson_interval

WANTED = 0.85
_REPOSITORY = Path(__file__).resolve().parents[2]


class Mutants:
    """``python -m mutants`` in a process beside this one; a context that ends it.

    Args:
        folder: For its verdicts.
        seed: Of the draw.
        sample: Mutants a room.
    """

    def __init__(self, folder: Path, seed: int, sample: int) -> None:
        self._told = folder / "mutants.json"
        self._said = folder / "mutants.txt"
        options = ["--sample", str(sample), "--seed", str(seed), "--json", str(self._told)]
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                # Where there is one core alone the other parts go first.
                ["nice", "-n", "10", sys.executable, "-m", "mutants", *options],
                cwd=_REPOSITORY, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip

    def collect(self, seconds: float) -> Account:
        """Waits for the rest and counts; a room that there was no time for is a failure."""
        try:
            code = self._process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            code = None
        tried = json.loads(self._told.read_text(encoding="utf-8")) if self._told.is_file() else {"scores": []}
        account = Account([figure for score in tried["scores"] for figure in figures_of(score)])
        if code not in (0, 1):
            why = "there was no time for the others" if code is None else f"it ended with {code}"
            rooms = ", ".join(score["room"] for score in tried["scores"]) or "none"
            account.failures.append(f"mutants: tried {rooms}; {why}; see {self._said}")
        return account

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it and what it has started."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def figures_of(score: dict[str, Any]) -> Iterator[Figure]:
    """How many mutants of a room a test noticed, of those that are not listed, and how many it has to be at least."""
    asked = score["drawn"] - score["listed"]
    compatible = [killed for killed in range(asked + 1) if asked and wilson_interval(killed, asked)[1] >= WANTED]
    yield Figure(
        "mutants", f"of {score['room']}, noticed of {asked}", score["killed"], least=min(compatible, default=0)
    )
