"""Predictions as Parquet."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recurra.deployment.prediction.layout import Layout, PredictedRows, as_text

_WORDS = ("id", "truth", "text", "label")


class ParquetWriter:
    """Writes Parquet, a row group for each chunk.

    Columns of the input that are kept have their types if it is Parquet too, and are text otherwise.

    Args:
        path: Where to write.
        layout: The columns.
        source: The input, if columns of it are kept.
    """

    def __init__(self, path: Path, layout: Layout, source: Path | None = None) -> None:
        self._layout = layout
        typed = source is not None and source.suffix.lower() == ".parquet"
        given = pq.read_schema(source) if typed else None
        kinds = {layout.name(name): pa.string() for name in (*_WORDS, layout.words)} | {
            layout.name("abstained"): pa.bool_()
        }
        own = [(name, kinds.get(name, pa.float64())) for name in layout.columns[len(layout.kept) :]]
        kept = [(name, pa.string() if given is None else given.field(name).type) for name in layout.kept]
        self._schema = pa.schema([*kept, *own])
        self._as_words = 0 if typed else len(kept)
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, rows: PredictedRows) -> None:
        """Writes some rows."""
        values = self._layout.values(rows)
        for place in range(self._as_words):
            values[place] = [None if value is None else as_text(value) for value in values[place]]
        if self._layout.explains:
            place = self._layout.columns.index(self._layout.name(self._layout.words))
            values[place] = [as_text(value) for value in values[place]]
        columns = [pa.array(column, field.type) for column, field in zip(values, self._schema, strict=True)]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Writes the end of the file."""
        self._writer.close()
