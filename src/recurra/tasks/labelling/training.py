"""Training a model that labels texts, and what a timing of it takes. A linear model loads no torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recurra.core.environment import peak_memory_mib
from recurra.core.errors import ConfigurationError
from recurra.core.progress import Reporter
from recurra.core.record import LatencyRecord, ModelRecord, TrainingRecord
from recurra.core.sealed import MODEL_NAME
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextDataset
from recurra.deployment.classifier import Classifier
from recurra.evaluation.latency import measure_latency, synchroniser
from recurra.models.controls.linear import LinearModel
from recurra.tasks.labelling.controls import fit_control, fit_on_parts
from recurra.tasks.labelling.data import labelled
from recurra.tasks.labelling.task import LINEAR_TUNED
from recurra.tasks.machine import Machine
from recurra.tasks.profile import METHOD, WORDS_AND_ENCODER
from recurra.tasks.run_folder import save_model_folder
from recurra.tasks.runs import RunConfig

if TYPE_CHECKING:
    from recurra.tasks.labelling.teacher import Lesson

# What the tuned linear control finds telling of a label, at most.
TELLING_WORDS = 15


@dataclass(frozen=True)
class Trained:
    """What a training leaves.

    Attributes:
        dataset: Its data.
        training: How it went.
        model: What was trained.
        tokenizer: What the tokenizer is; empty without one.
        lesson: What its teachers said; none without teachers.
        smaller: Of the tuned linear control, the same fitted on parts of the training rows, by their number.
        telling_words: What that control finds telling, by label.
    """

    dataset: TextDataset
    training: TrainingRecord
    model: ModelRecord
    tokenizer: dict[str, Any]
    lesson: Lesson | None = None
    smaller: Mapping[int, LinearModel] = field(default_factory=dict)
    telling_words: dict[str, list[str]] | None = None


def train_classifier(
    config: RunConfig,
    folder: Path,
    machine: Machine,
    reporter: Reporter,
    *,
    dataset: TextDataset | None = None,
    weights: npt.NDArray[np.float32] | None = None,
) -> Trained:
    """Trains a classifier and saves it with its tokenizer, or takes up what an interrupted run left.

    Args:
        config: The run.
        folder: Its folder.
        machine: Where and how.
        reporter: For progress.
        dataset: Its data, where they lie in memory; none loads those that the configuration names.
        weights: What the loss of each training row counts, ``(rows,)``, with a mean of 1; none counts all alike.

    Raises:
        ConfigurationError: For weights beside a linear model, a teacher, or several labels a row.
    """
    if dataset is None:
        reporter.stage(config.run_id, "loading data")
        dataset = load_dataset(labelled(config.data), machine.data_root)
    weights = _row_weights(config, dataset, weights)
    lesson = None
    if config.teachers:
        from recurra.tasks.labelling.teacher import ask_teachers

        lesson = ask_teachers(config, folder, dataset, cache_dir=machine.cache_dir, reporter=reporter)
    if config.is_control:
        what = f"{len(dataset.splits['train']):,} texts with {dataset.num_labels:,} labels"
        reporter.stage(config.run_id, f"fitting {config.model} to {what}")
        if config.control == WORDS_AND_ENCODER:
            from recurra.tasks.labelling.joined import train_joined

            return Trained(dataset, *train_joined(config, dataset, folder, machine, reporter), {})
        return _train_control(config, dataset, folder, machine, lesson)
    from recurra.tasks.labelling.transformer import train_model

    return Trained(dataset, *train_model(config, dataset, folder, machine, reporter, weights=weights, lesson=lesson))


def _row_weights(
    config: RunConfig, dataset: TextDataset, weights: npt.NDArray[np.float32] | None
) -> npt.NDArray[np.float32] | None:
    """What training rows count: as given, times the class weights of the protocol if it has some."""
    own_loss = not (config.teachers or config.is_control or METHOD in config.model_overrides)
    if config.protocol.class_weights == "balanced" and own_loss:
        weights = balanced_weights(dataset.splits["train"].labels, weights)
    if weights is not None:
        _check_weights(config, dataset)
    return weights


def _check_weights(config: RunConfig, dataset: TextDataset) -> None:
    where = "a linear model" if config.is_control else "a teacher" if config.teachers else ""
    if METHOD in config.model_overrides:
        where = f"method '{config.model_overrides[METHOD]}'"
    if dataset.splits["train"].labels.ndim == 2:
        where = "several labels a text"
    if where:
        raise ConfigurationError(f"weights of rows came with {where}, where they mean nothing; leave one of them out")


def balanced_weights(
    labels: npt.NDArray[np.int64], weights: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Weights under which every class that occurs has the same sum, with a mean of 1.

    Args:
        labels: ``(rows,)``; rows with several labels are not weighed by class.
        weights: What rows count already, ``(rows,)``.

    Raises:
        ConfigurationError: If rows have several labels.
    """
    if labels.ndim == 2:
        raise ConfigurationError("'class_weights' is balanced and a row may have several labels; set it to none")
    own = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    sums = np.bincount(labels, weights=own)
    balanced = own / sums[labels]
    return (balanced / balanced.mean()).astype(np.float32)


def _train_control(
    config: RunConfig, dataset: TextDataset, folder: Path, machine: Machine, lesson: Lesson | None
) -> Trained:
    start = time.perf_counter()
    model = fit_control(config, dataset, machine, lesson)
    wall_s = time.perf_counter() - start
    save_model_folder(folder, model.save)
    words = int(dataset.splits["train"].word_counts.sum())
    training = TrainingRecord(
        protocol=config.protocol.name,
        epochs=0,
        steps=0,
        best_epoch=0,
        wall_s=wall_s,
        tokens_per_s=words / wall_s,
        peak_memory_mib=peak_memory_mib(),
    )
    scores = 1 if dataset.num_labels == 2 and not model.independent else dataset.num_labels
    record = ModelRecord(
        preset=config.model,
        kind="linear",
        parameters=model.num_parameters,
        embedding_parameters=0,
        non_embedding_parameters=model.num_parameters,
        # One multiply-add a feature and score.
        flops_per_token=2 * model.features_per_word * scores,
        file_size_bytes=sum(path.stat().st_size for path in (folder / MODEL_NAME).iterdir()),
        description=model.description,
    )
    if config.model != LINEAR_TUNED:
        return Trained(dataset, training, record, {}, lesson)
    train = dataset.splits["train"]
    words_of = model.telling_words(train.texts, train.labels, TELLING_WORDS)
    telling = dict(zip(dataset.label_names, words_of, strict=True))
    smaller = fit_on_parts(config, dataset, machine)
    return Trained(dataset, training, record, {}, smaller=smaller, telling_words=telling)


def latency_batches(texts: list[str], batch_size: int) -> list[list[str]]:
    """Texts of a whole split in batches of like length (by characters, which needs no tokenizer)."""
    ordered = sorted(texts, key=len)
    return [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]


def time_classifier(
    classifier: Classifier, dataset: TextDataset, config: RunConfig, threads: int
) -> dict[str, LatencyRecord]:
    """Times a classifier over the whole last reported split, at batch 1 and at the evaluation batch size."""
    texts = dataset.splits[dataset.reported_splits[-1]].texts
    device = "cpu"
    if not config.is_control:
        from recurra.models.inference import default_device

        device = str(default_device())
    result: dict[str, LatencyRecord] = {}
    for batch_size in sorted({1, config.protocol.evaluation_batch_size}):
        result[f"batch_{batch_size}"] = measure_latency(
            lambda batch: classifier.logits(batch, clean=False),
            latency_batches(texts, batch_size),
            synchronise=synchroniser(device),
            threads=threads,
            precision=config.precision,
            device=device,
            scope="text",
        )
    return result
