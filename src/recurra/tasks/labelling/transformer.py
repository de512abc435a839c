"""Transformers that label texts: configured, trained or taken up, and measured on tokens. Imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from recurra.core.configuration import derive_seed
from recurra.core.files import read_json
from recurra.core.progress import Reporter
from recurra.core.record import EncoderRecord, TrainingRecord
from recurra.core.sealed import MODEL_NAME
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.encoding import EncodedSplit, encode_split
from recurra.data.splits import stratified_fraction
from recurra.data.tokenization import load_tokenizer, read_tokenizer
from recurra.data.vocabulary import describe_tokenizer
from recurra.models.adaptation.convert import load_encoder_weights
from recurra.models.adaptation.source import EncoderSource
from recurra.models.configuration import RecurraConfig
from recurra.models.foreign import ForeignForSequenceClassification
from recurra.models.loading import load_foreign_weights
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.models.names import PRESETS
from recurra.models.presets import HeadKind
from recurra.tasks.labelling.configuration import model_configuration
from recurra.tasks.labelling.data import labelled
from recurra.tasks.labelling.teacher import taught_rows
from recurra.tasks.labelling.training import Trained, narrow_table, prepare_training
from recurra.tasks.machine import Machine
from recurra.tasks.profile import METHOD, PLAN, check_method, encoder_of
from recurra.tasks.run_folder import TRAINING_NAME, keep_trained, transformer_record
from recurra.tasks.runs import RunConfig
from recurra.tasks.study_data import StudyData
from recurra.training.fit import train_transformer
from recurra.training.setfit import train_by_setfit, version
from recurra.training.vocabulary import MaskTokens


def train_model(
    config: RunConfig,
    folder: Path,
    data: StudyData,
    reporter: Reporter,
    *,
    weights: npt.NDArray[np.float32] | None = None,
) -> Trained:
    """Trains a Transformer and saves it with its tokenizer, or takes up what an interrupted run left.

    ``weights`` say what the loss of each training row counts, ``(rows,)``, with a mean of 1; none counts all alike.
    """
    dataset, weights, lesson = prepare_training(config, folder, data, reporter, weights)
    machine = data.machine
    source, plan = encoder_of(config.model_overrides), str(config.model_overrides.get(PLAN, ""))
    if source is None:
        tokenizer = load_tokenizer(labelled(config.data), dataset, machine.data_root)
    else:
        tokenizer = read_tokenizer(source.folder)
    transformers.set_seed(derive_seed(config.seed, "weights"))
    model = classifier_of(model_configuration(config, dataset.label_names, len(tokenizer)))
    train = _encode(dataset.splits["train"], tokenizer, config, machine)
    if source is not None and source.is_foreign:
        load_foreign_weights(model, source)
    elif source is not None:
        load_encoder_weights(model.model, source, plan, torch.from_numpy(train.input_ids))
        narrower = narrow_table(model, tokenizer, train.input_ids)
        if narrower is not tokenizer:
            tokenizer, train = narrower, _encode(dataset.splits["train"], narrower, config, machine)
    rows = train = train.weighed(weights)
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
            model,
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
    return Trained(dataset, training, described, describe_tokenizer(tokenizer), lesson)


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
