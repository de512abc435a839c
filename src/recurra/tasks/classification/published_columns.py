"""The published figures beside ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from recurra.core import formatting as form
from recurra.tasks.classification.measures import ACCURACY
from recurra.tasks.classification.summary import ClassificationTable, ClassifierSummary, PublishedLine, SplitScore
from recurra.tasks.columns import (
    DECIMAL,
    EVERYWHERE,
    NUMBERS,
    PAGE,
    TIMING,
    YES_NO,
    Cell,
    Column,
    Fields,
    Format,
    Table,
    estimate_cell,
    estimates,
    numbers,
    paper_estimate,
    timing_cell,
    with_interval,
)
from recurra.tasks.estimates import Estimate
from recurra.tasks.summary import Timing


@dataclass(frozen=True)
class Published:
    """A row beside the published figures: ours if there is no line."""

    model: ClassifierSummary
    protocol: str
    score: SplitScore
    split: str
    line: PublishedLine | None = None

    def figure(self, name: str) -> Any:
        """A figure of the line, or ours."""
        if self.line is not None:
            return getattr(self.line, name)
        found = getattr(self.score, name)
        return found.mean if name != "accuracy" and isinstance(found, Estimate) else found


def _published_rows(table: ClassificationTable) -> list[Published]:
    rows: list[Published] = []
    for model in table.models:
        lines = [line for line in table.published if line.model == model.label]
        score = model.scores.get(table.headline_split)
        if lines and score:
            rows.append(Published(model, table.protocol, score, table.headline_split))
            rows += [Published(model, line.protocol, score, table.headline_split, line) for line in lines]
    return rows


def _either(value: Estimate | float) -> str:
    return with_interval().write(value) if isinstance(value, Estimate) else form.decimal(value)


def _either_paper(value: Estimate | float) -> str:
    return paper_estimate(value, percent=True) if isinstance(value, Estimate) else f"{value * 100:.1f}"


def _either_cell(value: Estimate | float) -> Cell:
    return estimate_cell(value) if isinstance(value, Estimate) else Cell(form.decimal(value))


def _source(row: Published) -> str:
    return f"published, {row.line.source}" if row.line else "ours"


def _source_cell(row: Published) -> Cell:
    return Cell(_source(row), below=(row.line.what if row.line else row.split,))


def _source_fields(_key: str, row: Any) -> Fields:
    return {"source": row.line.source, "what": row.line.what}


def _of_line(name: str) -> Any:
    return lambda row: getattr(row.line, name) if row.line else None


def _published_note(table: ClassificationTable) -> str:
    differing = list(dict.fromkeys(line.differs for line in table.published if line.differs))
    text = (
        "The published figures are single runs; their milliseconds are from another machine. “pooled” means a random "
        "split of the pooled rows, where phrases of one sentence lie on both sides."
    )
    if differing:
        text += f" Where something differs ({'; '.join(differing)}), the two are not comparable."
    return text


def _time(row: Published) -> Timing | float | None:
    """Published milliseconds, or ours at the largest batch."""
    if row.line is not None:
        return row.line.latency_ms
    return row.model.latency[max(row.model.latency, key=int)] if row.model.latency else None


def _time_cell(value: Timing | float) -> Cell:
    if not isinstance(value, Timing):
        return Cell(form.decimal(value))
    return replace(timing_cell(value), below=(f"batch {value.batch_size}",))


def _time_text(value: Timing | float) -> str:
    return TIMING.write(value) if isinstance(value, Timing) else form.decimal(value)


PUBLISHED_TABLE = Table(
    "published",
    lambda _: "Beside the published figures",
    lambda _: [
        Column("model", "Model", lambda row: row.model.label),
        Column(
            "source", "Figures", lambda row: row, Format(_source, cell=_source_cell, spread=_source_fields),
            left=EVERYWHERE,
        ),
        Column("protocol", "Split protocol", lambda row: row.protocol, left=EVERYWHERE),
        Column(
            "accuracy", "Accuracy", lambda row: row.figure("accuracy"), Format(_either, _either_paper, _either_cell),
            headings={"latex": "Accuracy, %"},
        ),
        Column(
            "difference", "Ours − published", _of_line("difference"),
            numbers(ACCURACY.gap, lambda value: ACCURACY.gap(value, unit=False)), headings={"latex": "Difference"},
        ),
        Column("inside", "In our 95 % interval", _of_line("inside"), YES_NO),
        Column("basis", "", _of_line("basis"), places=NUMBERS),
        Column(
            "differs", "What differs", lambda row: row.line.differs if row.line else None,
            Format(lambda value: value or "nothing known"),
        ),
        Column("f1", "F1", lambda row: row.figure("f1"), DECIMAL),
        Column("precision_of_positives", "Precision", lambda row: row.figure("precision"), DECIMAL),
        Column("recall", "Recall", lambda row: row.figure("recall"), DECIMAL),
        Column("latency_ms", "ms a text", _time, Format(_time_text, cell=_time_cell), PAGE | NUMBERS),
        Column("our_accuracy", "", lambda row: row.score.accuracy, estimates(), NUMBERS),
    ],
    _published_rows,
    note=_published_note,
    numbers=lambda table: [row for row in _published_rows(table) if row.line],
    places=EVERYWHERE - {"terminal"},
    row_class=lambda row: "" if row.line else "ours",
)  # fmt: skip
