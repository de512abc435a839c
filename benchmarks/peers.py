"""MiniLM as a classifier, by us and by every engine that a user could pick, each set up as an expert would.

    python -m benchmarks --only peers --data-root DIR

All compute the same shape with the same tokenizer, but for recurra-small, which no other engine can, and the models of
`benchmarks.rungs`. Presets compete with a BERT of their shape. A peer that takes token ids is given rows sorted by
length, in batches of the size that is fastest for it on the first texts. OpenVINO is tried twice: with shapes as they
come, and with lengths rounded up to a few, for each of which it compiles the model.

With one thread, rates are texts a second of processor time, which a busy machine changes less than the clock; with
several they are by the clock, because threads that wait may spin. Batches are shown by the other one too. Packages that
are not installed are named and left out; ``make bench`` installs them.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import corpus as corpora
from benchmarks import models, rungs
from benchmarks.lockstep import Job
from benchmarks.measures import Measure, Setting
from benchmarks.onnx_peers import export_bert, write_bert
from recurra.core.errors import ConfigurationError, unknown
from recurra.data.encoding import encode_texts
from recurra.data.tables import stream_texts
from recurra.deployment.classifier import Classifier
from recurra.deployment.engines.trained import TransformerEngine
from recurra.deployment.export.build import save_tokenizer
from recurra.deployment.onnx import MODEL_NAME
from recurra.deployment.onnx.engine import OnnxEngine
from recurra.deployment.onnx.model import write_onnx
from recurra.deployment.onnx.sessions import open_session

Rows = npt.NDArray[np.int64]
Compute = Callable[[Rows, Rows], object]

ENCODER, LABELS = "minilm", ["negative", "positive"]
SHORT, LONG = "short", "long"
TOKENS = {SHORT: 128, LONG: 256}
LONG_TEXTS = "yelp_reviews/test.parquet"
# A call of the largest size has a quarter of them.
TEXTS = {SHORT: 4_096, LONG: 512}
SINGLE, CHUNKS = 24, 4
BATCHES_RATE, OTHER_CLOCK, SINGLE_MS, ACCURACY = "batches", "batches by the other clock", "single_ms", "accuracy"
# Number of texts in a call, and of such calls in a chunk.
TOGETHER = {8: 4, 32: 1}
# Padded tokens of a batch; every engine takes the fastest of these sizes on so many texts.
BATCHES, TRIED = (256, 1_024, 4_096), {SHORT: 256, LONG: 64}
CALIBRATION_ROWS = 64
# Lengths in tokens that OpenVINO compiles for themselves.
FIXED_LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)

FLOATS = tuple(dict.fromkeys(("fp32", models.FASTEST)))
SMALL = "recurra-small int8"
OURS = ("recurra int8", *(f"recurra {precision}" for precision in FLOATS), SMALL)
FIXED = "OpenVINO int8, fixed lengths"
# Packages that each peer needs besides this one.
PEERS = {
    "OpenVINO int8": ("openvino", "nncf"),
    FIXED: ("openvino", "nncf"),
    **{f"OpenVINO {precision}": ("openvino",) for precision in FLOATS},
    "ONNX Runtime int8": ("onnxruntime",),
    "ONNX Runtime int8, fused": ("onnxruntime",),
    "CTranslate2 int8": ("ctranslate2",),
    f"torch {models.FASTEST}": (),
    f"sentence-transformers {models.FASTEST}": ("sentence_transformers",),
    "fastembed fp32": ("fastembed",),
}
# Of a preset's own shape.
PRESET_PEERS = ("OpenVINO int8", FIXED, "ONNX Runtime int8", "ONNX Runtime int8, fused")


def build(job: Job) -> Callable[[int], dict[str, Any]]:
    """Returns a call that classifies the ``i``-th chunk of short or long texts, one by one and in batches."""
    variant, kind = job.variant.split(" | ")
    predict: Callable[[Sequence[str]], object]
    corpus = corpora.Corpus(job.corpus_folder)
    length, tokenizer = TOKENS[kind], corpus.tokenizer
    texts = corpus.texts if kind == SHORT else _long_texts(job.corpus_folder)
    order = np.random.default_rng(0).permutation(len(texts))[: TEXTS[kind]]
    chunks = [[texts[index] for index in part] for part in np.array_split(order, CHUNKS)]
    folder = Path(tempfile.mkdtemp(prefix="recurra-bench-peers-", dir=job.corpus))
    save_tokenizer(tokenizer, length, folder)

    def ids_of(part: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        flat, offsets = encode_texts(part, tokenizer.backend_tokenizer, length)
        return np.split(flat, offsets[1:-1])

    accuracy = None
    if variant in (*rungs.MODELS, *rungs.PEERS):
        predict, accuracy = rungs.fitted(variant, job.corpus_folder, job.threads)
    elif variant in OURS:
        encoder = "recurra-small" if variant == SMALL else job.preset
        classifier = _ours(encoder, variant.split()[1], folder, tokenizer, length=length, threads=job.threads)
        predict = classifier.predict
    elif variant.startswith("sentence-transformers"):
        predict = _sentence_transformers(folder, tokenizer, length, _dtype(variant))
    elif variant.startswith("fastembed"):
        predict = _fastembed(folder, tokenizer, length, job.threads)
    else:
        compute = _peer(variant, job.preset, folder, job.threads, ids_of(chunks[0][:CALIBRATION_ROWS]))

        def batched(budget: int, part: Sequence[str]) -> None:
            _in_batches(compute, ids_of(part), budget)

        times = {}
        for budget in BATCHES:
            batched(budget, chunks[0][:32])
            times[budget] = _seconds(partial(batched, budget, chunks[0][: TRIED[kind]]))[job.threads > 1]
        predict = partial(batched, min(times, key=times.__getitem__))

    def call(index: int) -> dict[str, Any]:
        part = chunks[index]
        single = [1000 * _seconds(partial(predict, [text]))[1] for text in part[:SINGLE]]

        def rates(groups: Sequence[Sequence[str]]) -> tuple[float, ...]:
            seconds = [_seconds(partial(predict, group)) for group in groups]
            by_clock = [sum(map(len, groups)) / sum(some) for some in zip(*seconds, strict=True)]
            return tuple(by_clock if job.threads == 1 else by_clock[::-1])

        figures: dict[str, Any] = {f"{size} texts": rates(_groups(part, size))[0] for size in TOGETHER}
        figures[BATCHES_RATE], figures[OTHER_CLOCK] = rates([part])
        figures[SINGLE_MS] = single
        return figures if accuracy is None else {**figures, ACCURACY: accuracy}

    return call


def _groups(part: Sequence[str], size: int) -> list[Sequence[str]]:
    return [part[start : start + size] for start in range(0, size * TOGETHER[size], size)]


def _ours(encoder: str, precision: str, folder: Path, tokenizer: Any, *, length: int, threads: int) -> Classifier:
    model = models.ours(encoder).eval()
    if precision == "bf16":
        return Classifier(TransformerEngine(model, tokenizer, precision=precision, max_length=length), LABELS)
    write_onnx(model, precision, length, folder, {})
    engine = OnnxEngine(
        folder, precision=precision, max_length=length, pad_token_id=tokenizer.pad_token_id, threads=threads
    )
    return Classifier(engine, LABELS)


def _peer(variant: str, preset: str, folder: Path, threads: int, rows: Sequence[npt.NDArray[np.int32]]) -> Compute:
    model = models.bert(preset).eval()
    if variant.startswith("torch"):
        model = model.to(_dtype(variant))

        def by_torch(ids: Rows, mask: Rows) -> object:
            with torch.inference_mode():
                return model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).logits

        return by_torch
    if variant.startswith("ONNX Runtime"):
        write_bert(model, folder, fused=variant.endswith("fused"))
        session = open_session(folder / MODEL_NAME, threads)
        return lambda ids, mask: session.run(None, {"input_ids": ids, "attention_mask": mask})
    if variant.startswith("OpenVINO"):
        precision = variant.removesuffix(", fixed lengths").split()[1]
        return _openvino(model, folder, precision, threads, rows, fixed=variant == FIXED)
    return _ctranslate2(model, folder, threads)


def _openvino(
    model: Any, folder: Path, precision: str, threads: int, rows: Sequence[npt.NDArray[np.int32]], *, fixed: bool
) -> Compute:
    import openvino

    export_bert(model, folder / "bert.onnx")
    core = openvino.Core()
    graph = core.read_model(folder / "bert.onnx")
    if precision == "int8":
        import nncf

        samples = [
            {"input_ids": row[None].astype(np.int64), "attention_mask": np.ones((1, len(row)), np.int64)}
            for row in rows
        ]
        graph = nncf.quantize(
            graph, nncf.Dataset(samples), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(rows)
        )
    hint = "bf16" if precision == "bf16" else "f32"
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY"}
    requests: dict[tuple[int, int], Any] = {}

    def request_for(shape: tuple[int, int]) -> Any:
        if shape not in requests:
            shaped = graph.clone()
            shaped.reshape({name: list(shape) for name in ("input_ids", "attention_mask")})
            requests[shape] = core.compile_model(shaped, "CPU", settings).create_infer_request()
        return requests[shape]

    def infer(ids: Rows, mask: Rows) -> object:
        return request_for((-1, -1)).infer({"input_ids": ids, "attention_mask": mask})

    def infer_fixed(ids: Rows, mask: Rows) -> object:
        rows, width = ids.shape
        length = next(length for length in FIXED_LENGTHS if length >= width)
        padded = np.zeros((2, rows, length), np.int64)
        padded[0, :, :width], padded[1, :, :width] = ids, mask
        request = request_for((1 if rows == 1 else -1, length))
        return request.infer({"input_ids": padded[0], "attention_mask": padded[1]})

    if not fixed:
        return infer
    for shape in itertools.product((1, -1), FIXED_LENGTHS):
        request_for(shape)
    return infer_fixed


def _ctranslate2(model: Any, folder: Path, threads: int) -> Compute:
    import ctranslate2

    model.bert.save_pretrained(folder / "bert")
    ctranslate2.converters.TransformersConverter(str(folder / "bert")).convert(
        str(folder / "converted"), quantization="int8"
    )
    encoder = ctranslate2.Encoder(str(folder / "converted"), "cpu", compute_type="int8", intra_threads=threads)
    head = model.classifier.weight.detach().numpy()

    def by_ctranslate2(ids: Rows, mask: Rows) -> object:
        lengths = mask.sum(1)
        states = np.asarray(
            encoder.forward_batch([row[:n].tolist() for row, n in zip(ids, lengths, strict=True)]).last_hidden_state
        )
        return (states * mask[:, :, None]).sum(1) / lengths[:, None] @ head.T

    return by_ctranslate2


def _dtype(variant: str) -> torch.dtype:
    return torch.bfloat16 if variant.endswith("bf16") else torch.float32


def _sentence_transformers(
    folder: Path, tokenizer: Any, length: int, dtype: torch.dtype
) -> Callable[[Sequence[str]], object]:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    models.bert(ENCODER).bert.save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    body = Transformer(str(folder / "bert"), max_seq_length=length, model_kwargs={"dtype": dtype})
    encoder = SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension())], device="cpu")
    return lambda texts: encoder.encode(list(texts), batch_size=32, show_progress_bar=False, convert_to_tensor=True)


def _fastembed(folder: Path, tokenizer: Any, length: int, threads: int) -> Callable[[Sequence[str]], object]:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    class States(torch.nn.Module):
        def __init__(self, bert: Any) -> None:
            super().__init__()
            self.bert, self.config = bert, bert.config

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.bert(ids, attention_mask=mask).last_hidden_state

    name, encoder = "recurra/bench", models.bert(ENCODER).bert.eval()
    export_bert(States(encoder), folder / "bert.onnx", output="last_hidden_state")
    encoder.config.save_pretrained(folder)
    tokenizer.model_max_length = length
    tokenizer.save_pretrained(folder)
    special = {key: token for key, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    (folder / "special_tokens_map.json").write_text(json.dumps(special), encoding="utf-8")
    TextEmbedding.add_custom_model(
        model=name, pooling=PoolingType.MEAN, normalization=False, sources=ModelSource(hf=name),
        dim=encoder.config.hidden_size, model_file="bert.onnx",
    )  # fmt: skip
    model = TextEmbedding(name, specific_model_path=str(folder), threads=threads, cuda=False)
    return lambda texts: list(model.embed(sorted(texts, key=len), batch_size=32))


def _in_batches(compute: Compute, rows: Sequence[npt.NDArray[np.int32]], budget: int) -> None:
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * len(rows[order[end]]) <= budget:
            end += 1
        longest = len(rows[order[end - 1]])
        ids, mask = np.zeros((end - start, longest), np.int64), np.zeros((end - start, longest), np.int64)
        for line, index in enumerate(order[start:end]):
            ids[line, : len(rows[index])] = rows[index]
            mask[line, : len(rows[index])] = 1
        compute(ids, mask)
        start = end


def _long_texts(folder: Path) -> list[str]:
    return (folder / "long.txt").read_text(encoding="utf-8").split("\0")


def _seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the processor, and by the clock."""
    processor, clock = time.process_time(), time.perf_counter()
    call()
    return time.process_time() - processor, time.perf_counter() - clock


def _installed(packages: Mapping[str, Sequence[str]]) -> list[str]:
    """The peers whose packages are all there; names the others."""
    present = []
    for name, needed in packages.items():
        missing = [package for package in needed if importlib.util.find_spec(package) is None]
        if missing:
            sys.stderr.write(f"{name} is left out: {', '.join(missing)} is not installed (recurra[peers-bench])\n")
        else:
            present.append(name)
    return present


def measure(setting: Setting) -> list[Measure]:
    """Measures MiniLM in every precision of ours against the fastest peer of any kind, and of the same precision."""
    for name in setting.peers:
        if name not in PEERS:
            raise ConfigurationError(unknown("engine", name, PEERS))
    peers = _installed({name: PEERS[name] for name in setting.peers or PEERS})
    kinds = [SHORT]
    if setting.data_root is not None:
        chunks = stream_texts(Path(setting.data_root) / LONG_TEXTS, "text")
        texts = list(itertools.islice(itertools.chain.from_iterable(chunks), 4 * TEXTS[LONG]))
        (Path(setting.corpus) / "long.txt").write_text("\0".join(texts), encoding="utf-8")
        kinds.append(LONG)
    lines: list[Measure] = []
    for kind in kinds:
        lines += _minilm(Turns(setting, kind), peers)
    if setting.peers:
        return lines
    for preset in setting.presets:
        for kind in kinds if preset != ENCODER else ():
            lines += _preset(Turns(setting, kind, preset), [name for name in PRESET_PEERS if name in peers])
    if setting.data_root is not None:
        rung_peers = _installed(rungs.PEERS)
        rungs.prepare(setting.data_root, Path(setting.corpus))
        for kind in kinds:
            lines += _rungs(Turns(setting, kind), rung_peers)
    return lines


@dataclass(frozen=True)
class Turns:
    """Competitors that take turns on the texts of a kind; those of ``preset``'s shape if they have one."""

    setting: Setting
    kind: str
    preset: str = ENCODER

    def figures(self, names: list[str]) -> dict[str, dict[str, float]]:
        """Medians by figure and name: milliseconds of a text alone; texts a second by texts in a call, in batches."""
        count = self.setting.sized(CHUNKS, 1)
        jobs = {name: self.setting.job(__name__, f"{name} | {self.kind}", self.preset, count) for name in names}
        values: dict[str, dict[str, list[float]]] = {}
        with self.setting.competitors(jobs) as competitors:
            for index in range(-1, count):
                # The first chunk comes twice; the first time warms up.
                for name in names[index % len(names) :] + names[: index % len(names)]:
                    figures = competitors[name].call(max(index, 0))["value"]
                    if index >= 0:
                        for figure, value in figures.items():
                            values.setdefault(figure, {}).setdefault(name, []).extend(np.atleast_1d(value))
        return {
            figure: {name: float(np.median(some)) for name, some in by_name.items()}
            for figure, by_name in values.items()
        }

    def held(
        self, title: str, figures: dict[str, float], ours: str, others: list[str], target: float | None = None
    ) -> list[Measure]:
        """Compares ours with the best of the others, by rate or, for one text, by time; empty without others."""
        if not others:
            return []
        alone = "one text" in title
        best = (min if alone else max)(others, key=figures.__getitem__)
        mine, other = figures[ours], figures[best]
        result = other / mine if alone else mine / other
        by_processor = (self.setting.threads == 1) != (OTHER_CLOCK in title)
        unit = "ms a text" if alone else f"texts a {'processor ' if by_processor else ''}second"
        title = f"{title}, {self.kind} texts"
        return [Measure("peers", title, self.preset, ours, mine, best, other, unit, result, "x", target)]

    def together(self, title: str, figures: dict[str, dict[str, float]], ours: str, others: list[str]) -> list[Measure]:
        """The same for a few texts in a call, whose number the title has at ``{}``."""
        return [
            line
            for size in TOGETHER
            for line in self.held(title.format(f"{size} texts together"), figures[f"{size} texts"], ours, others)
        ]


def _minilm(turns: Turns, peers: list[str]) -> list[Measure]:
    figures, int8 = turns.figures([*OURS, *peers]), OURS[0]
    rate = figures[BATCHES_RATE]
    lines = turns.held("int8 in batches, against the fastest peer", rate, int8, peers, 1.3)
    for name in peers:
        lines += turns.held("int8 in batches", rate, int8, [name])
        lines += turns.held(f"int8 in {OTHER_CLOCK}", figures[OTHER_CLOCK], int8, [name])
    lines += turns.held("int8, one text, against the fastest peer", figures[SINGLE_MS], int8, peers, 1.4)
    lines += turns.together("int8, {}, against the fastest peer", figures, int8, peers)
    lines += turns.held("recurra-small, int8 in batches, against MiniLM's fastest peer", rate, SMALL, peers)
    for precision in FLOATS:
        others = [name for name in peers if name == f"OpenVINO {precision}"]
        lines += turns.held(f"{precision} in batches", rate, f"recurra {precision}", others, 1.2)
    return lines


def _preset(turns: Turns, peers: list[str]) -> list[Measure]:
    """A model from scratch against the fastest engine with a BERT of its shape."""
    figures, int8 = turns.figures([OURS[0], *peers]), OURS[0]
    return [
        *turns.held("int8 in batches, against BERT of its shape", figures[BATCHES_RATE], int8, peers),
        *turns.held("int8, one text, against BERT of its shape", figures[SINGLE_MS], int8, peers),
        *turns.together("int8, {}, against BERT of its shape", figures, int8, peers),
    ]


def _rungs(turns: Turns, peers: list[str]) -> list[Measure]:
    """Each model that is fitted once against each that a user would take instead: speed, and accuracy on SST-2."""
    figures = turns.figures([*rungs.MODELS, *peers])
    lines = []
    for name, peer in itertools.product(rungs.MODELS, peers):
        lines += turns.held(f"{name} in batches", figures[BATCHES_RATE], name, [peer])
        lines += turns.held(f"{name}, one text", figures[SINGLE_MS], name, [peer])
        lines += turns.together(f"{name}, {{}}", figures, name, [peer])
        if turns.kind == SHORT:
            mine, other = (100 * figures[ACCURACY][model] for model in (name, peer))
            title = f"{name}, accuracy on SST-2 after {2 * rungs.ROWS_PER_LABEL:,} rows"
            lines.append(Measure("peers", title, "", name, mine, peer, other, "%", mine - other, "points"))
    return lines
