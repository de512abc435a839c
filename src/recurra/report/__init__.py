"""Aggregates run records into tables, tests and a report. Reads files only; imports no torch and names no task."""

from __future__ import annotations

from recurra.report.documents import read_study, render_results_markdown, study_page
from recurra.report.files import write_report
from recurra.report.render import render_report
from recurra.report.summary import summarise_folders, summarise_runs

__all__ = [
    "read_study",
    "render_report",
    "render_results_markdown",
    "study_page",
    "summarise_folders",
    "summarise_runs",
    "write_report",
]
