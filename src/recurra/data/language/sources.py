"""Text corpora by public name and from the data root."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurra.core.errors import DataError, UnavailableError
from recurra.core.hub import hub_dataset
from recurra.data.formats import check_text
from recurra.data.language.dataset import RunningText
from recurra.data.parquet import read_parquet_columns

SPLITS = ("train", "validation", "test")
WIKITEXT = "Salesforce/wikitext"


@dataclass(frozen=True)
class TextSource:
    """A corpus whose splits are Parquet files with a column ``text``.

    Attributes:
        name: Name of the corpus, and of its folder in the data root.
        description: One line.
        unit: What one row is: ``line`` or ``novel``.
        public_name: Name on the public hub, if it has one; the corpus's name then chooses among the data sets there.
        clean: Makes a text of a row.
    """

    name: str
    description: str
    unit: str
    public_name: str | None
    clean: Callable[[str], str]

    @property
    def layout(self) -> str:
        """Files of a local copy."""
        return f"DIR/{self.name}/{{{','.join(SPLITS)}}}.parquet (column text, one {self.unit} a row)"

    def present(self, data_root: Path | None) -> list[str]:
        """Splits that the data root has."""
        if data_root is None:
            return []
        return [split for split in SPLITS if (data_root / self.name / f"{split}.parquet").is_file()]

    def load(self, data_root: Path | None, wanted: Sequence[str] | None) -> dict[str, RunningText]:
        """Loads splits: from the data root, else by the public name.

        Args:
            data_root: Folder with local copies, or None.
            wanted: Names of splits; None takes what the data root has, or all if it has none.

        Raises:
            DataError: If a file is damaged, or a split has no text.
            UnavailableError: If a split is neither in the data root nor to be had.
        """
        present = self.present(data_root)
        names = list(wanted) if wanted is not None else present or list(SPLITS)
        fetched: Mapping[str, Any] = {} if set(names) <= set(present) else self._fetch(data_root, names, present)
        splits = {}
        for name in names:
            if name in present and data_root is not None:
                path = data_root / self.name / f"{name}.parquet"
                rows, source = read_parquet_columns(path, ("text",))["text"], str(path)
            else:
                rows, source = list(fetched[name]["text"]), f"{self.public_name} ({self.name})"
            checked = (
                check_text(row, f"'{source}'", "row", place, longest=None) for place, row in enumerate(rows, start=1)
            )
            texts = [self.clean(text) for text in checked]
            if not any(texts):
                raise DataError(f"'{source}' holds no text; the layout is {self.layout}")
            splits[name] = RunningText(name, texts)
        return splits

    def _fetch(self, data_root: Path | None, names: Sequence[str], present: Sequence[str]) -> Mapping[str, Any]:
        missing = ", ".join(name for name in names if name not in present)
        lacking = f"{self.name} has no split '{missing}' in '{data_root}' (there: {', '.join(present)})"
        if self.public_name is None:
            start = lacking if present else f"{self.name}: not in the data root, and it has no public name"
            raise UnavailableError(f"{start}; give --data-root DIR (or RECURRA_DATA_ROOT) with {self.layout}")
        try:
            return hub_dataset(
                self.name,
                self.public_name,
                data_root,
                folder=self.name,
                layout=self.layout,
                configuration=self.name,
            )
        except UnavailableError as error:
            if not present:
                raise
            raise UnavailableError(
                f"{lacking}, and '{self.public_name}' cannot be loaded; put {missing}.parquet there, "
                "or take a corpus or split that is there"
            ) from error


def _line(row: str) -> str:
    """A row of WikiText is a line with a space before, and a space and a newline behind."""
    return row.strip()


def _novel(row: str) -> str:
    return row.replace("\r\n", "\n").strip("\n")


SOURCES: dict[str, TextSource] = {
    source.name: source
    for source in (
        *(
            TextSource(name, description, "line", WIKITEXT, _line)
            for name, description in (
                ("wikitext-2-v1", "WikiText-2, tokenised, rare words as <unk>: 720 Wikipedia articles"),
                ("wikitext-2-raw-v1", "WikiText-2 as written, no <unk>"),
                ("wikitext-103-v1", "WikiText-103, tokenised, rare words as <unk>: 28,595 Wikipedia articles"),
                ("wikitext-103-raw-v1", "WikiText-103 as written, no <unk>"),
            )
        ),
        TextSource(
            "english_novels",
            "96 English novels of 1839-1927; other authors in validation and test than in train",
            "novel",
            None,
            _novel,
        ),
    )
}
