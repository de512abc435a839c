"""The linear controls against what an expert would write: ``python -m benchmarks.controls --data-root DIR``.

The peer is scikit-learn's ``LinearSVC`` (C = 1) on TF-IDF of words and word pairs and of characters within words, with
sublinear counts. Rows are those that our models are trained and tested on, cleaned as theirs are.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.svm import LinearSVC

from benchmarks.measures import provenance
from recurra.core.files import write_json
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextDataset
from recurra.data.parquet import read_parquet_table
from recurra.models.controls.fitting import fit_linear, fit_tuned
from recurra.models.controls.linear import TOKEN_PATTERN, LinearModel

# About a thousand to two thousand training rows of each, and all rows of the smallest.
PARTS = (
    ("sst2", 0.0174),
    ("yelp_sentences", 0.0182),
    ("yelp_reviews", 0.08),
    ("product_reviews", 0.161),
    ("product_reviews", 1.0),
    ("domains", 0.02),
)
MADE_ROWS = 5_000


def data_sets(root: Path, folder: Path) -> Iterator[tuple[str, TextDataset]]:
    """Corpora by name, and a file with 14 classes made of one: which product domain a review is from."""
    for name, fraction in PARTS:
        yield f"{name}, {fraction:.3g}", load_dataset(DataConfig(name=name, fraction=fraction), root)
    columns = read_parquet_table(root / "amazon_fdu_mtl" / "train.parquet", ("text", "domain")).to_pydict()
    rows = list(dict.fromkeys(zip(columns["text"], columns["domain"], strict=True)))
    chosen = np.random.default_rng(0).permutation(len(rows))[:MADE_ROWS]
    path = folder / "product-domains.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *(rows[row] for row in chosen)])
    yield "product-domains.csv, 14 classes", load_dataset(DataConfig(name=str(path)), root)


def expert() -> Pipeline:
    """The linear model that an expert would write."""
    return make_pipeline(
        make_union(
            TfidfVectorizer(ngram_range=(1, 2), token_pattern=TOKEN_PATTERN, sublinear_tf=True),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True),
        ),
        LinearSVC(C=1.0, random_state=0),
    )


def measure(dataset: TextDataset) -> dict[str, dict[str, float]]:
    """Accuracy on the last reported split and seconds of a fit, by model."""
    train, test = dataset.splits["train"], dataset.splits[dataset.reported_splits[-1]]
    selection = dataset.splits[dataset.selection_split]
    peer = expert()
    count = dataset.num_labels
    fits: dict[str, Callable[[], Callable[[Sequence[str]], Any]]] = {
        "peer": lambda: peer.fit(train.texts, train.labels).predict,
        "linear": lambda: _decide(
            fit_linear(train.texts, train.labels, num_labels=count, selection=(selection.texts, selection.labels))
        ),
        "linear-tuned": lambda: _decide(fit_tuned(train.texts, train.labels, num_labels=count)),
    }
    results = {}
    for name, fit in fits.items():
        start = time.perf_counter()
        predict = fit()
        seconds = time.perf_counter() - start
        results[name] = {"accuracy": float((predict(test.texts) == test.labels).mean()), "seconds": seconds}
    return {**results, "rows": {"train": len(train), "test": len(test), "classes": count}}


def _decide(model: LinearModel) -> Callable[[Sequence[str]], Any]:
    return lambda texts: model.logits(texts).argmax(axis=1)


def main() -> int:
    """Measures, prints a line a data set and the means, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    results = {}
    print("accuracy (seconds of a fit)               peer SVM   linear     linear-tuned   tuned less peer, points")
    with tempfile.TemporaryDirectory(prefix="recurra-bench-") as folder:
        for name, dataset in data_sets(options.data_root, Path(folder)):
            results[name] = measure(dataset)
            cells = [f"{results[name][key]['accuracy']:.3f} ({results[name][key]['seconds']:.1f})" for key in _ORDER]
            print(f"{name:<36} {cells[0]:>12} {cells[1]:>12} {cells[2]:>14} {_gap(results[name]):>+10.1f}", flush=True)
    gaps = [_gap(result) for result in results.values()]
    print(f"mean {np.mean(gaps):+.2f} points, lowest {min(gaps):+.1f} (wanted: at least -0.3, none below -1)")
    if options.json:
        write_json(options.json, {"measures": results, **provenance(precision="fp32")})
    return 0


_ORDER = ("peer", "linear", "linear-tuned")


def _gap(result: dict[str, dict[str, float]]) -> float:
    return 100 * (result["linear-tuned"]["accuracy"] - result["peer"]["accuracy"])


if __name__ == "__main__":
    sys.exit(main())
