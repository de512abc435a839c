"""Reads published corpora from Parquet files in the data root, or from a data set of the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from recurra.core.errors import DataError, UnavailableError
from recurra.core.hub import hub_dataset
from recurra.data.parquet import parquet_columns, read_parquet_table


@dataclass(frozen=True, kw_only=True)
class Release:
    """Where to find a corpus.

    Attributes:
        folder: Folder below the data root; the corpus's name if empty.
        public_name: Name on the hub; None if only a local copy can be used.
        configuration: Configuration of the data set on the hub.
        instead: Another corpus to propose if this one has no public name and no local copy.
    """

    name: str
    description: str
    folder: str = ""
    parts: tuple[str, ...]
    columns: tuple[str, ...]
    public_name: str | None = None
    configuration: str | None = None
    instead: str = ""

    @property
    def layout(self) -> str:
        """The files of a local copy, for messages and listings."""
        parts = self.parts[0] if len(self.parts) == 1 else f"{{{','.join(self.parts)}}}"
        columns = f"column{'s' * (len(self.columns) > 1)} {', '.join(self.columns)}"
        return f"DIR/{self.folder or self.name}/{parts}.parquet ({columns})"

    def path(self, data_root: Path, part: str) -> Path:
        """The local file of a part."""
        return data_root / (self.folder or self.name) / f"{part}.parquet"

    def present(self, data_root: Path | None) -> list[str]:
        """Parts that are in the data root."""
        return [part for part in self.parts if data_root is not None and self.path(data_root, part).is_file()]

    def read(self, data_root: Path | None, wanted: Sequence[str] | None = None) -> dict[str, pa.Table]:
        """Reads parts as Arrow tables, without Python values; parts that the data root lacks come from the hub."""
        wanted = wanted or self.parts
        present = self.present(data_root)
        missing = [part for part in wanted if part not in present]
        hub_parts = self._fetch(data_root, missing, present) if missing else {}
        tables = {}
        for part in wanted:
            if data_root is not None and part in present:
                path = self.path(data_root, part)
                tables[part] = read_parquet_table(path, self._columns_of(parquet_columns(path), str(path)))
            else:
                columns = self._columns_of(hub_parts[part].column_names, str(self.public_name))
                tables[part] = hub_parts[part].with_format("arrow")[:].select(columns)
        return tables

    def _columns_of(self, present: Sequence[str], source: str) -> list[str]:
        columns = [
            name
            for column in self.columns
            for name in (("title", "content") if column == "text" and "text" not in present else (column,))
        ]
        if not set(columns) <= set(present):
            lacking = ", ".join(column for column in self.columns if column not in present)
            raise DataError(f"'{source}' has no column {lacking}; the layout is {self.layout}")
        return columns

    def _fetch(self, data_root: Path | None, missing: Sequence[str], present: Sequence[str]) -> Mapping[str, Any]:
        problem = f"'{data_root}' has no folder {self.folder or self.name}"
        if data_root is None:
            problem = "no data root is given"
        elif present:
            problem = f"there is no {', '.join(missing)}.parquet in '{data_root}' (there: {', '.join(present)})"
        if self.public_name is None:
            alternative = f", or take {self.instead}, which has a public name" if self.instead else ""
            raise UnavailableError(
                f"{self.name}: {problem} and it has no public name; give --data-root DIR (or RECURRA_DATA_ROOT) with "
                f"{self.layout}{alternative}"
            )
        try:
            fetched = hub_dataset(self.public_name, self.configuration)
        except UnavailableError as error:
            raise UnavailableError(
                f"{self.name}: {problem} and {error}; name DIR, the folder with {self.layout}, in RECURRA_DATA_ROOT "
                "(or --data-root)"
            ) from error
        if absent := [part for part in missing if part not in fetched]:
            raise DataError(f"'{self.public_name}' has no part {', '.join(absent)}; its parts are {', '.join(fetched)}")
        return fetched
