"""Fits words and characters beside a frozen encoder, and makes the model folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.progress import Reporter
from recurra.data.dataset import TextDataset
from recurra.data.encoding import encode_texts
from recurra.data.tokenization import read_tokenizer
from recurra.evaluation.encoder_states import cached_states
from recurra.models.adaptation.convert import load_encoder_weights
from recurra.models.adaptation.source import EncoderSource
from recurra.models.configuration import RecurraConfig
from recurra.models.controls import STATES_TOKENS
from recurra.models.controls.fitting import JoinedFit, fit_joined
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.models.presets import HeadKind, count_parameters, flops_per_token
from recurra.tasks.base import RunConfig, encoder_of
from recurra.tasks.labelling import labelled
from recurra.tasks.labelling.training import narrow_table
from recurra.tasks.run_folder import encoder_record
from recurra.tasks.study_data import Machine


def fit_run(
    config: RunConfig,
    dataset: TextDataset,
    machine: Machine,
    reporter: Reporter,
    weights: npt.NDArray[np.float32] | None = None,
) -> JoinedFit:
    """Fits the model of a run to its training rows, whose states are computed or read from the cache.

    Raises:
        DataError: If there is one class only, or no text has a word.
        RecurraError: If the encoder cannot be used.
    """
    source, train = _source(config), dataset.splits["train"]
    states = cached_states(
        source, train.texts, reporter, data=config.data.name, precision=config.precision, cache_dir=machine.cache_dir
    )
    return fit_joined(
        train.texts,
        train.labels,
        states,
        encoder=source.name,
        num_labels=dataset.num_labels,
        independent=train.labels.ndim == 2,
        seed=config.seed,
        weights=weights,
    )


def joined_model(
    config: RunConfig, fit: JoinedFit, dataset: TextDataset
) -> tuple[Callable[[Path], Any], dict[str, Any]]:
    """A function that writes the folder, a Transformer with a linear model beside it; and fields of its record."""
    source = _source(config)
    model = _classifier(source, fit, dataset.label_names, labelled(config.data).problem_type)
    full_tokenizer = read_tokenizer(source.folder)
    ids, _ = encode_texts(dataset.splits["train"].texts, full_tokenizer, STATES_TOKENS)
    tokenizer = narrow_table(model, full_tokenizer, ids)
    tokenizer.model_max_length = STATES_TOKENS

    def save(target: Path) -> None:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
        fit.words.save(target)

    counts = count_parameters(model.config, HeadKind.CLASSIFICATION)
    parameters = counts.total + fit.words.num_parameters
    word_flops = 2 * fit.words.features_per_word * len(fit.words.bias)
    return save, {
        "parameters": parameters,
        "embedding_parameters": counts.embeddings,
        "non_embedding_parameters": parameters - counts.embeddings,
        "flops_per_token": flops_per_token(model.config, STATES_TOKENS, HeadKind.CLASSIFICATION) + word_flops,
        "description": fit.words.description,
        "encoder": encoder_record(source),
    }


def _source(config: RunConfig) -> EncoderSource:
    source = encoder_of(config.model_overrides)
    assert source is not None
    return source


@torch.no_grad()
def _classifier(
    source: EncoderSource, fit: JoinedFit, label_names: Sequence[str], problem_type: str | None
) -> RecurraForSequenceClassification:
    """The encoder as it is, with the fitted weights of its states as the head."""
    changes = {
        "num_labels": len(label_names),
        "id2label": dict(enumerate(label_names)),
        "label2id": {name: index for index, name in enumerate(label_names)},
        "problem_type": problem_type,
        "pooling": "mean",
    }
    model = RecurraForSequenceClassification(RecurraConfig(**source.shape("", changes)))
    load_encoder_weights(model.model, source)
    model.classifier.weight.copy_(torch.from_numpy(fit.weight))
    model.classifier.bias.copy_(torch.from_numpy(fit.bias))
    return model.eval()
