"""Transformers that reuse their layers."""

__version__ = "0.1.0"
