"""The report's drawings, from a table's summary and the records behind it."""

from __future__ import annotations

from collections.abc import Mapping

from recurra.core.record import RunRecord
from recurra.study.report.chart import Chart
from recurra.study.report.curves import accuracy_by_epoch, loss_by_epoch, loss_limits
from recurra.study.report.distributions import confusion, lengths
from recurra.study.report.summary import TableSummary
from recurra.study.report.trade_off import trade_off


def charts_of(table: TableSummary, records: Mapping[str, RunRecord], key: str) -> list[Chart]:
    """All drawings of a table; those for which there is nothing to draw are left out.

    Args:
        table: The table's summary.
        records: Records of its runs, by run identifier.
        key: Unique in the page, for element identifiers.
    """
    charts = [trade_off(table, batch, f"{key}-trade-off-{batch}") for batch in table.batch_sizes]
    histories = {
        model.label: [history for run in model.runs if (history := records[run.run_id].training.history)]
        for model in table.models
    }
    trained = [model for model in table.models if histories[model.label]]
    best = {model.label: [run.best_epoch for run in model.runs] for model in trained}
    if trained:
        charts.append(accuracy_by_epoch(trained, histories, f"{key}-accuracy"))
        limits = loss_limits(histories)
        charts += [
            loss_by_epoch(model, histories[model.label], best[model.label], limits, f"{key}-loss-{model.color}")
            for model in trained
        ]
    first = records[table.models[0].runs[0].run_id]
    charts.append(lengths(first, f"{key}-lengths"))
    charts += [confusion(model, table, f"{key}-confusion-{model.color}") for model in table.models]
    return [chart for chart in charts if chart is not None]
