"""Trains Transformers that label texts, or resumes their training. Imports torch."""

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
from recurra.core.record import TrainingRecord
from recurra.core.sealed import MODEL_NAME
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.encoding import EncodedSplit, encode_split
from recurra.data.splits import stratified_fraction
from recurra.data.tokenization import describe_tokenizer, load_tokenizer, read_tokenizer
from recurra.models.adaptation.convert import load_encoder_weights
from recurra.models.adaptation.source import EncoderSource
from recurra.models.configuration import RecurraConfig
from recurra.models.foreign import ForeignForSequenceClassification
from recurra.models.loading import load_foreign_weights
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.models.names import PRESETS
from recurra.models.presets import HeadKind
from recurra.tasks.base import METHOD, PLAN, RunConfig, check_method, encoder_of
from recurra.tasks.labelling import labelled
from recurra.tasks.labelling.configuration import model_configuration
from recurra.tasks.labelling.teacher import taught_rows
from recurra.tasks.labelling.training import Trained, narrow_table, prepare_training
from recurra.tasks.run_folder import TRAINING_NAME, encoder_record, keep_trained, transformer_record
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
    """Trains a Transformer and saves it with its tokenizer, or resumes an interrupted run.

    ``weights`` multiply the loss of each training row, ``(rows,)``, with a mean of 1; None weighs all rows alike.
    """
    dataset, weights, lesson = prepare_training(config, folder, data, reporter, weights)
    rows, cache_dir, protocol = labelled(config.data), data.machine.cache_dir, config.protocol
    source, plan = encoder_of(config.model_overrides), str(config.model_overrides.get(PLAN, ""))
    if source is None:
        tokenizer = load_tokenizer(rows, dataset, data.machine.data_root)
    else:
        tokenizer = read_tokenizer(source.folder)

    def encode(split: TextSplit) -> EncodedSplit:
        return encode_split(split, tokenizer, rows.max_length, cache_dir, windows=rows.windows)

    transformers.set_seed(derive_seed(config.seed, "weights"))
    model = classifier_of(model_configuration(config, dataset.label_names, len(tokenizer)))
    train = encode(dataset.splits["train"])
    training_file = folder / TRAINING_NAME
    is_trained = training_file.exists() and (folder / MODEL_NAME).is_dir()
    training = TrainingRecord.model_validate(read_json(training_file)) if is_trained else None
    if source is not None and source.is_foreign:
        load_foreign_weights(model, source)
    elif source is not None:
        load_encoder_weights(model.model, source, plan, torch.from_numpy(train.input_ids))
        if training is None and METHOD in config.model_overrides:
            # Its package trains the whole table, which is cut down afterwards.
            check_method(config.model_overrides)
            training = train_by_setfit(
                model,
                source,
                _windows(dataset.splits["train"], train, tokenizer),
                max_length=rows.max_length,
                seed=config.seed,
                protocol=protocol.name,
                reporter=reporter,
            )
        narrower = narrow_table(model, tokenizer, train.input_ids)
        if narrower is not tokenizer:
            tokenizer = narrower
            train = encode(dataset.splits["train"])
    training_rows = train = train.weighed(weights)
    if lesson is not None:
        training_rows, lesson = taught_rows(
            config,
            lesson,
            train,
            None if dataset.unlabelled is None else encode(dataset.unlabelled),
            plan=None if source is None or source.is_adapted or source.is_foreign else source.plan(plan),
            tokenizer=tokenizer,
        )
    if training is None:
        auxiliary = dataset.auxiliary if protocol.auxiliary_epochs else None
        training = train_transformer(
            model,
            training_rows,
            encode(_selection(dataset, config)),
            protocol,
            folder=folder,
            seed=config.seed,
            precision=config.precision,
            reporter=reporter,
            mask_tokens=MaskTokens.of(tokenizer) if protocol.token_dropout else None,
            auxiliary=None if auxiliary is None else encode(auxiliary).weighed(None),
        )
    if not is_trained:
        keep_trained(folder, model, tokenizer, rows.max_length, training)
    model_record = transformer_record(
        config.model,
        _describe(config, source, plan),
        model.config,
        HeadKind.CLASSIFICATION,
        tokens=rows.max_length,
        folder=folder,
        encoder=None if source is None else encoder_record(source, plan),
    )
    return Trained(dataset, training, model_record, describe_tokenizer(tokenizer), lesson)


def _describe(config: RunConfig, source: EncoderSource | None, plan: str) -> str:
    if source is None:
        return PRESETS[config.model][0] if config.model in PRESETS else "from a model file"
    how = f"trained by SetFit {version()}" if METHOD in config.model_overrides else f"layers {source.plan(plan)}"
    return f"the encoder {source.name}, {how}"


def _selection(dataset: TextDataset, config: RunConfig) -> TextSplit:
    """Rows that choose the epoch."""
    split, most_rows = dataset.splits[dataset.selection_split], config.protocol.selection_rows
    share = min(most_rows / len(split), 1) if most_rows else 1
    return stratified_fraction(split, share, labelled(config.data).split_seed)


def _windows(split: TextSplit, encoded: EncodedSplit, tokenizer: Any) -> TextSplit:
    """Rows for a package that reads texts: if some are cut into windows, the decoded text of each window is a row."""
    if encoded.window_counts is None:
        return split
    ids = np.split(encoded.input_ids, encoded.offsets[1:-1])
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return TextSplit(split.name, texts, encoded.labels, list(map(str, range(len(texts)))))


def classifier_of(config: Any) -> Any:
    """A classifier with new weights, with our layers or those of transformers."""
    is_ours = isinstance(config, RecurraConfig)
    return RecurraForSequenceClassification(config) if is_ours else ForeignForSequenceClassification(config)
