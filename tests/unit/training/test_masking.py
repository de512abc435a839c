"""Hidden tokens: which, how many, and that evaluation sees every word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from recurra.core.errors import ConfigurationError
from recurra.core.progress import Reporter
from recurra.models.modeling import RecurraModel
from recurra.training.fit import train_transformer
from recurra.training.protocols import ProtocolConfig
from recurra.training.vocabulary import MaskTokens, drop_tokens
from tiny import tiny_model, tiny_split

# As in the rows of tests: 0 pads, 1 begins, 2 ends; 3 hides.
TOKENS = MaskTokens(mask=3, kept=(0, 1, 2, 3))


def batch(rows: int = 400, tokens: int = 20) -> torch.Tensor:
    ids = torch.randint(4, 40, (rows, tokens), generator=torch.Generator().manual_seed(1))
    ids[:, 0], ids[:, 9], ids[:, 10:12], ids[:, 12:] = 1, 2, 0, ids[:, 12:]
    return ids


def protocol(**values: Any) -> ProtocolConfig:
    settings = {"learning_rate": 1e-2, "batch_size": 16, "max_epochs": 1, "early_stopping_patience": 0}
    return ProtocolConfig(**{"name": "test", **settings, **values})


def test_special_tokens_and_padding_are_never_hidden() -> None:
    ids = batch()
    torch.manual_seed(0)
    dropped = drop_tokens(ids, 0.9, TOKENS)
    special = torch.isin(ids, torch.tensor(TOKENS.kept))
    assert special.any() and torch.equal(dropped[special], ids[special])
    changed = dropped != ids
    assert (dropped[changed] == TOKENS.mask).all()
    share = changed.sum() / (~special).sum()
    assert float(share) == pytest.approx(0.9, abs=0.02)


def watch_inputs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, torch.Tensor]]:
    """Keeps what the network is given, and whether it was training."""
    seen: list[tuple[bool, torch.Tensor]] = []
    forward = RecurraModel.forward

    def watched(self: RecurraModel, input_ids: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        seen.append((self.training, input_ids.clone()))
        return forward(self, input_ids, *arguments, **keywords)

    monkeypatch.setattr(RecurraModel, "forward", watched)
    return seen


def test_training_hides_tokens_and_evaluation_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch_inputs(monkeypatch)
    train = tiny_split(rows=64, seed=1)
    train = replace(train, input_ids=np.where(train.input_ids == 3, 4, train.input_ids).astype(np.int32))
    train_transformer(
        tiny_model(), train, train, protocol(token_dropout=0.5),
        folder=tmp_path, seed=0, precision="fp32", reporter=Reporter(quiet=True), mask_tokens=TOKENS,
    )  # fmt: skip
    trained = torch.cat([ids.flatten() for training, ids in seen if training])
    evaluated = torch.cat([ids.flatten() for training, ids in seen if not training])
    assert 0.4 < float((trained[trained > 2] == 3).float().mean()) < 0.6
    assert not (evaluated == 3).any()
    rows = len(train)
    for token in (1, 2):
        assert int((trained == token).sum()) == int((evaluated == token).sum()) == rows


@pytest.mark.parametrize("vocab_size", [60, 1000], ids=["whole table", "narrowed table"])
def test_a_word_that_training_lacks_reads_as_the_mask(vocab_size: int, tmp_path: Path) -> None:
    model = tiny_model(vocab_size=vocab_size)
    train = tiny_split(rows=64, seed=1, vocab_size=50)
    selection = tiny_split(rows=32, seed=2, vocab_size=50)
    lacking = replace(
        selection, input_ids=np.where(selection.input_ids == 30, 55, selection.input_ids).astype(np.int32)
    )
    record = train_transformer(
        model, train, lacking, protocol(token_dropout=0.2),
        folder=tmp_path, seed=0, precision="fp32", reporter=Reporter(quiet=True), mask_tokens=TOKENS,
    )  # fmt: skip
    table = model.cpu().eval().get_input_embeddings().weight
    seen = np.union1d(train.input_ids, TOKENS.kept)
    unseen = np.setdiff1d(np.arange(vocab_size), seen)
    assert 55 in unseen
    assert torch.equal(table[unseen], table[3].expand(len(unseen), -1))
    assert not (table[seen[seen > 3]] == table[3]).all(dim=1).any()
    assert torch.equal(table[0], torch.zeros_like(table[0]))
    right = [
        int(model(torch.tensor(row["input_ids"][None].astype("int64"))).logits.argmax()) == row["labels"]
        for row in (lacking[index] for index in range(len(lacking)))
    ]
    assert np.mean(right) == pytest.approx(record.history[0].validation_accuracy)


def test_without_a_mask_the_unknown_word_hides_and_without_either_it_is_one_clear_line() -> None:
    unknown = SimpleNamespace(mask_token_id=None, unk_token_id=1, all_special_ids=[0, 1, 2])
    assert MaskTokens.of(unknown) == MaskTokens(mask=1, kept=(0, 1, 2))
    neither = SimpleNamespace(mask_token_id=None, unk_token_id=None, all_special_ids=[0])
    with pytest.raises(ConfigurationError, match=r"the tokenizer has neither \[MASK\] nor \[UNK\].* set it to 0"):
        MaskTokens.of(neither)
