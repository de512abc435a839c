"""A small SST-2 with its treebank, in the layout of the data root."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recurra.data.sst2 import TREES_FILE


def write_treebank(root: Path) -> Path:
    """Writes 24 sentences of GLUE's training part and a neutral one, two validation and two test ones; returns it."""
    for folder in ("sst2", "sst/trees"):
        (root / folder).mkdir(parents=True)
    trees = [f"({3 * (n % 2)} (2 (2 The) (2 film{n})) ({4 * (n % 2)} (2 is) ({n % 2 + 2} w{n})))" for n in range(24)]
    trees += ["(2 (2 The) (2 end))", "(1 (2 dev) (1 (2 text) (1 number0)))"]
    with gzip.open(root / TREES_FILE, "wt", encoding="utf-8") as stream:
        stream.write("\n".join(trees) + "\n")
    rows: list[tuple[str, int, int]] = []
    sources: list[tuple[str, int, list[int], list[int]]] = []
    for n in range(24):
        for text, whole in ((f"the film{n} is w{n} ", [n + 1]), (f"is w{n} ", [])):
            sources.append(("train", len(rows), [n + 1], whole))
            rows.append((text, n % 2, len(rows)))
    write(root, "train", rows)
    for name, split, first in (("validation", "validation", 900), ("test_labeled", "test", 950)):
        write(root, name, [(f"{'dev' if first == 900 else 'test'} text number{i}", i % 2, i) for i in range(2)])
        sources += [(split, i, [first + i], [first + i]) for i in range(2)]
    names = ("split", "idx", "sentence_indices", "full_sentence_indices")
    pq.write_table(
        pa.table(dict(zip(names, map(list, zip(*sources, strict=True)), strict=True))),
        root / "sst" / "sst2_phrase_sources.parquet",
    )
    sentences = [(n + 1, "train", n) for n in range(26)]
    sentences += [(900 + i, "dev", i) for i in range(2)] + [(950 + i, "test", i) for i in range(2)]
    columns = dict(zip(("sentence_index", "split", "tree_idx"), map(list, zip(*sentences, strict=True)), strict=True))
    pq.write_table(pa.table(columns), root / "sst" / "sentences.parquet")
    return root


def write(root: Path, name: str, rows: list[tuple[str, int, int]]) -> None:
    columns = dict(zip(("sentence", "label", "idx"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), root / "sst2" / f"{name}.parquet")
