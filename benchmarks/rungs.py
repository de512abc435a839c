"""Models that are fitted once, and what a user would take instead of ours, on the same thousand rows of SST-2.

Ours are trained and exported by the shipped commands. The peers are an expert's linear model in scikit-learn, and
model2vec: vectors of pieces of words, distilled from MiniLM as model2vec itself does it (each piece alone through the
encoder, 256 principal components, weights by frequency), with a logistic regression.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command import run_recurra
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.tokenization import read_tokenizer
from recurra.deployment.classifier import Classifier
from recurra.models.adaptation.convert import load_encoder
from recurra.models.adaptation.source import find_encoder

CORPUS, ROWS_PER_LABEL = "sst2", 500
LINEAR, HYBRID, SMALL_HYBRID = "linear-tuned", "words and MiniLM int8", "words and recurra-small int8"
# Preset and changes; all but the linear model are exported in int8.
MODELS: dict[str, tuple[str, dict[str, str]]] = {
    LINEAR: ("linear-tuned", {}),
    HYBRID: ("words-and-encoder", {}),
    SMALL_HYBRID: ("words-and-encoder", {"encoder": "recurra-small"}),
}
SCIKIT_LEARN, MODEL2VEC = "scikit-learn", "model2vec"
PEERS = {SCIKIT_LEARN: ("sklearn",), MODEL2VEC: ("model2vec",)}
_ROWS, _DIMENSIONS, _PIECES_TOGETHER = "rungs.json", 256, 1_024
Predict = Callable[[Sequence[str]], Any]


def prepare(data_root: Path, folder: Path) -> None:
    """Trains and exports ours, and writes the rows that all are fitted to and judged on."""
    config = DataConfig(name=CORPUS, rows_per_label=ROWS_PER_LABEL)
    splits = load_dataset(config, data_root).splits
    rows = {part: [splits[part].texts, splits[part].labels.tolist()] for part in ("train", "test")}
    (folder / _ROWS).write_text(json.dumps(rows), encoding="utf-8")
    common = ["--data-root", str(data_root)]
    for name, (preset, changes) in MODELS.items():
        model, run = folder / f"{name}.yaml", folder / f"{name} run"
        model.write_text(json.dumps({"preset": preset, **changes}), encoding="utf-8")
        rows_key = f"data.rows_per_label={ROWS_PER_LABEL}"
        run_recurra("train", "--model", model, "--data", CORPUS, "-o", run, rows_key, "--no-latency", *common)
        if name != LINEAR:
            run_recurra("export", run, "--format", "onnx", "--precision", "int8", "-o", folder / name, *common)


def fitted(name: str, folder: Path, threads: int) -> tuple[Predict, float]:
    """A model as a call that gives labels, and its share of right labels on all test sentences."""
    rows = json.loads((folder / _ROWS).read_text(encoding="utf-8"))
    train, test = (([str(text) for text in texts], np.asarray(labels)) for texts, labels in rows.values())
    if name == SCIKIT_LEARN:
        predict = _scikit_learn(*train)
    elif name == MODEL2VEC:
        predict = _model2vec(*train)
    else:
        run = folder / f"{name} run"
        classifier = (
            Classifier.from_run(run) if name == LINEAR else Classifier.from_export(folder / name, threads=threads)
        )
        names = list(classifier.classes_)

        def predict(texts: Sequence[str]) -> Any:
            return np.array([names.index(label) for label in classifier.predict(texts)])

    return predict, float((predict(test[0]) == test[1]).mean())


def _scikit_learn(texts: Sequence[str], labels: Any) -> Predict:
    from benchmarks.controls import expert

    return expert().fit(texts, labels).predict


def _model2vec(texts: Sequence[str], labels: Any) -> Predict:
    from model2vec import StaticModel
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression

    tokenizer, encoder = read_tokenizer(str(find_encoder("minilm").folder)), load_encoder("minilm").eval()
    pieces = torch.arange(len(tokenizer))
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    ids = torch.stack([torch.full_like(pieces, first), pieces, torch.full_like(pieces, last)], dim=1)
    with torch.inference_mode():
        states = [encoder(part).last_hidden_state.mean(1) for part in ids.split(_PIECES_TOGETHER)]
    vectors = PCA(_DIMENSIONS, random_state=0).fit_transform(torch.cat(states).numpy())
    # Zipf's law: a vocabulary is about in the order of frequency.
    shares = 1 / np.arange(2, len(vectors) + 2)
    vectors *= (1e-4 / (1e-4 + shares / shares.sum()))[:, None]
    model = StaticModel(vectors.astype(np.float32), tokenizer.backend_tokenizer)

    def encode(part: Sequence[str]) -> Any:
        return model.encode(list(part), use_multiprocessing=False)

    head = LogisticRegression(max_iter=1_000).fit(encode(texts), labels)
    return lambda part: head.predict(encode(part))
