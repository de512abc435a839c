"""The published figures that stand beside the models of a table, with how far ours lie from them."""

from __future__ import annotations

from collections.abc import Sequence

from recurra.study.published import PUBLISHED, PublishedTable
from recurra.study.questions import DEFAULT_PUBLISHED, PublishedReference
from recurra.study.report.answers import PublishedLine
from recurra.study.report.grouping import TableRuns
from recurra.study.report.summary import ModelSummary

PAPER_PROTOCOL = "paper"


def published_lines(
    table: TableRuns, models: Sequence[ModelSummary], references: Sequence[PublishedReference] | None = None
) -> list[PublishedLine]:
    """The published figures for the models of a table.

    Args:
        table: The runs of the table.
        models: Its models.
        references: What the study file names; none stands for table 6 beside the whole of SST-2.
    """
    data = table.runs[0].record.config.get("data")
    settings = data if isinstance(data, dict) else {}
    precision = table.key[4]
    fitting = [
        PUBLISHED[reference.table]
        for reference in (DEFAULT_PUBLISHED if references is None else references)
        if reference.fits(settings, precision)
    ]
    return [
        _line(model, published, table) for model in models for published in fitting if model.preset in published.figures
    ]


def _line(model: ModelSummary, published: PublishedTable, table: TableRuns) -> PublishedLine:
    figure = published.figures[model.preset]
    score = model.scores.get(table.headline)
    estimate = score.accuracy if score else None
    inside = None
    if estimate is not None and estimate.low is not None and estimate.high is not None:
        inside = estimate.low <= figure.accuracy <= estimate.high
    return PublishedLine(
        model=model.label,
        source=published.source,
        what=published.what,
        protocol=published.protocol,
        accuracy=figure.accuracy,
        f1=figure.f1,
        precision=figure.precision,
        recall=figure.recall,
        latency_ms=figure.latency_ms,
        difference=None if estimate is None else estimate.mean - figure.accuracy,
        inside=inside,
        basis="" if estimate is None or inside is None else estimate.basis,
        differs=", ".join(_differences(published, table)),
    )


def _differences(published: PublishedTable, table: TableRuns) -> list[str]:
    corpus, split, _, training, precision = table.key
    found = []
    if corpus not in published.corpora:
        found.append("other data")
    elif split != published.protocol:
        found.append("another split")
    if training and training != PAPER_PROTOCOL:
        found.append("another training")
    if published.precision and precision != published.precision:
        found.append("another precision")
    return found
