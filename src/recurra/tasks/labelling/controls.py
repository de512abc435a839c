"""Training the linear controls: on all training rows, on parts of them, and on a few to see how long it takes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recurra.core.environment import peak_memory_mib
from recurra.core.progress import Reporter
from recurra.core.record import ModelRecord
from recurra.core.sealed import MODEL_NAME
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.encoding import cache_path, cached_arrays
from recurra.data.splits import stratified_fraction
from recurra.data.tokenization import read_tokenizer
from recurra.models.controls.fitting import FEW_LABELS, fit_linear, fit_static, fit_tuned
from recurra.models.controls.linear import LinearModel
from recurra.tasks.base import WORDS_AND_ENCODER, RunConfig, encoder_of
from recurra.tasks.labelling import LINEAR, LINEAR_TUNED, labelled
from recurra.tasks.labelling.training import Trained, prepare_training
from recurra.tasks.run_folder import save_model_folder, single_fit
from recurra.tasks.study_data import Machine, StudyData

if TYPE_CHECKING:
    from recurra.tasks.labelling.teacher import Lesson

# Words that the tuned linear control finds telling of a label, at most.
TELLING_WORDS = 15
# Training rows on which a control is fitted to see how long it takes.
ROWS_TO_TIME = 500
# The same if an encoder reads them, which takes seconds.
ROWS_TO_READ = 128
# Limits of a part on which the control is fitted again: it takes seconds, and no label is there by chance alone.
LARGEST_PART, LEAST_OF_A_LABEL = 20_000, 10


def learning_shares(train: TextSplit) -> list[float]:
    """Shares of the training rows that the control is fitted on once more, each twice the one before.

    No part has more than `LARGEST_PART` rows, or fewer than `LEAST_OF_A_LABEL` of any label.
    """
    counts = np.bincount(train.labels) if train.labels.ndim == 1 else train.labels.sum(axis=0)
    fewest = int(counts[counts > 0].min())
    shares = (1 / 8, 1 / 4, 1 / 2)
    return [share for share in shares if fewest * share >= LEAST_OF_A_LABEL and len(train) * share <= LARGEST_PART]


def fit_control(
    config: RunConfig,
    dataset: TextDataset,
    machine: Machine,
    lesson: Lesson | None = None,
    weights: npt.NDArray[np.float32] | None = None,
    *,
    reporter: Reporter | None = None,
) -> Any:
    """Fits the control that a run names on its training rows, or on teachers' answers to these and to other texts.

    The result is a `LinearModel`, or a `JoinedFit` if the control also reads the states of an encoder.

    Raises:
        DataError: If there is one class only, or no text has a word.
    """
    if config.control == WORDS_AND_ENCODER:
        from recurra.tasks.labelling.joined import fit_run

        return fit_run(config, dataset, machine, reporter or Reporter(quiet=True), weights)
    train, selection = dataset.splits["train"], dataset.splits[dataset.selection_split]
    options: dict[str, Any] = {"num_labels": dataset.num_labels, "seed": config.seed, "weights": weights}
    if config.control == LINEAR:
        return fit_linear(train.texts, train.labels, **options, selection=(selection.texts, selection.labels))
    texts: Sequence[str] = train.texts
    targets: npt.NDArray[Any] = train.labels
    if lesson is not None:
        texts, targets = lesson.texts, lesson.targets(config.protocol.distillation_weight)
    options["independent"] = train.labels.ndim == 2
    if config.control == LINEAR_TUNED:
        return fit_tuned(texts, targets, **options)
    source = encoder_of(config.model_overrides)
    assert source is not None
    tokenizer = read_tokenizer(source.folder)

    def vectors() -> dict[str, npt.NDArray[Any]]:
        from recurra.models.adaptation.convert import piece_vectors

        return {"vectors": piece_vectors(source, tokenizer).numpy()}

    path = cache_path(f"pieces-{source.sha256}", machine.cache_dir)
    pieces = cached_arrays(path, ["vectors"], vectors)["vectors"]
    return fit_static(texts, targets, pieces, tokenizer.backend_tokenizer, encoder=source.name, **options)


def time_control(config: RunConfig, data: StudyData) -> float:
    """Seconds that a control will take to load its data and to fit.

    They come from fits on `ROWS_TO_TIME` training rows and on half of them. The fixed cost of a fit is in both and is
    not multiplied. With few labels, a fit before these loads libraries and vectors. With an encoder, which reads all
    rows once, fewer rows are timed, and the rows of evaluated splits are counted too.
    """
    rows, began = labelled(config.data), time.perf_counter()
    dataset = data.rows(rows)
    loading = time.perf_counter() - began
    train = dataset.splits["train"]
    uses_encoder = config.control == WORDS_AND_ENCODER
    most_rows = ROWS_TO_READ if uses_encoder else ROWS_TO_TIME
    half, whole = (
        stratified_fraction(train, min(size / len(train), 1), rows.split_seed)
        for size in (min(len(train), most_rows) / 2, most_rows)
    )

    def fit(part: TextSplit) -> float:
        start = time.perf_counter()
        fitted_on = replace(dataset, splits={**dataset.splits, "train": part})
        # Cached states would be read instead of computed.
        with tempfile.TemporaryDirectory() as folder:
            machine = replace(data.machine, cache_dir=Path(folder)) if uses_encoder else data.machine
            fit_control(config, fitted_on, machine)
        return time.perf_counter() - start

    row_difference, half_seconds = len(whole) - len(half), None
    # Every part has a row of each label: with hundreds of labels both may have the same size, and fits take long.
    if row_difference > len(whole) / 4:
        if dataset.num_labels <= FEW_LABELS:
            fit(half)
        half_seconds = fit(half)
    seconds = fit(whole)
    per_row = 0.0 if half_seconds is None else max(0.0, seconds - half_seconds) / row_difference
    extra_rows = len(dataset.unlabelled) if config.teachers and dataset.unlabelled is not None else 0
    if uses_encoder:
        extra_rows = sum(len(dataset.splits[name]) for name in {dataset.selection_split, *dataset.reported_splits})
    shares = learning_shares(train) if config.model == LINEAR_TUNED and not config.teachers else []
    sizes = [len(train) + extra_rows, *(share * len(train) for share in shares)]
    return loading + sum(seconds + per_row * (size - len(whole)) for size in sizes)


def train_control(
    config: RunConfig,
    folder: Path,
    data: StudyData,
    reporter: Reporter,
    *,
    weights: npt.NDArray[np.float32] | None = None,
) -> Trained:
    """Fits a control and saves it."""
    dataset, weights, lesson = prepare_training(config, folder, data, reporter, weights)
    train, machine = dataset.splits["train"], data.machine
    reporter.stage(config.run_id, f"fitting {config.model} to {len(train):,} texts with {dataset.num_labels:,} labels")
    start = time.perf_counter()
    model = fit_control(config, dataset, machine, lesson, weights, reporter=reporter)
    wall_s = time.perf_counter() - start
    if config.control == WORDS_AND_ENCODER:
        from recurra.tasks.labelling.joined import joined_model

        save, facts = joined_model(config, model, dataset)
    else:
        scores = 1 if dataset.num_labels == 2 and not model.independent else dataset.num_labels
        save = model.save
        facts = {
            "parameters": model.num_parameters,
            "embedding_parameters": 0,
            "non_embedding_parameters": model.num_parameters,
            # One multiply-add a feature and score.
            "flops_per_token": 2 * model.features_per_word * scores,
            "description": model.description,
        }
    save_model_folder(folder, save)
    size = sum(path.stat().st_size for path in (folder / MODEL_NAME).iterdir())
    record = ModelRecord(preset=config.model, kind="linear", file_size_bytes=size, **facts)
    training = single_fit(config, wall_s=wall_s, words=int(train.word_counts.sum()), peak_memory_mib=peak_memory_mib())
    if config.model != LINEAR_TUNED:
        return Trained(dataset, training, record, {}, lesson)
    label_words = model.telling_words(train.texts, train.labels, TELLING_WORDS)
    telling = dict(zip(dataset.label_names, label_words, strict=True))
    smaller: dict[int, LinearModel] = {}
    # The parts are fitted on labels, all of the same weight.
    for share in learning_shares(train) if weights is None and lesson is None else ():
        part = stratified_fraction(train, share, labelled(config.data).split_seed)
        smaller[len(part)] = fit_control(config, replace(dataset, splits={**dataset.splits, "train": part}), machine)
    return Trained(dataset, training, record, {}, lesson, smaller=smaller, telling_words=telling)
