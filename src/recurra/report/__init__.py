"""Aggregates run records into tables, tests and a report. Reads files only; imports no torch and names no task."""
