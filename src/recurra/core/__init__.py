"""Errors, configuration files, run records, atomic files, progress. Imports no torch."""
