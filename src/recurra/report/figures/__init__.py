"""The report's drawings: those that every task has, and those that a task adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recurra.report.figures.isolation import isolation
from recurra.report.figures.trade_off import quality_against_size, trade_off
from recurra.report.summary import reporting_of
from recurra.tasks.drawing.chart import Chart
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.reporting import Records, Reporting
from recurra.tasks.summary import Summary, TableSummary


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
    if not summary.task:
        return Drawings({}, [])
    reporting = reporting_of(summary.task)
    by_id = {run.record.run_id: run for run in runs}
    tables = {table.key: charts_of(table, by_id, f"t{index}", reporting) for index, table in enumerate(summary.tables)}
    across = reporting.charts_across(summary.tables, by_id)
    return Drawings(tables, [chart for chart in across if chart is not None])


def charts_of(table: TableSummary, runs: Records, key: str, reporting: Reporting) -> list[Chart]:
    """All drawings of a table; those for which there is nothing to draw are left out.

    Args:
        table: The table's summary.
        runs: Its runs, by run identifier.
        key: Unique in the page, for element identifiers.
        reporting: What the task of the runs adds.
    """
    measure = reporting.judge(table)
    charts = [trade_off(table, batch, f"{key}-trade-off-{batch}", measure) for batch in table.batch_sizes]
    charts += [quality_against_size(table, f"{key}-size", measure), isolation(table, f"{key}-isolation", measure)]
    charts += reporting.charts(table, runs, key)
    return [chart for chart in charts if chart is not None]
