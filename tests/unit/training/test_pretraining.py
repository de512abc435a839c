"""Masked-token prediction before the classifier: on which rows, with which loss, and that it teaches something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from recurra.core.progress import Reporter
from recurra.data.encoding import EncodedSplit
from recurra.training.fit import stage_arguments, train_transformer
from recurra.training.protocols import ProtocolConfig
from recurra.training.stages import MaskedTokenTrainer, RecurraForMaskedTokens, pretrain
from recurra.training.trainer import RecurraTrainer
from recurra.training.vocabulary import NOT_GUESSED, MaskTokens
from tiny import stir, tiny_model, tiny_split

TOKENS = MaskTokens(mask=3, kept=(0, 1, 2, 3))


def protocol(**values: Any) -> ProtocolConfig:
    settings = {"learning_rate": 5e-3, "batch_size": 16, "max_epochs": 1, "early_stopping_patience": 0}
    return ProtocolConfig(**{"name": "test", **settings, "pretraining_epochs": 2, **values})


def train(folder: Path, chosen: ProtocolConfig, rows: EncodedSplit, selection: EncodedSplit, **keywords: Any) -> Any:
    model = tiny_model()
    train_transformer(
        model, rows, selection, chosen, folder=folder, seed=0, precision="fp32",
        reporter=keywords.get("reporter", Reporter(quiet=True)), mask_tokens=TOKENS,
    )  # fmt: skip
    return model


def test_the_loss_is_the_mean_over_the_words_to_guess() -> None:
    torch.manual_seed(0)
    model = RecurraForMaskedTokens(tiny_model(hidden_dropout=0.0, embedding_size=8).model).double()
    stir(model)
    ids = torch.randint(4, 40, (3, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    labels = torch.full_like(ids, NOT_GUESSED)
    labels[0, 2], labels[1, 4], labels[2, 0] = 17, 5, 30
    states = model.model(ids, mask).last_hidden_state
    losses = []
    for row, place in ((0, 2), (1, 4), (2, 0)):
        hidden = functional.gelu(model.transform.weight @ states[row, place] + model.transform.bias)
        scores = model.model.embeddings.token.weight @ hidden + model.bias
        # The head computes its loss in FP32.
        losses.append(scores.logsumexp(0) - scores[labels[row, place]])
    torch.testing.assert_close(model(ids, mask, labels).loss.double(), sum(losses) / 3, rtol=1e-5, atol=1e-6)


def test_only_the_longest_training_rows_are_read_and_no_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[tuple[str, EncodedSplit]] = []
    inner = RecurraTrainer.__init__

    def watched(self: Any, **keywords: Any) -> None:
        fed.append((type(self).__name__, keywords["train_dataset"]))
        assert (keywords.get("eval_dataset") is None) == isinstance(self, MaskedTokenTrainer)
        inner(self, **keywords)

    monkeypatch.setattr(RecurraTrainer, "__init__", watched)
    whole = tiny_split(rows=24, seed=1)
    parts = [row for row in (whole[index]["input_ids"] for index in range(24)) if len(row) > 5]
    pieces = [whole[index]["input_ids"] for index in range(24)] + [np.array([1, *row[2:4], 2]) for row in parts]
    rows = EncodedSplit(
        np.concatenate(pieces).astype(np.int32),
        np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64),
        np.arange(len(pieces), dtype=np.int64) % 2,
    )
    train(tmp_path, protocol(), rows, tiny_split(rows=16, seed=9))
    (first, pretrained), (second, trained) = fed
    assert (first, second) == ("MaskedTokenTrainer", "RecurraTrainer")
    assert len(trained) == len(pieces) and 0 < len(pretrained) <= 24

    other = replace(rows, labels=1 - rows.labels)
    weights = []
    for number, labelled in enumerate((rows, other)):
        torch.manual_seed(0)
        model = tiny_model()
        arguments = stage_arguments("pretraining", protocol(), tmp_path / str(number), seed=0, precision="fp32")
        pretrain(model, labelled, TOKENS, arguments, seed=0, reporter=Reporter(quiet=True))
        weights.append(model.model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_pretraining_changes_the_encoder_and_not_the_classifier(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = tiny_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    arguments = stage_arguments("pretraining", protocol(), tmp_path, seed=0, precision="fp32")
    assert not pretrain(model, tiny_split(rows=48, seed=1), TOKENS, arguments, seed=0, reporter=Reporter(quiet=True))
    after = model.state_dict()
    assert torch.equal(after["classifier.weight"], before["classifier.weight"])
    assert not torch.equal(after["model.embeddings.token.weight"], before["model.embeddings.token.weight"])
    # A second time there is nothing to do but to take up what is done.
    again = tiny_model(seed=5)
    assert pretrain(again, tiny_split(rows=48, seed=1), TOKENS, arguments, seed=0, reporter=Reporter(quiet=True))
    assert all(
        torch.equal(again.model.state_dict()[name], model.model.state_dict()[name]) for name in again.model.state_dict()
    )
