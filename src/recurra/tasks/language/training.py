"""One run of a language model: load, train, save, measure every head, audit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from recurra.core.environment import available_cores
from recurra.core.files import read_json
from recurra.core.language_record import (
    LanguageDataRecord,
    LanguageMetricsRecord,
    LanguageRunRecord,
    LanguageSplitRecord,
    LanguageTrainingRecord,
)
from recurra.core.model_files import MODEL_NAME
from recurra.core.progress import Reporter
from recurra.core.record import LatencyRecord, ModelRecord
from recurra.core.record_parts import TRAINING_SPLIT
from recurra.core.seeds import derive_seed
from recurra.data.language.configuration import LINES
from recurra.data.language.dataset import LanguageDataset, RunningText
from recurra.data.language.encoding import EncodedText
from recurra.data.language.preparation import encode_for, make_samples, texts_of
from recurra.data.language.tokenization import is_lossless, load_language_tokenizer, read_language_tokenizer
from recurra.data.vocabulary import describe_tokenizer
from recurra.models.accounting import HeadKind
from recurra.models.inference import default_device
from recurra.models.language_modeling import RecurraForCausalLM
from recurra.models.loading import load_language_model
from recurra.models.names import LANGUAGE_PRESETS
from recurra.tasks.language.audits import audit_trained
from recurra.tasks.language.configuration import language_configuration
from recurra.tasks.language.data import SELECTION_SPLIT, load_run_text, running
from recurra.tasks.language.fit import train_language_model
from recurra.tasks.language.measuring import measure_text, time_language_model
from recurra.tasks.machine import Machine
from recurra.tasks.run_folder import TRAINING_NAME, keep_trained, run_facts, shape_of, transformer_record
from recurra.tasks.runs import RunConfig

REPORTED_SPLITS = ("validation", "test")


@dataclass(frozen=True)
class TrainedLanguageModel:
    """What a training leaves.

    Attributes:
        dataset: The text.
        encoded: Its splits in tokens, as the run's mode takes them.
        tokenizer: What the tokenizer is, for the record.
        training: How it went.
        model: What was trained.
        folder: The saved model and its tokenizer.
    """

    dataset: LanguageDataset
    encoded: dict[str, EncodedText]
    tokenizer: dict[str, Any]
    training: LanguageTrainingRecord
    model: ModelRecord
    folder: Path


def execute_language(config: RunConfig, folder: Path, machine: Machine, reporter: Reporter) -> LanguageRunRecord:
    """Trains, measures and audits in a folder that is held; what was done before an interruption is not done again.

    Returns:
        The record, to be written last.
    """
    started = time.perf_counter()
    trained = train_language(config, folder, machine, reporter)
    reporter.stage(config.run_id, "evaluating")
    # As it was stored: what is measured is what others load.
    model = load_language_model(folder / MODEL_NAME).to(default_device())
    data = _data_record(config, trained)
    metrics: dict[str, LanguageMetricsRecord] = {
        name: measure_text(
            model,
            encoded,
            context=running(config.data).context,
            stride=None,
            packed=running(config.data).mode != LINES,
            lossless=bool(trained.tokenizer["lossless"]),
            precision=config.precision,
        )
        for name, encoded in {
            **{name: trained.encoded[name] for name in data.reported_splits},
            TRAINING_SPLIT: _part_of_training(config, trained, machine.cache_dir),
        }.items()
    }
    latency: dict[str, LatencyRecord] = {}
    if machine.latency:
        reporter.stage(config.run_id, "timing")
        latency = time_language_model(
            model,
            trained.encoded[data.reported_splits[-1]].joined,
            running(config.data).context,
            precision=config.precision,
            batch_sizes=(1, config.protocol.evaluation_batch_size),
        )
    reporter.stage(config.run_id, "auditing")
    return LanguageRunRecord(
        **run_facts(config, started, machine.threads or available_cores()),
        data=data,
        model=trained.model,
        training=trained.training,
        metrics=metrics,
        latency=latency,
        audits=audit_trained(
            model,
            # A text that was trained on may be predicted as well as it likes.
            {name: metrics[name] for name in data.reported_splits},
            trained.dataset,
            running(config.data).min_characters,
            seed=config.seed,
        ),
        shape=shape_of(model.config),
    )


def train_language(config: RunConfig, folder: Path, machine: Machine, reporter: Reporter) -> TrainedLanguageModel:
    """Trains a language model and saves it with its tokenizer, or takes up what an interrupted run left."""
    reporter.stage(config.run_id, "loading data")
    dataset = load_run_text(running(config.data), machine)
    tokenizer = load_language_tokenizer(running(config.data), dataset, machine.data_root)
    encoded = {
        name: encode_for(split, running(config.data), tokenizer, machine.cache_dir)
        for name, split in dataset.splits.items()
    }
    transformers.set_seed(derive_seed(config.seed, "weights"))
    model = RecurraForCausalLM(language_configuration(config, len(tokenizer), tokenizer.eos_token_id))
    done = folder / TRAINING_NAME
    if done.exists() and (folder / MODEL_NAME).is_dir():
        training = LanguageTrainingRecord.model_validate(read_json(done))
    else:
        training = train_language_model(
            model.to(default_device()),
            make_samples(encoded["train"], running(config.data)),
            make_samples(encoded[SELECTION_SPLIT], running(config.data)),
            config.protocol,
            folder=folder,
            seed=config.seed,
            precision=config.precision,
            reporter=reporter,
            pad_token_id=tokenizer.eos_token_id,
        )
        keep_trained(folder, model, tokenizer, running(config.data).context, training)
    described = {**describe_tokenizer(tokenizer), "lossless": is_lossless(tokenizer)}
    known = LANGUAGE_PRESETS.get(config.model)
    record = transformer_record(
        config.label,
        known[0] if known else "a preset with changes",
        model.config,
        HeadKind.LANGUAGE_MODELLING,
        tokens=running(config.data).context,
        folder=folder,
    )
    return TrainedLanguageModel(dataset, encoded, described, training, record, folder / MODEL_NAME)


def _part_of_training(config: RunConfig, trained: TrainedLanguageModel, cache_dir: Path | None) -> EncodedText:
    """As many texts from the beginning of training as the selection split has."""
    data, splits = running(config.data), trained.dataset.splits
    seen = texts_of(splits["train"], data).texts[: len(texts_of(splits[SELECTION_SPLIT], data))]
    return encode_for(RunningText("train", seen), data, read_language_tokenizer(trained.folder), cache_dir)


def _data_record(config: RunConfig, trained: TrainedLanguageModel) -> LanguageDataRecord:
    dataset, data = trained.dataset, running(config.data)
    samples = len(make_samples(trained.encoded["train"], data))
    return LanguageDataRecord(
        name=dataset.name,
        unit=dataset.unit,
        mode=data.mode,
        context=data.context,
        fingerprint=dataset.fingerprint,
        selection_split=SELECTION_SPLIT,
        reported_splits=[name for name in REPORTED_SPLITS if name in dataset.splits],
        splits={
            name: LanguageSplitRecord(
                fingerprint=split.fingerprint,
                texts=len(trained.encoded[name]),
                words=trained.encoded[name].words,
                bytes=trained.encoded[name].num_bytes,
                tokens=len(trained.encoded[name].joined),
                samples=samples if name == "train" else None,
            )
            for name, split in dataset.splits.items()
        },
        notes=dataset.notes,
        tokenizer=trained.tokenizer,
    )
