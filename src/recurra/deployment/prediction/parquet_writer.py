"""Predictions as Parquet."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recurra.deployment.prediction.layout import Layout, PredictedRows


class ParquetWriter:
    """Writes Parquet, a row group for each chunk."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._layout = layout
        words = {"id", "truth", "text", "label"}
        self._schema = pa.schema([(name, pa.string() if name in words else pa.float64()) for name in layout.columns])
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, rows: PredictedRows) -> None:
        """Writes some rows."""
        columns = [
            pa.array(column, field.type) for column, field in zip(self._layout.values(rows), self._schema, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Writes the end of the file."""
        self._writer.close()
