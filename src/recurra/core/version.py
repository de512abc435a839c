"""The version, where every part of the package may read it."""

__version__ = "0.3.0"
