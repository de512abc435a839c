"""A row of the overview over all studies of language models: the best that does not leak, and what was asked."""

from __future__ import annotations

from typing import Any

from recurra.core import formatting as form
from recurra.core.language_record import FINAL_HEAD
from recurra.tasks.columns import EVERYWHERE, Cell, Column, Format, Table
from recurra.tasks.estimates import Estimate
from recurra.tasks.language.columns import perplexity
from recurra.tasks.language.measures import LOSS
from recurra.tasks.language.summary import HeadSummary, LanguageModelSummary, LanguageTable
from recurra.tasks.summary import ContrastLine


def _best(table: LanguageTable) -> LanguageModelSummary | None:
    return next((model for model in table.models if not model.leaks), None)


def _score(table: LanguageTable) -> HeadSummary | None:
    best = _best(table)
    return best.scores[table.headline_split][FINAL_HEAD] if best else None


def _loss(value: Estimate) -> str:
    half = None if value.low is None or value.high is None else (value.high - value.low) / 2
    return f"{LOSS.value(value.mean)}{LOSS.width(half)}"


def _asked(table: LanguageTable, read: str) -> str | None:
    """Of every contrast of the table, in the order of the study file."""
    return "; ".join(_of(line, read) for line in table.contrasts) or None


def _of(line: ContrastLine, read: str) -> str:
    if read == "models":
        return f"{line.a} − {line.b}"
    return line.verdict if read == "verdict" else LOSS.gap(line.gap, LOSS.width(line.half), unit=False)


def _failed(table: LanguageTable) -> Cell:
    leaking = [model.label for model in table.models if model.leaks]
    named = [label if "leaks" in label else f"{label} leaks" for label in leaking]
    named += sorted({group for model in table.models if not model.leaks for group in model.failed_groups})
    return Cell(form.words(named), status="failed") if named else Cell("passed")


def _study(row: Any) -> Cell:
    return Cell(row.study, address=row.address)


OVERVIEW = Table(
    "overview",
    lambda _: "",
    lambda _: [
        Column("study", "Study", lambda row: row, Format(lambda row: row.study, cell=_study)),
        Column("data", "Data", lambda row: row.table.title, left=EVERYWHERE),
        Column("seeds", "Seeds", lambda row: " or ".join(map(str, sorted({len(m.seeds) for m in row.table.models})))),
        Column("best", "Best that does not leak", lambda row: getattr(_best(row.table), "label", None)),
        Column("loss", "Loss", lambda row: getattr(_score(row.table), "estimate", None), Format(_loss)),
        Column(
            "word_perplexity", "Perplexity a word",
            lambda row: getattr(_score(row.table), "word_perplexity", None), Format(perplexity),
        ),
        Column("asked", "Asked", lambda row: _asked(row.table, "models")),
        Column("gap", "Gap in nats a token", lambda row: _asked(row.table, "gap")),
        Column("verdict", "Verdict", lambda row: _asked(row.table, "verdict") or "not asked"),
        Column("audits", "Audits", lambda row: row.table, Format(lambda table: _failed(table).text, cell=_failed)),
    ],
    lambda rows: rows,
    caption=lambda _: (
        "Language models: test loss in nats a token of the final head; ± half of the 95 % interval over seeds. A gap "
        "is the first model's loss less the second's, so below 0 the first is better; a verdict holds for the seeds "
        "that were tested."
    ),
    places=frozenset(("markdown",)),
)  # fmt: skip
