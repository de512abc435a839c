"""The report's drawings, from a summary and the records behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recurra.core.record import RunRecord
from recurra.study.report.chart import Chart
from recurra.study.report.curves import accuracy_by_epoch, loss_by_epoch, loss_limits
from recurra.study.report.distributions import confusion, lengths
from recurra.study.report.isolation import isolation
from recurra.study.report.runs import LoadedRun
from recurra.study.report.study_charts import study_charts
from recurra.study.report.summary import Summary, TableSummary
from recurra.study.report.trade_off import accuracy_against_size, trade_off


@dataclass(frozen=True)
class Drawings:
    """All drawings of a study.

    Attributes:
        tables: Those of each table, by its key.
        study: Those across tables.
    """

    tables: dict[str, list[Chart]]
    study: list[Chart]


def draw(summary: Summary, runs: Sequence[LoadedRun]) -> Drawings:
    """Makes all drawings of a study."""
    records = {run.record.run_id: run.record for run in runs}
    tables = {table.key: charts_of(table, records, f"t{index}") for index, table in enumerate(summary.tables)}
    return Drawings(tables, study_charts(summary.tables, records))


def charts_of(table: TableSummary, records: Mapping[str, RunRecord], key: str) -> list[Chart]:
    """All drawings of a table; those for which there is nothing to draw are left out.

    Args:
        table: The table's summary.
        records: Records of its runs, by run identifier.
        key: Unique in the page, for element identifiers.
    """
    charts = [trade_off(table, batch, f"{key}-trade-off-{batch}") for batch in table.batch_sizes]
    charts += [accuracy_against_size(table, f"{key}-size"), isolation(table, f"{key}-isolation")]
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
