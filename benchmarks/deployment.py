"""An int8 export against BERT of equal width and depth: text to label, by its pipeline and by ONNX Runtime in int8.

Weights are fresh: what is timed does not depend on them, but for exits (`benchmarks.exiting_export`). BERT's graph is
exported by torch, fused and quantised with ONNX Runtime's own tools (dynamic, a scale for each output), and given our
tokenizer, batches and session options; with and without the fusion of its Transformer tool, of which the faster counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import corpus as corpora
from benchmarks import exiting_export, models
from benchmarks.exiting_export import EXITS
from benchmarks.lockstep import Competitor, Job
from benchmarks.measures import Measure, Setting
from benchmarks.onnx_peers import SQUARE, int8_rate, write_bert
from benchmarks.turns import timed_s
from recurra.data.encoding import encode_texts
from recurra.deployment.classifier import Classifier
from recurra.deployment.export.build import save_tokenizer
from recurra.deployment.onnx.engine import OnnxEngine
from recurra.deployment.onnx.model import write_onnx
from recurra.models.presets import forward_flops, preset

OURS, PIPELINE, PLAIN, FUSED = "recurra int8", "BERT, pipeline", "BERT, int8", "BERT, int8, fused"
LABELS = ["negative", "positive"]
BATCH_SIZE = 32
SENTENCES = 2_560
SINGLE = 40
CHUNKS = 8
LARGEST_MIB = 12.0
MIB = 2**20


def build(job: Job) -> Callable[[int], dict[str, Any]]:
    """Returns a call that classifies the ``i``-th of ``job.steps`` chunks, one by one and in batches."""
    corpus = corpora.Corpus(job.corpus_folder)
    tokenizer = corpus.tokenizer
    tokenizer.model_max_length = corpora.MAX_LENGTH
    chunks = corpora.chunks(corpus.texts, SENTENCES, CHUNKS)[: job.steps]
    folder = Path(tempfile.mkdtemp(prefix="recurra-bench-onnx-", dir=job.corpus))
    about: dict[str, Any] = {}
    if job.variant == PIPELINE:
        from transformers import pipeline  # seconds, which the others do without

        model = models.bert(job.preset, dict(enumerate(LABELS))).eval()
        classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")

        def predict(texts: Sequence[str]) -> int:
            return len(classify(list(texts), batch_size=BATCH_SIZE, truncation=True))

    elif job.variant == EXITS:
        classifier = exiting_export.calibrated(
            job.preset, folder / "export", threads=job.threads, batch_size=BATCH_SIZE
        )
        about = exiting_export.describe(classifier, corpus.texts)

        def predict(texts: Sequence[str]) -> int:
            return len(classifier.predict(texts))

    else:
        save_tokenizer(tokenizer, corpora.MAX_LENGTH, folder)
        if job.variant == OURS:
            write_onnx(models.ours(job.preset).eval(), "int8", corpora.MAX_LENGTH, folder, {})
        else:
            write_bert(models.bert(job.preset).eval(), folder, fused=job.variant == FUSED)
        engine = OnnxEngine(
            folder,
            precision="int8",
            max_length=corpora.MAX_LENGTH,
            pad_token_id=tokenizer.pad_token_id,
            threads=job.threads,
        )
        classifier = Classifier(engine, LABELS, batch_size=BATCH_SIZE)
        about = {"size_mib": sum(path.stat().st_size for path in folder.iterdir()) / MIB}

        def predict(texts: Sequence[str]) -> int:
            return len(classifier.predict(texts))

    def call(index: int) -> dict[str, Any]:
        texts = chunks[index]
        single_ms = [1000 * timed_s(partial(predict, [text])) for text in texts[:SINGLE]]
        return {"single_ms": single_ms, "batch_s": timed_s(partial(predict, texts)), **about}

    return call


def _operations(corpus_folder: Path, name: str) -> float:
    """Operations that a sentence needs on average, without padding."""
    corpus = corpora.Corpus(corpus_folder)
    texts = [text for chunk in corpora.chunks(corpus.texts, SENTENCES, CHUNKS) for text in chunk]
    _, offsets = encode_texts(texts, corpus.tokenizer.backend_tokenizer, corpora.MAX_LENGTH)
    config = preset(name)
    return float(np.mean([forward_flops(config, int(tokens)) for tokens in np.diff(offsets)]))


def measure(setting: Setting) -> list[Measure]:
    """Measures the recurrent preset, which is the one to deploy."""
    name, count = "recurrent", setting.sized(CHUNKS, 1)
    jobs = {variant: setting.job(__name__, variant, name, count) for variant in (OURS, PIPELINE, PLAIN, FUSED)}
    classifier = setting.classifier
    if not classifier and not setting.quick:
        classifier = exiting_export.train(name, Path(setting.corpus), setting.threads)
    if classifier:
        exiting_export.check_shape(classifier, name)
        jobs[EXITS] = setting.job(__name__, EXITS, classifier, count)
    single: dict[str, list[float]] = {variant: [] for variant in jobs}
    batch: dict[str, list[float]] = {variant: [] for variant in jobs}
    size_mib = 0.0
    exits: dict[str, Any] = {}
    with setting.competitors(jobs) as competitors:
        for index in range(-1, count):
            # The first chunk comes twice; the first time warms up.
            for variant, chunk_figures in _round(competitors, max(index, 0)).items():
                if index >= 0:
                    single[variant] += chunk_figures["single_ms"]
                    batch[variant].append(chunk_figures["batch_s"])
                size_mib = chunk_figures.get("size_mib", size_mib) if variant == OURS else size_mib
                exits = chunk_figures if variant == EXITS else exits
    latency = {variant: float(np.median(values)) for variant, values in single.items()}
    rate = {variant: SENTENCES / CHUNKS / float(np.median(values)) for variant, values in batch.items()}
    quickest = min((PLAIN, FUSED), key=lambda variant: latency[variant])
    fastest = max((PLAIN, FUSED), key=lambda variant: rate[variant])
    operations = rate[OURS] * _operations(Path(setting.corpus), name)
    peak = int8_rate(Path(setting.corpus), setting.threads, setting.sized(9, 1))

    def line(title: str, figures: tuple[float, str, float, str], result: float, **rest: Any) -> Measure:
        ours, other_name, other, unit = figures
        return Measure("deployment", title, name, OURS, ours, other_name, other, unit, result, **rest)

    return [
        line(
            "int8 export, batch 1, against pipeline('text-classification') with BERT",
            (latency[OURS], PIPELINE, latency[PIPELINE], "ms a text"),
            latency[PIPELINE] / latency[OURS],
            result_unit="x",
            target=5.0,
        ),
        line(
            "int8 export, batch 1, against ONNX Runtime int8 of that BERT",
            (latency[OURS], quickest, latency[quickest], "ms a text"),
            latency[quickest] / latency[OURS],
            result_unit="x",
            target=1.0,
        ),
        line(
            "int8 export, batch 32, against that pipeline at batch 32",
            (rate[OURS], PIPELINE, rate[PIPELINE], "texts a second"),
            rate[OURS] / rate[PIPELINE],
            result_unit="x",
            target=6.0,
        ),
        line(
            "int8 export, batch 32, against ONNX Runtime int8 of that BERT",
            (rate[OURS], fastest, rate[fastest], "texts a second"),
            rate[OURS] / rate[fastest],
            result_unit="x",
        ),
        line(
            "share of the int8 matrix-product rate, batch 32, text to label",
            (operations / 1e9, f"ONNX Runtime's {SQUARE} x {SQUARE} product", peak / 1e9, "G operations a second"),
            100 * operations / peak,
            result_unit="%",
            target=35.0,
        ),
        line(
            "int8 export with its tokenizer, of what is allowed",
            (size_mib, "allowed", LARGEST_MIB, "MiB"),
            100 * size_mib / LARGEST_MIB,
            result_unit="%",
            target=100.0,
            at_most=True,
        ),
        *(exiting_export.lines(exits, name, latency, rate, (PLAIN, FUSED)) if exits else ()),
    ]


def _round(competitors: dict[str, Competitor], index: int) -> dict[str, dict[str, Any]]:
    names = list(competitors)
    turn = index % len(names)
    return {name: competitors[name].call(index)["value"] for name in names[turn:] + names[:turn]}
