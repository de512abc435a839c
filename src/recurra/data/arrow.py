"""pyarrow, or one line that says what to do without it: a server of ONNX exports is installed without."""

from __future__ import annotations

from recurra.core.errors import UnavailableError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as absent:
    raise UnavailableError(
        "Parquet needs the package pyarrow, which is not installed; pip install pyarrow, or use CSV or JSONL"
    ) from absent

__all__ = ["pa", "pc", "pq"]
