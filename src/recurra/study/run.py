"""One run from configuration to record: load, train, save, evaluate, audit, write the record last."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import transformers

from recurra.core.environment import code_record
from recurra.core.files import FolderLock, read_json
from recurra.core.memory import peak_memory_mib
from recurra.core.progress import Reporter
from recurra.core.record import (
    RECORD_NAME,
    AnyRecord,
    AuditResult,
    LatencyRecord,
    MetricsRecord,
    ModelRecord,
    RunRecord,
    TrainingRecord,
    write_record,
)
from recurra.core.seeds import derive_seed
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextDataset
from recurra.data.encoding import EncodedSplit, encode_split
from recurra.data.tokenization import load_tokenizer
from recurra.data.vocabulary import describe_tokenizer
from recurra.deployment.classifier import Classifier
from recurra.deployment.engine import load_engine
from recurra.deployment.engines import TransformerEngine
from recurra.evaluation.audits import audit_invariance, audit_seen
from recurra.evaluation.latency import measure_latency, synchroniser
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import write_predictions
from recurra.models.accounting import Task
from recurra.models.inference import check_precision, default_device, torch_threads
from recurra.models.linear import LinearClassifier
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.models.names import PRESETS
from recurra.models.quiet import quieten_libraries
from recurra.study.auditing import data_audits
from recurra.study.claim import claim_folder
from recurra.study.language_run import execute_language, train_language
from recurra.study.machine import Machine
from recurra.study.preflight import model_configuration
from recurra.study.run_folder import (
    MODEL_NAME,
    TRAINING_NAME,
    keep_trained,
    run_facts,
    save_model_folder,
    speaks_for_all,
    transformer_record,
)
from recurra.study.spec import RunConfig
from recurra.study.variants import LINEAR
from recurra.training.fit import remove_checkpoints, train_transformer
from recurra.training.masking import MaskTokens


def execute_run(config: RunConfig, folder: Path, machine: Machine, reporter: Reporter) -> AnyRecord | None:
    """Executes a run, or takes it up where it was interrupted, or returns its record if it is done.

    Args:
        config: What to run.
        folder: The run folder; held by this process meanwhile.
        machine: Where and how.
        reporter: For progress.

    Returns:
        The record; none on the other processes of a distributed run.

    Raises:
        StorageError: If the folder holds another run or is in use.
        RecurraError: Whatever is wrong with the data or the configuration.
    """
    check_precision(config.precision)
    quieten_libraries()
    code_record()  # remembers the commit that is loaded now: the checkout may move on during a long run
    with torch_threads(machine.threads):
        if not speaks_for_all():
            if not (folder / RECORD_NAME).exists():
                train = train_language if config.models_language else _train
                train(config, folder, machine, Reporter(quiet=True))
            return None
        with FolderLock(folder):
            done = claim_folder(config, folder)
            if done is not None:
                reporter.say(f"{config.run_id}: already done")
                return done
            execute = execute_language if config.models_language else _execute
            record: AnyRecord = execute(config, folder, machine, reporter)
            write_record(folder, record)
            if not machine.keep_checkpoints:
                remove_checkpoints(folder)
            return record


def _execute(config: RunConfig, folder: Path, machine: Machine, reporter: Reporter) -> RunRecord:
    started = time.perf_counter()
    dataset, training, model_record, tokenizer = _train(config, folder, machine, reporter)
    reporter.stage(config.run_id, "evaluating")
    engine = load_engine(
        folder / MODEL_NAME,
        kind=model_record.kind,
        precision=config.precision,
        max_length=config.labelled_data.max_length,
    )
    classifier = Classifier(engine, dataset.label_names, batch_size=max(config.protocol.evaluation_batch_size, 64))
    metrics: dict[str, MetricsRecord] = {}
    seen: list[AuditResult] = []
    for name in dataset.reported_splits:
        split = dataset.splits[name]
        logits = classifier.logits(split.texts, clean=False)
        write_predictions(folder, name, split.ids, split.labels, logits)
        metrics[name] = evaluate_logits(logits, split.labels)
        seen.append(audit_seen(dataset.splits["train"], split, logits.argmax(axis=1) == split.labels))
    audits = data_audits(dataset) + seen
    if isinstance(engine, TransformerEngine):
        last = dataset.splits[dataset.reported_splits[-1]]
        encoded = encode_split(last, engine.tokenizer, config.labelled_data.max_length)
        audits += audit_invariance(engine.model, encoded, pad_token_id=engine.model.config.pad_token_id or 0)
    latency: dict[str, LatencyRecord] = {}
    if machine.latency:
        reporter.stage(config.run_id, "timing")
        latency = time_classifier(classifier, dataset, config)
    return RunRecord(
        **run_facts(config, started),
        data=dataset.record(tokenizer),
        model=model_record,
        training=training,
        metrics=metrics,
        latency=latency,
        audits=audits,
    )


def _train(
    config: RunConfig, folder: Path, machine: Machine, reporter: Reporter
) -> tuple[TextDataset, TrainingRecord, ModelRecord, dict[str, Any]]:
    reporter.stage(config.run_id, "loading data")
    dataset = load_dataset(config.labelled_data, machine.data_root)
    if config.model == LINEAR:
        return _train_linear(config, dataset, folder)
    tokenizer = load_tokenizer(config.labelled_data, dataset, machine.data_root)
    transformers.set_seed(derive_seed(config.seed, "weights"))
    model = RecurraForSequenceClassification(model_configuration(config, dataset.label_names, len(tokenizer)))
    done = folder / TRAINING_NAME
    if done.exists() and (folder / MODEL_NAME).is_dir():
        training = TrainingRecord.model_validate(read_json(done))
    else:
        training = train_transformer(
            model.to(default_device()),
            _encode(dataset, "train", tokenizer, config, machine),
            _encode(dataset, dataset.selection_split, tokenizer, config, machine),
            config.protocol,
            folder=folder,
            seed=config.seed,
            precision=config.precision,
            reporter=reporter,
            mask_tokens=MaskTokens.of(tokenizer) if config.protocol.hides_tokens else None,
            auxiliary=_encode_auxiliary(dataset, tokenizer, config, machine),
        )
        keep_trained(folder, model, tokenizer, config.labelled_data.max_length, training)
    described = transformer_record(
        config.model,
        PRESETS[config.model][0] if config.model in PRESETS else "from a model file",
        model.config,
        Task.CLASSIFICATION,
        tokens=config.labelled_data.max_length,
        folder=folder,
    )
    return dataset, training, described, describe_tokenizer(tokenizer)


def _encode(dataset: TextDataset, name: str, tokenizer: Any, config: RunConfig, machine: Machine) -> EncodedSplit:
    return encode_split(dataset.splits[name], tokenizer, config.labelled_data.max_length, machine.cache_dir)


def _encode_auxiliary(dataset: TextDataset, tokenizer: Any, config: RunConfig, machine: Machine) -> EncodedSplit | None:
    if dataset.auxiliary is None or config.protocol.auxiliary_epochs == 0:
        return None
    return encode_split(dataset.auxiliary, tokenizer, config.labelled_data.max_length, machine.cache_dir)


def _train_linear(
    config: RunConfig, dataset: TextDataset, folder: Path
) -> tuple[TextDataset, TrainingRecord, ModelRecord, dict[str, Any]]:
    train, selection = dataset.splits["train"], dataset.splits[dataset.selection_split]
    start = time.perf_counter()
    linear = LinearClassifier.fit(
        train.texts,
        train.labels,
        num_labels=dataset.num_labels,
        seed=config.seed,
        selection=(selection.texts, selection.labels),
    )
    wall_s = time.perf_counter() - start
    save_model_folder(folder, linear.save)
    words = int(train.word_counts.sum())
    training = TrainingRecord(
        protocol=config.protocol.name,
        epochs=0,
        steps=0,
        best_epoch=0,
        wall_s=wall_s,
        tokens_per_s=words / wall_s,
        peak_memory_mib=peak_memory_mib(),
    )
    size = sum(path.stat().st_size for path in (folder / MODEL_NAME).iterdir())
    model = ModelRecord(
        preset=LINEAR,
        kind="linear",
        parameters=linear.num_parameters,
        embedding_parameters=0,
        non_embedding_parameters=linear.num_parameters,
        # Two n-grams start at each word, each one multiply-add a score.
        flops_per_token=4.0 * (dataset.num_labels if dataset.num_labels > 2 else 1),
        file_size_bytes=size,
        description=f"TF-IDF (1,2-grams) + logistic regression, C = {linear.inverse_regularisation:g}",
    )
    return dataset, training, model, {}


def latency_batches(texts: list[str], batch_size: int) -> list[list[str]]:
    """Texts of a whole split in batches of like length (by characters, which needs no tokenizer)."""
    ordered = sorted(texts, key=len)
    return [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]


def time_classifier(classifier: Classifier, dataset: TextDataset, config: RunConfig) -> dict[str, LatencyRecord]:
    """Times a classifier over the whole last reported split, at batch 1 and at the evaluation batch size."""
    texts = dataset.splits[dataset.reported_splits[-1]].texts
    device = str(default_device()) if config.model != LINEAR else "cpu"
    result: dict[str, LatencyRecord] = {}
    for batch_size in sorted({1, config.protocol.evaluation_batch_size}):
        result[f"batch_{batch_size}"] = measure_latency(
            lambda batch: classifier.logits(batch, clean=False),
            latency_batches(texts, batch_size),
            synchronise=synchroniser(device),
            threads=torch.get_num_threads(),
            precision=config.precision,
            device=device,
            scope="text",
        )
    return result
