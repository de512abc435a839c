"""A small SST-2 with its treebank, in the layout of the data root."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recurra.data.sst2 import SENTENCES_FILE, SOURCES_FILE, SST2, TREES_FILE


def write_table(path: Path, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Writes rows as Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path)


def write_part(root: Path, part: str, rows: Sequence[tuple[str, int, int]]) -> None:
    """Writes a part of SST-2."""
    write_table(root / "sst2" / f"{part}.parquet", SST2.columns, rows)


def write_sst2(root: Path, sentences: Sequence[Sequence[str]], *, shared: str = "", trees: Sequence[str] = ()) -> Path:
    """Writes training sentences, each as its phrases with the whole first, and six validation and test sentences.

    ``shared`` is a phrase of every sentence, a validation one too.
    """
    rows: list[tuple[str, int, int]] = []
    sources: list[tuple[str, int, list[int], list[int]]] = []
    for number, phrases in enumerate(sentences):
        for text in phrases:
            sources.append(("train", len(rows), [number + 1], [number + 1] if text == phrases[0] else []))
            rows.append((f"{text} ", number % 2, len(rows)))
    if shared:
        sources.append(("train", len(rows), [*range(1, len(sentences) + 1), 900], []))
        rows.append((f"{shared} ", 1, len(rows)))
    write_part(root, "train", rows)
    described = [(number + 1, "train", number) for number in range(max(len(sentences), len(trees)))]
    for part, split, short, first in (("validation", "validation", "dev", 900), ("test_labeled", "test", "test", 950)):
        write_part(root, part, [(f"{short} text number{row}", row % 2, row) for row in range(6)])
        sources += [(split, row, [first + row], [first + row]) for row in range(6)]
        described += [(first + row, short, row) for row in range(6)]
    write_table(root / SOURCES_FILE, ("split", "idx", "sentence_indices", "full_sentence_indices"), sources)
    write_table(root / SENTENCES_FILE, ("sentence_index", "split", "tree_idx"), described)
    return root


def write_treebank(root: Path) -> Path:
    """Writes 24 training sentences with their trees, and trees of a neutral and of a validation sentence."""
    trees = [f"({3 * (n % 2)} (2 (2 The) (2 film{n})) ({4 * (n % 2)} (2 is) ({n % 2 + 2} w{n})))" for n in range(24)]
    trees += ["(2 (2 The) (2 end))", "(1 (2 dev) (1 (2 text) (1 number0)))"]
    (root / TREES_FILE).parent.mkdir(parents=True)
    with gzip.open(root / TREES_FILE, "wt", encoding="utf-8") as stream:
        stream.write("\n".join(trees) + "\n")
    return write_sst2(root, [[f"the film{n} is w{n}", f"is w{n}"] for n in range(24)], trees=trees)
