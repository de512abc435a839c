"""Figures that were published for SST-2, to stand beside ours and never among them."""

from __future__ import annotations

from collections.abc import Sequence

from recurra.study.report.runs import LoadedRun
from recurra.study.report.summary import ModelSummary, PublishedLine

# Table 6 of "Recurrent vs. Standard Transformers": one run each, on a random split of the pooled rows.
# The final draft and the early ones give different figures for the same experiment; both are shown.
SST2_TABLE_6 = (
    PublishedLine("baseline", "table 6", "pooled", 0.9061, 0.9148, 0.9174, 0.9122, 0.3706),
    PublishedLine("recurrent", "table 6", "pooled", 0.9021, 0.9100, 0.9250, 0.8955, 0.3595),
    PublishedLine("baseline", "table 6, early drafts", "pooled", 0.7901, 0.7946, 0.7919, 0.7973, 0.1659),
    PublishedLine("recurrent", "table 6, early drafts", "pooled", 0.7993, 0.8031, 0.8022, 0.8041, 0.1795),
)


def published_lines(runs: Sequence[LoadedRun], models: Sequence[ModelSummary]) -> list[PublishedLine]:
    """The published figures for the models of a table: only for SST-2, and only if all of train was used.

    Args:
        runs: The runs of the table.
        models: Its models.
    """
    record = runs[0].record
    data = record.config.get("data")
    settings = data if isinstance(data, dict) else {}
    whole = settings.get("fraction", 1.0) == 1 and not settings.get("length_tail")
    if record.data.name != "sst2" or not whole:
        return []
    presets = {model.preset for model in models}
    return [line for line in SST2_TABLE_6 if line.model in presets]
