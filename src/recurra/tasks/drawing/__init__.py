"""Drawings as SVG: what the figures of every task and those of the report are made of."""
