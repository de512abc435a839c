"""Transformers that label texts: configured, trained or taken up, and measured on tokens. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from recurra.core.configuration import derive_seed
from recurra.core.files import read_json
from recurra.core.progress import Reporter
from recurra.core.record import AuditResult, EncoderRecord, ModelRecord, TrainingRecord
from recurra.core.sealed import MODEL_NAME
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.encoding import EncodedSplit, encode_split
from recurra.data.splits import stratified_fraction
from recurra.data.tokenization import load_tokenizer, read_tokenizer
from recurra.data.vocabulary import MODEL_MAX_LENGTH, describe_tokenizer
from recurra.evaluation.audits.registry import Subject, run_audits
from recurra.models.adaptation.convert import load_encoder_weights
from recurra.models.adaptation.source import EncoderSource
from recurra.models.configuration import RecurraConfig
from recurra.models.foreign import ForeignForSequenceClassification
from recurra.models.inference import default_device
from recurra.models.loading import load_foreign_weights
from recurra.models.modeling import SEVERAL_LABELS, RecurraForSequenceClassification
from recurra.models.names import PRESETS
from recurra.models.presets import HeadKind, count_parameters, forward_flops
from recurra.models.presets import preset as preset_configuration
from recurra.tasks.base import DataCost
from recurra.tasks.labelling.configuration import model_configuration
from recurra.tasks.labelling.data import labelled
from recurra.tasks.labelling.teacher import Lesson, taught_rows
from recurra.tasks.machine import Machine
from recurra.tasks.profile import METHOD, PLAN, check_method, encoder_of
from recurra.tasks.run_folder import TRAINING_NAME, keep_trained, transformer_record
from recurra.tasks.runs import RunConfig
from recurra.training.fit import train_transformer
from recurra.training.setfit import reads_of_a_row, train_by_setfit, version
from recurra.training.vocabulary import MaskTokens

_PROBE_ROWS = 64
# Of a vocabulary of 30,000, what some thousand sentences use (docs/decisions/0005-reachable-vocabulary.md).
_REACHED_PIECES = 8_192
_PROBE_TOKENS = 40


def train_model(
    config: RunConfig,
    dataset: TextDataset,
    folder: Path,
    machine: Machine,
    reporter: Reporter,
    *,
    weights: npt.NDArray[np.float32] | None,
    lesson: Lesson | None,
) -> tuple[TrainingRecord, ModelRecord, dict[str, Any], Lesson | None]:
    """Trains a Transformer, or takes up what an interrupted run left; see `recurra.tasks.labelling.training`.

    Returns:
        How it went, what was trained, its tokenizer, and the lesson of its teachers.
    """
    source, plan = encoder_of(config.model_overrides), str(config.model_overrides.get(PLAN, ""))
    if source is None:
        tokenizer = load_tokenizer(labelled(config.data), dataset, machine.data_root)
    else:
        tokenizer = read_tokenizer(source.folder)
    transformers.set_seed(derive_seed(config.seed, "weights"))
    model = classifier_of(model_configuration(config, dataset.label_names, len(tokenizer)))
    train = _encode(dataset.splits["train"], tokenizer, config, machine).weighed(weights)
    if source is not None and source.is_foreign:
        load_foreign_weights(model, source)
    elif source is not None:
        load_encoder_weights(model.model, source, plan, torch.from_numpy(train.input_ids))
    rows = train
    if lesson is not None:
        unlabelled = None if dataset.unlabelled is None else _encode(dataset.unlabelled, tokenizer, config, machine)
        rows, lesson = taught_rows(
            config,
            lesson,
            train,
            unlabelled,
            plan=None if source is None or source.is_adapted or source.is_foreign else source.plan(plan),
            cache_dir=machine.cache_dir,
            reporter=reporter,
        )
    done = folder / TRAINING_NAME
    if done.exists() and (folder / MODEL_NAME).is_dir():
        training = TrainingRecord.model_validate(read_json(done))
    elif METHOD in config.model_overrides:
        check_method(config.model_overrides)
        assert source is not None
        split = dataset.splits["train"]
        training = train_by_setfit(
            model,
            source,
            split.texts,
            split.labels,
            max_length=labelled(config.data).max_length,
            seed=config.seed,
            protocol=config.protocol.name,
            reporter=reporter,
        )
        keep_trained(folder, model, tokenizer, labelled(config.data).max_length, training)
    else:
        training = train_transformer(
            model.to(default_device()),
            rows,
            _encode(_selection(dataset, config), tokenizer, config, machine),
            config.protocol,
            folder=folder,
            seed=config.seed,
            precision=config.precision,
            reporter=reporter,
            mask_tokens=MaskTokens.of(tokenizer) if config.protocol.hides_tokens else None,
            auxiliary=None
            if dataset.auxiliary is None or not config.protocol.auxiliary_epochs
            else _encode(dataset.auxiliary, tokenizer, config, machine).weighed(None),
        )
        keep_trained(folder, model, tokenizer, labelled(config.data).max_length, training)
    described = transformer_record(
        config.model,
        _describe(config, source, plan),
        model.config,
        HeadKind.CLASSIFICATION,
        tokens=labelled(config.data).max_length,
        folder=folder,
        encoder=None if source is None else _encoder_record(source, plan),
    )
    return training, described, describe_tokenizer(tokenizer), lesson


def _describe(config: RunConfig, source: EncoderSource | None, plan: str) -> str:
    if config.model_overrides.get(METHOD) is not None:
        return f"the encoder {source.name}, trained by SetFit {version()}" if source is not None else ""
    if source is not None:
        return f"the encoder {source.name}, layers {source.plan(plan)}"
    return PRESETS[config.model][0] if config.model in PRESETS else "from a model file"


def _encoder_record(source: EncoderSource, plan: str) -> EncoderRecord:
    return EncoderRecord(
        name=source.name,
        sha256=source.sha256,
        plan=str(source.plan(plan)),
        layers=source.num_layers,
        licence=source.licence,
        trained_on=source.trained_on,
    )


def _encode(split: TextSplit, tokenizer: Any, config: RunConfig, machine: Machine) -> EncodedSplit:
    data = labelled(config.data)
    return encode_split(split, tokenizer, data.max_length, machine.cache_dir, windows=data.windows)


def _selection(dataset: TextDataset, config: RunConfig) -> TextSplit:
    """Rows that choose the epoch."""
    split = dataset.splits[dataset.selection_split]
    most = config.protocol.selection_rows
    if 0 < most < len(split):
        return stratified_fraction(split, most / len(split), labelled(config.data).split_seed)
    return split


def classifier_of(config: Any) -> Any:
    """A classifier with new weights, over layers of ours or of transformers."""
    ours = isinstance(config, RecurraConfig)
    return RecurraForSequenceClassification(config) if ours else ForeignForSequenceClassification(config)


def new_model(preset: str, overrides: Mapping[str, Any]) -> RecurraForSequenceClassification:
    """A classifier of a preset with new weights."""
    return RecurraForSequenceClassification(preset_configuration(preset, **overrides)).eval()


def audit_model(model: Any, seed: int) -> list[AuditResult]:
    """Invariance to padding and to neighbours, on random tokens."""
    config = model.config
    rng = np.random.default_rng(derive_seed(seed, "audit", "tokens"))
    longest = min(_PROBE_TOKENS, int(config.max_position_embeddings))
    lengths = rng.integers(min(3, longest), longest + 1, _PROBE_ROWS)
    rows = [{"input_ids": rng.integers(1, config.vocab_size, length)} for length in lengths]
    return run_audits(Subject.CLASSIFIER, model, rows, pad_token_id=config.pad_token_id or 0, seed=seed)


def audit_run(engine: Any, dataset: TextDataset, split: TextSplit, longest: int, windows: Any) -> list[AuditResult]:
    """What tokens and padding do to a trained model."""
    most = min(int(engine.model.config.max_position_embeddings), MODEL_MAX_LENGTH)
    audits = run_audits(Subject.TOKENS, dataset, engine.tokenizer, longest, most, windows)
    encoded = encode_split(split, engine.tokenizer, longest)
    pad_token_id = engine.model.config.pad_token_id or 0
    return audits + run_audits(Subject.CLASSIFIER, engine.model, encoded, pad_token_id=pad_token_id, seed=0)


def declared_parameters(model: Any) -> int | None:
    """Of ours, what the accounting says."""
    if not isinstance(model, RecurraForSequenceClassification):
        return None
    return count_parameters(model.config, HeadKind.CLASSIFICATION).total


def sample_step(config: RunConfig, length: int) -> tuple[Any, float, Any]:
    """A classifier of two labels, with as much of its token table as texts reach: no more of it is trained."""
    shape = model_configuration(config, ["0", "1"], None)
    if isinstance(shape, RecurraConfig):
        shape.vocab_size = min(shape.vocab_size, _REACHED_PIECES)
    labels = torch.arange(config.protocol.batch_size) % 2
    if shape.problem_type == SEVERAL_LABELS:
        labels = torch.stack([1 - labels, labels], dim=1).float()
    return classifier_of(shape), forward_flops(shape, length), labels


def epoch_flops(config: RunConfig, lengths: Mapping[str, int], data: DataCost) -> float:
    """Operations of the forward passes over rows of these lengths."""
    shape = model_configuration(config, data.label_names, None)
    once = float(sum(rows * forward_flops(shape, int(length)) for length, rows in lengths.items()))
    return once * reads_of_a_row(sum(lengths.values())) if METHOD in config.model_overrides else once
