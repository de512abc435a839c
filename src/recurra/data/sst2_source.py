"""Where SST-2 comes from: local Parquet files or the public name, and the source sentence of each phrase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurra.core.errors import DataError
from recurra.core.hub import hub_dataset
from recurra.data.dataset import Group
from recurra.data.parquet import read_parquet_columns

PUBLIC_NAME = "stanfordnlp/sst2"
LOCAL_FILES = {
    "train": Path("sst2/train.parquet"),
    "validation": Path("sst2/validation.parquet"),
    "test": Path("sst2/test_labeled.parquet"),
}
SOURCES_FILE = Path("sst/sst2_phrase_sources.parquet")
SENTENCES_FILE = Path("sst/sentences.parquet")
HIDDEN_LABEL = -1
_TREEBANK_SPLIT = {"train": "train", "validation": "dev", "test": "test"}
LAYOUT = "DIR/sst2/{train,validation,test_labeled}.parquet (columns sentence, label, idx)"


@dataclass(frozen=True)
class GlueRows:
    """Raw rows of one GLUE part: sentences, labels (0 negative, 1 positive), row numbers."""

    texts: list[str]
    labels: list[int]
    indices: list[int]


@dataclass(frozen=True)
class SentenceSources:
    """Source sentences of each SST-2 row, by row id such as ``train-17``.

    Attributes:
        constituent_of: Sentences of the row's own split in which it is a constituent.
        whole_of: Those of them of which it is the whole.
    """

    constituent_of: dict[str, Group]
    whole_of: dict[str, frozenset[int]]

    def groups(self, part: str, indices: Sequence[int]) -> list[Group]:
        """Source sentences of rows of one GLUE part.

        Raises:
            DataError: If a row has no source.
        """
        try:
            return [self.constituent_of[f"{part}-{index}"] for index in indices]
        except KeyError as error:
            raise DataError(
                f"'{SOURCES_FILE}' has no row {error}; it must describe the same release of SST-2 as sst2/"
            ) from error

    def whole(self, identity: str) -> frozenset[int]:
        """The sentences that the row is the whole of; empty for a phrase."""
        return self.whole_of[identity]


def read_glue_parts(data_root: Path | None) -> tuple[dict[str, GlueRows], list[str]]:
    """Reads the parts of SST-2 with known labels: train and validation, and test where its labels are known.

    Returns:
        Rows by part, and notes for the reader of the results.

    Raises:
        DataError: If a local file is damaged.
        UnavailableError: If there is no local copy and the hub cannot be reached.
    """
    if data_root is not None and (data_root / "sst2").is_dir():
        missing = [str(file) for file in list(LOCAL_FILES.values())[:2] if not (data_root / file).is_file()]
        if missing:
            raise DataError(f"'{data_root}' lacks {', '.join(missing)}; the layout is {LAYOUT}")
        parts = {}
        for name, file in LOCAL_FILES.items():
            if (data_root / file).is_file():
                columns = read_parquet_columns(data_root / file, ("sentence", "label", "idx"))
                parts[name] = _checked(columns, str(data_root / file))
    else:
        parts = _read_public(data_root)
    notes = []
    if "test" not in parts or HIDDEN_LABEL in parts["test"].labels:
        parts.pop("test", None)
        notes.append("The public test sentences of SST-2 have hidden labels; no test split is reported.")
    return parts, notes


def _checked(columns: dict[str, list[Any]], source: str) -> GlueRows:
    rows = GlueRows(texts=columns["sentence"], labels=columns["label"], indices=columns["idx"])
    if not rows.texts:
        raise DataError(f"'{source}' has no rows; fetch it again")
    if not set(rows.labels) <= {0, 1, HIDDEN_LABEL} or not all(isinstance(text, str) for text in rows.texts):
        raise DataError(f"'{source}' is not SST-2: sentence must be text and label 0 or 1; the layout is {LAYOUT}")
    return rows


def _read_public(data_root: Path | None) -> dict[str, GlueRows]:
    public = hub_dataset("sst2", PUBLIC_NAME, data_root, folder="sst2", layout=LAYOUT)
    return {
        name: _checked({column: list(public[name][column]) for column in ("sentence", "label", "idx")}, PUBLIC_NAME)
        for name in LOCAL_FILES
        if name in public
    }


def read_sentence_sources(data_root: Path | None) -> SentenceSources | None:
    """Reads the source sentences of each row, or returns None where the data root does not have them.

    Only sentences of the row's own split count: a short phrase such as ``the film`` is a constituent of sentences of
    every split, but the row itself was cut from a sentence of its own.
    """
    if data_root is None or not all((data_root / file).is_file() for file in (SOURCES_FILE, SENTENCES_FILE)):
        return None
    sentences = read_parquet_columns(data_root / SENTENCES_FILE, ("sentence_index", "split"))
    split_of = dict(zip(sentences["sentence_index"], sentences["split"], strict=True))
    names = ("split", "idx", "sentence_indices", "full_sentence_indices")
    rows = read_parquet_columns(data_root / SOURCES_FILE, names)
    constituent_of: dict[str, Group] = {}
    whole_of: dict[str, frozenset[int]] = {}
    for part, index, inside, whole in zip(*(rows[name] for name in names), strict=True):
        own = _TREEBANK_SPLIT[part]
        identity = f"{part}-{index}"
        constituent_of[identity] = tuple(sentence for sentence in inside if split_of.get(sentence) == own)
        whole_of[identity] = frozenset(sentence for sentence in whole if split_of.get(sentence) == own)
    return SentenceSources(constituent_of, whole_of)
