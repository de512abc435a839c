"""What the parts count, and how it is shown."""

from __future__ import annotations

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
        bounds = [(name, bound) for name, bound in (("most", self.most), ("least", self.least)) if bound is not None]
        bound = ", ".join(f"at {name} {_shown(bound)}" for name, bound in bounds)
        return (
            self.part,
            self.name,
            f"{_shown(self.value)} {self.unit}".strip(),
            bound if self.holds else f"{bound}: MISSED",
        )


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


@dataclass
class Account:
    """What a part found."""

    figures: list[Figure] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def print_table(figures: Iterable[Figure]) -> str:
    """The figures as a Markdown table."""
    rows = [("part", "what", "found", "bound"), ("---", "---", "---:", "---"), *(figure.row() for figure in figures)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
