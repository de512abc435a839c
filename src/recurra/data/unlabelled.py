"""Texts without labels, whose answers by a teacher its students learn; nothing that is reported is among them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from recurra.core.errors import DataError
from recurra.data.cleaning import clean_text
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.files import stream_rows
from recurra.data.formats import all_columns
from recurra.data.pools import rows_that_give_away, text_identity

# A text is asked about in every epoch: more of them are another project.
MOST_ROWS = 2_000_000
_REPEATED, _REPORTED = "unlabelled: repeated, or a training row", "unlabelled: equal to, or holding, a reported row"


def with_unlabelled(dataset: TextDataset, path: Path, text_column: str, label_column: str) -> TextDataset:
    """Adds the texts of a file that are new: no training row, no repeat, and nothing that chooses or is reported.

    Args:
        dataset: The labelled data.
        path: CSV, TSV, JSONL, Parquet, or ``.txt`` with one text a line.
        text_column: Column with the text.
        label_column: Column that must not be there if reported rows are.

    Raises:
        DataError: If the file cannot be read, has no new text or more than `MOST_ROWS`, or holds rows of a reported
            split beside a column of labels: then it is labelled data that the test part was cut from.
    """
    texts: list[str] = []
    for rows in stream_rows(path, text_column, ()):
        texts += filter(None, map(clean_text, rows.texts))
        if len(texts) > MOST_ROWS:
            raise DataError(f"'{path}' has more than {MOST_ROWS:,} texts; give a part of them")
    judged = [split for name, split in dataset.splits.items() if name != "train"]
    known = set(map(text_identity, dataset.splits["train"].texts))
    new: dict[str, str] = {}
    for text in texts:
        if (identity := text_identity(text)) not in known:
            new.setdefault(identity, text)
    kept = list(new.values())
    equal = {text_identity(text) for split in judged for text in split.texts} & set(new)
    columns = all_columns(path, text_column) if equal and path.suffix.lower() != ".txt" else []
    if label_column.casefold() in map(str.casefold, columns):
        raise DataError(
            f"'{path}' has {len(equal):,} rows of the splits that models are judged on, and a column "
            f"'{label_column}': it is labelled data; give texts that the test part is no part of"
        )
    leaking = rows_that_give_away((text for split in judged for text in split.texts), kept)
    leaking |= {row for row, identity in enumerate(new) if identity in equal}
    kept = [text for row, text in enumerate(kept) if row not in leaking]
    if not kept:
        raise DataError(f"'{path}' has {len(texts):,} texts, none of them new; give texts that are no training rows")
    labels = dataset.splits["train"].labels
    split = TextSplit(
        name="unlabelled",
        texts=kept,
        labels=np.zeros((len(kept), *labels.shape[1:]), dtype=np.int64),
        ids=[f"unlabelled-{row}" for row in range(len(kept))],
    )
    left_out = {_REPEATED: len(texts) - len(new), _REPORTED: len(leaking)}
    note = f"{len(kept):,} texts without labels ({path.name}) are there for students of a teacher."
    return replace(
        dataset,
        unlabelled=split,
        dropped={**dataset.dropped, **{reason: rows for reason, rows in left_out.items() if rows}},
        notes=[*dataset.notes, note],
    )
