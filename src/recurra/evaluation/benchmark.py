"""Times classifiers side by side: a run or a preset, and others to compare it with, such as BERT of equal shape."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from recurra.core.environment import environment_record
from recurra.core.errors import ConfigurationError, unknown
from recurra.core.record import EnvironmentRecord, LatencyRecord
from recurra.data.batching import sorted_batches
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.encoding import encode_texts
from recurra.data.tokenization import load_tokenizer, read_tokenizer
from recurra.evaluation.latency import measure_side_by_side, synchroniser
from recurra.models.configuration import RecurraConfig
from recurra.models.controls import holds_joined_model, holds_linear_model
from recurra.models.folder import read_model_configuration
from recurra.models.inference import PRECISIONS, check_precision, default_device, torch_threads
from recurra.models.loading import load_classifier_model
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.models.names import LANGUAGE_PRESETS, PRESETS
from recurra.models.presets import preset

Inputs = dict[str, torch.Tensor]
BERT = "bert"
# Enough rows for a stable median; smaller splits are timed whole.
MOST_ROWS = 2_000
ROWS_A_LENGTH = 32


class BenchmarkEntry(NamedTuple):
    """One model at one batch size, and its mean time as a multiple of the first model's."""

    name: str
    latency: LatencyRecord
    ratio: float


@dataclass(frozen=True)
class BenchmarkResult:
    """All models at all batch sizes, the inputs they read, and the environment."""

    source: str
    environment: EnvironmentRecord
    entries: list[BenchmarkEntry]

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        entries = [
            {"name": name, "ratio": ratio, **timed.model_dump(mode="json")} for name, timed, ratio in self.entries
        ]
        return {"source": self.source, "environment": self.environment.model_dump(mode="json"), "entries": entries}


def benchmark(
    names: Sequence[str],
    *,
    data: str | None = None,
    lengths: Sequence[int] = (8, 16, 32, 64, 128),
    batch_sizes: Sequence[int] = (1, 32),
    precision: str = "fp32",
    threads: int = 0,
    data_root: Path | None = None,
) -> BenchmarkResult:
    """Times forward passes, tokens to logits, of runs, presets, or ``bert`` in the first one's shape, side by side.

    With ``data`` rows have the lengths of the last reported split of that corpus or labelled file, else ``lengths``, at
    most as long as every model takes.
    """
    check_precision(precision)
    with torch_threads(threads):
        models = _models(names)
        longest = min(int(model.config.max_position_embeddings) for model in models.values())
        if data is None:
            fitting = sorted({min(length, longest) for length in lengths})
            counts = [length for length in fitting for _ in range(ROWS_A_LENGTH)]
            source = f"made-up rows of {', '.join(map(str, fitting))} tokens"
        else:
            counts, source = _real_lengths(data, names[0], longest, data_root)
        entries = []
        for batch_size in batch_sizes:
            timed = time_models(
                models,
                counts,
                batch_size=batch_size,
                precision=precision,
                vocab_size=min(int(model.config.vocab_size) for model in models.values()),
            )
            first_ms = timed[names[0]].mean_ms
            entries += [BenchmarkEntry(name, latency, latency.mean_ms / first_ms) for name, latency in timed.items()]
        environment = environment_record(threads=torch.get_num_threads(), precision=precision)
        return BenchmarkResult(source, environment, entries)


def _models(names: Sequence[str]) -> dict[str, PreTrainedModel]:
    models: dict[str, PreTrainedModel] = {}
    for name in names:
        folder = _model_folder(name)
        if name in models:
            raise ConfigurationError(f"'{name}' is named twice; name each model once")
        if name == BERT and not models:
            raise ConfigurationError("bert takes its shape from the model before it; name a preset or a run first")
        if name == BERT:
            models[name] = BertForSequenceClassification(bert_of_equal_shape(models[names[0]].config))
        elif name in PRESETS:
            models[name] = RecurraForSequenceClassification(preset(name))
        elif holds_linear_model(folder) or holds_joined_model(folder):
            raise ConfigurationError(f"'{name}' is a linear model, which has no forward pass; give a Transformer's run")
        elif name in LANGUAGE_PRESETS or (
            folder.is_dir() and "CausalLM" in str(read_model_configuration(folder).get("architectures"))
        ):
            raise ConfigurationError(
                f"'{name}' is a language model, and bench times classifiers; 'recurra exits RUN' times its exits, "
                "'recurra generate RUN PROMPT' each token"
            )
        elif folder.is_dir():
            models[name] = load_classifier_model(folder)
        else:
            raise ConfigurationError(unknown("model", name, [*PRESETS, BERT, "a run folder"]))
    return models


def _model_folder(name: str) -> Path:
    folder = Path(name)
    return folder / "model" if (folder / "model").is_dir() else folder


def _real_lengths(data: str, model_name: str, longest: int, data_root: Path | None) -> tuple[list[int], str]:
    config = DataConfig(name=data)
    dataset = load_dataset(config, data_root)
    if model_name in PRESETS:
        tokenizer, limit = load_tokenizer(config, dataset, data_root), config.max_length
    else:
        tokenizer = read_tokenizer(_model_folder(model_name))
        # A run stores there the length that it was trained with.
        limit = tokenizer.model_max_length
    limit = min(limit, longest)
    name = dataset.headline_split
    texts = dataset.splits[name].texts
    texts = texts[:: -(-len(texts) // MOST_ROWS)]
    _, offsets = encode_texts(texts, tokenizer, limit)
    return np.diff(offsets).tolist(), f"{len(texts):,} rows of {dataset.name} ({name}), at most {limit} tokens each"


def bert_of_equal_shape(config: RecurraConfig) -> BertConfig:
    """A BERT of the same width, heads and inner width, with one layer for each layer application; else standard."""
    if not isinstance(config, RecurraConfig):
        raise ConfigurationError("no BERT of equal shape is known for layers of another library; name --against MODEL")
    return BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        hidden_dropout_prob=config.hidden_dropout,
        num_labels=config.num_labels,
        pad_token_id=config.pad_token_id or 0,
    )


def time_models(
    models: Mapping[str, torch.nn.Module], lengths: Sequence[int], *, batch_size: int, precision: str, vocab_size: int
) -> dict[str, LatencyRecord]:
    """Times forward passes of several classifiers over the same rows of random tokens, batch by batch in turns.

    Rows of similar length are together, padded to the longest of each batch.
    """
    device = default_device()
    rng, counts = np.random.default_rng(0), np.asarray(lengths, dtype=np.int64)
    batches: list[Inputs] = []
    for rows in sorted_batches(counts, batch_size):
        real = np.arange(counts[rows].max()) < counts[rows][:, None]
        ids = np.where(real, rng.integers(0, vocab_size, real.shape), 0)
        inputs = {"input_ids": ids, "attention_mask": real.astype(np.int64)}
        batches.append({name: torch.from_numpy(values).to(device) for name, values in inputs.items()})
    ready = {name: model.to(device=device, dtype=PRECISIONS[precision]).eval() for name, model in models.items()}

    @torch.inference_mode()
    def forward(name: str, batch: Inputs) -> None:
        ready[name](**batch)

    calls = {name: functools.partial(forward, name) for name in ready}
    return measure_side_by_side(
        calls,
        batches,
        synchronise=synchroniser(str(device)),
        threads=torch.get_num_threads(),
        precision=precision,
        device=str(device),
    )
