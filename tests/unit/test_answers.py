"""What the results pages say by hand are figures of the tables that stand below or on the linked page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
STUDIES = sorted(path for path in RESULTS.glob("*.md") if path.name not in {"README.md", "claims.md", "findings.md"})
FIGURE = re.compile(r"\d[\d,]*\.\d+")


ANSWERED = {"data-size", "deployment", "domains", "isolate", "length", "recurrence", "sst2", "yelp"}


def unexplained(text: str, *pages: Path) -> set[str]:
    """Figures of a text that neither these pages nor those that it links to give, rounded or in percent."""
    linked = [RESULTS / name for name in re.findall(r"\]\(([\w-]+\.md)", text)]
    known = " ".join(path.read_text(encoding="utf-8") for path in (*pages, *linked)).replace(text, " ")
    values = {float(figure.replace(",", "")) for figure in FIGURE.findall(known)}
    return {figure for figure in set(FIGURE.findall(text)) if not _rounds_to(values, figure.replace(",", ""))}


def _rounds_to(values: set[float], figure: str) -> bool:
    half = 0.5 * 10.0 ** -len(figure.partition(".")[2]) + 1e-9
    return any(abs(value * scale - float(figure)) <= half for value in values for scale in (1, 100))


@pytest.mark.parametrize("page", STUDIES, ids=lambda page: page.stem)
def test_figures_of_an_answer_stand_in_the_tables(page: Path) -> None:
    first = page.read_text(encoding="utf-8").split("\n\n")[1]
    assert first.startswith("**Answer.**") or page.stem not in ANSWERED
    assert not first.startswith("**Answer.**") or unexplained(first, page) == set()


def test_every_study_has_one_headline_and_its_figures_are_those_of_its_page() -> None:
    text = (RESULTS / "findings.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\* (\*\*.+)$", text, re.MULTILINE)
    assert {name for line in lines for name in re.findall(r"\]\(([\w-]+)\.md", line)} == {page.stem for page in STUDIES}
    assert all(re.fullmatch(r"\*\*[^*]+\.\*\* [^*]+\.", line) for line in lines)
    assert {line: found for line in lines if (found := unexplained(line))} == {}


def test_a_figure_that_stands_nowhere_is_found() -> None:
    assert unexplained("[The stack](sst2.md) is 98.7654 points ahead of 83.6.") == {"98.7654"}
