"""Aggregates run records into tables, tests and a report. Reads files only; imports no torch."""

from __future__ import annotations

from recurra.study.report.documents import read_study, render_results_markdown
from recurra.study.report.html import render_report, write_report
from recurra.study.report.tables import markdown_table, result_rows, summarise_runs

__all__ = [
    "markdown_table",
    "read_study",
    "render_report",
    "render_results_markdown",
    "result_rows",
    "summarise_runs",
    "write_report",
]
