"""Scores of rooms, and mutants that are known to survive."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants.trial import Verdict

SURVIVORS = Path(__file__).with_name("survivors.toml")


class Survivors:
    """Mutants that no test ought to kill, each with its reason: ``survivors.toml``."""

    def __init__(self, path: Path = SURVIVORS) -> None:
        with path.open("rb") as file:
            entries = tomllib.load(file).get("mutant", [])
        self._reasons = {(entry["file"], entry["before"], entry["after"]): str(entry["reason"]) for entry in entries}

    def reason(self, mutant: Mapping[str, Any]) -> str | None:
        """Why a mutant survives, by its ``file``, ``before`` and ``after``; nothing for one that is not listed."""
        return self._reasons.get((mutant["file"], mutant["before"], mutant["after"]))


@dataclass(frozen=True)
class Score:
    """Of a room.

    Attributes:
        room: Its name.
        places: How many mutants it has in all, about: some are no Python, or the same Python.
        drawn: How many were tried.
        killed: How many of these a test noticed.
        listed: How many of those that survived are listed with a reason.
    """

    room: str
    places: int
    drawn: int
    killed: int
    listed: int

    @classmethod
    def of(cls, room: str, places: int, tried: Sequence[tuple[Verdict, str | None]]) -> Score:
        """Counts the verdicts; each comes with the reason for which its mutant is listed."""
        killed = sum(verdict.is_killed for verdict, _ in tried)
        listed = sum(reason is not None and not verdict.is_killed for verdict, reason in tried)
        return cls(room, places, len(tried), killed, listed)

    def row(self) -> str:
        """As the table shows it."""
        rest = self.drawn - self.listed
        return (
            f"| {self.room} | {self.places:,} | {self.drawn} | {self.killed} | {_percent(self.killed, self.drawn)} "
            f"| {_interval(self.killed, self.drawn)} | {self.listed} "
            f"| {_percent(self.killed, rest)} | {_interval(self.killed, rest)} |"
        )


HEADING = """\
| room | mutants | drawn | killed | score | 95 % | listed | score without these | 95 % |
| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | --- |"""


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f} %"


def _interval(part: int, whole: int) -> str:
    from recurra.evaluation.significance import wilson_interval

    low, high = wilson_interval(part, whole)
    return f"{100 * low:.0f} to {100 * high:.0f}"
