"""Aggregates run records into tables, tests and a report. Reads files only; imports no torch and names no task."""

from __future__ import annotations

from recurra.report.files import write_study_report
from recurra.report.load import read_study
from recurra.report.render import render_report
from recurra.report.summary import summarise_folders

__all__ = ["read_study", "render_report", "summarise_folders", "write_study_report"]
