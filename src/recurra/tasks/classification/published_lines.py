"""The published figures that stand beside the models of a table, with how far ours lie from them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from recurra.tasks.classification.published import PUBLISHED, PublishedTable
from recurra.tasks.classification.summary import ClassifierSummary, PublishedLine
from recurra.tasks.loaded_runs import TableRuns
from recurra.tasks.questions import PublishedReference

PAPER_PROTOCOL = "paper"
# Where no study file says otherwise: table 6 beside the whole of SST-2.
_WHOLE_SST2 = {"name": "sst2", "fraction": 1.0, "length_tail": None}


@cache
def _default() -> tuple[PublishedReference, ...]:
    return tuple(PublishedReference(table=name, data=_WHOLE_SST2) for name in ("6", "6 early"))


def published_lines(
    table: TableRuns, models: Sequence[ClassifierSummary], references: Sequence[PublishedReference] | None = None
) -> list[PublishedLine]:
    """The published figures for the models of a table.

    Args:
        table: The runs of the table.
        models: Its models.
        references: What the study file names; none stands for table 6 beside the whole of SST-2.
    """
    settings, precision = table.runs[0].data_settings, table.key.precision
    fitting = [
        PUBLISHED[reference.table]
        for reference in (_default() if references is None else references)
        if reference.fits(settings, precision)
    ]
    return [
        _line(model, published, table) for model in models for published in fitting if model.preset in published.figures
    ]


def _line(model: ClassifierSummary, published: PublishedTable, table: TableRuns) -> PublishedLine:
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
    key = table.key
    found = []
    if key.data not in published.corpora:
        found.append("other data")
    elif key.protocol != published.protocol:
        found.append("another split")
    if key.training and key.training != PAPER_PROTOCOL:
        found.append("another training")
    if published.precision and key.precision != published.precision:
        found.append("another precision")
    return found
