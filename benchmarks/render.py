"""Makes the documentation's Markdown table from a bench's JSON: ``python -m benchmarks.render FILE``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from recurra.core.files import read_json

HEADINGS = ("measure", "preset", "ours", "held against", "result", "target", "verdict")


def rows(report: dict[str, Any]) -> list[list[str]]:
    """The cells of each line of the table, in the order of `HEADINGS`."""
    return [
        [
            measure["title"],
            measure["preset"],
            f"{measure['ours_name']}: {number(measure['ours'])} {measure['unit']}",
            f"{measure['other_name']}: {number(measure['other'])}",
            with_unit(measure["result"], measure["result_unit"]),
            target(measure),
            {True: "met", False: "**missed**", None: ""}[measure["met"]],
        ]
        for measure in report["measures"]
    ]


def target(measure: dict[str, Any]) -> str:
    """The target in words, with the aim if there is one."""
    if measure["target"] is None:
        return ""
    bound = "at most" if measure["at_most"] else "at least"
    text = f"{bound} {measure['target']:g} {measure['result_unit']}"
    return text if measure["aim"] is None else f"{text}, aim {measure['aim']:g} {measure['result_unit']}"


def number(value: float) -> str:
    """Three significant digits, no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def with_unit(value: float, unit: str) -> str:
    """A result with its unit."""
    return f"{value:.2f} {unit}" if unit == "x" else f"{value:.1f} {unit}"


def conditions(report: dict[str, Any]) -> str:
    """One sentence on where and how the figures were taken."""
    machine = report["environment"]
    versions = ", ".join(f"{name} {machine['packages'][name]}" for name in ("torch", "transformers", "tokenizers"))
    quick = " QUICK MODE: the figures mean nothing." if report["quick"] else ""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {report['threads']} thread(s) used; Python {machine['python']}, "
        f"{versions}; rows: {report['data']}; taken {report['created']} in {report['wall_s']:.0f} s.{quick}"
    )


def markdown(report: dict[str, Any]) -> str:
    """The table and its conditions."""
    lines = [" | ".join(HEADINGS), " | ".join(["---", "---", "---", "---", "---:", "---", "---"])]
    lines += [" | ".join(cells) for cells in rows(report)]
    return "\n".join(f"| {line} |" for line in lines) + f"\n\n{conditions(report)}\n"


if __name__ == "__main__":
    sys.stdout.write(markdown(read_json(Path(sys.argv[1]))))
