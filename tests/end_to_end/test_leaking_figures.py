"""README and docs quote no perplexity of a model that leaks without that word beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from committed import committed
from recurra.core.files import read_json

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
# No honest model of these sizes is below; the alarm of `recurra.evaluation.audits.leakage` rings there.
IMPOSSIBLE = 15.0
# "CRT-Deep", its tables and its text.
PUBLISHED = ("1.08", "1.081", "1.084", "1.093", "1.10", "1.105", "1.12")
NUMBER = r"(?<![\w.,-])(\d+(?:,\d{3})*(?:\.\d+)?)(?![\w-])"
# A perplexity has no unit: "3.22 M" are operations.
BARE = rf"{NUMBER}(?! (?:[kMGT]|x|MiB|ms|s|min)\b)"
AFTER = re.compile(rf"perplexit(?:y|ies)[^|;]{{0,60}}?{NUMBER}", re.IGNORECASE)
BEFORE = re.compile(rf"{NUMBER} (?:a|by|per) (?:token|word)\b")
WORD = re.compile(r"\bleak", re.IGNORECASE)
COLUMN = re.compile(r"perplexity|^a word$|as trained", re.IGNORECASE)


def leaking_figures() -> set[str]:
    """What the records say of models that failed the causality audit, as documents round it; and what was published."""
    found = set(PUBLISHED)
    for path in committed(studies="lm-*"):
        record = read_json(path)
        if any(audit["name"].startswith("causality.") and audit["status"] == "failed" for audit in record["audits"]):
            for split in record["metrics"].values():
                for head in split["heads"].values():
                    for value in (head["token_perplexity"], head["word_perplexity"]):
                        found |= {f"{value:.2f}", f"{value:.3f}", f"{value:.4f}"}
    return found


KNOWN = leaking_figures()


def passages(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Paragraphs, list items and headings as ``(text, [], [])``; rows of tables with their headings and cells."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    block: list[str] = []
    headings: list[str] = []
    for line in [*text.splitlines(), ""]:
        row = line.startswith("|")
        if block and (row or not line.strip() or re.match(r"\s*([*-] |#)", line) or block[0].startswith("#")):
            yield " ".join(block), [], []
            block = []
        if not row:
            headings = []
            block += [line.strip()] if line.strip() else []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not headings:
            headings = cells
        elif not set(line) <= set("|-: "):
            yield line, headings, cells


def quoted(text: str, headings: list[str], cells: list[str]) -> set[str]:
    """Perplexities in a passage that no honest model has."""
    numbers = {match.group(1) for match in AFTER.finditer(text)}
    about = re.search("perplexit|CRT-Deep", text, re.IGNORECASE) or any(map(COLUMN.search, headings))
    if about:
        numbers |= {match.group(1) for match in BEFORE.finditer(text)}
        numbers |= KNOWN & set(re.findall(BARE, text))
    for heading, cell in zip(headings, cells, strict=False):
        if COLUMN.search(heading):
            numbers |= set(re.findall(NUMBER, cell))
    return {number for number in numbers if float(number.replace(",", "")) < IMPOSSIBLE}


def unmarked(text: str) -> list[tuple[set[str], str]]:
    found = [(quoted(*passage), passage[0]) for passage in passages(text)]
    return [(numbers, passage) for numbers, passage in found if numbers and not WORD.search(passage)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_quotes_a_leaking_perplexity_without_the_word(path: Path) -> None:
    assert unmarked(path.read_text(encoding="utf-8")) == []


def test_the_documents_do_quote_some() -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    marked = [passage for text in texts for passage in passages(text) if quoted(*passage)]
    assert len(marked) >= 10
    # Taking the word out of the documents is found out.
    assert sum(len(unmarked(re.sub("(?i)leak", "l-k", text))) for text in texts) == len(marked)
