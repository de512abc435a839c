"""What the parts count, and how it is shown."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    part: str
    name: str
    value: float
    unit: str = ""
    most: float | None = None
    least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it keeps its bounds."""
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)

    def row(self) -> tuple[str, str, str, str]:
        """As the table shows it."""
        bound = f"at most {_shown(self.most)}" if self.most is not None else ""
        if self.least is not None:
            bound = f"at least {_shown(self.least)}"
        shown = f"{_shown(self.value)} {self.unit}".strip()
        return self.part, self.name, shown, bound if self.holds else f"{bound}: MISSED"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


@dataclass
class Account:
    """What a part found."""

    figures: list[Figure] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Account) -> None:
        """Takes over what another found."""
        self.figures += other.figures
        self.failures += other.failures


@dataclass(frozen=True)
class Budget:
    """Seconds that a part may take; it ends what it has begun."""

    seconds: float
    began: float = field(default_factory=time.perf_counter)

    @property
    def is_left(self) -> bool:
        """Whether there is time for more."""
        return time.perf_counter() - self.began < self.seconds


def print_table(figures: Iterable[Figure]) -> str:
    """The figures as a Markdown table."""
    rows = [("part", "what", "found", "bound"), *(figure.row() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines) + "\n"
