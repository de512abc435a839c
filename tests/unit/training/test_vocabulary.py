"""Training only the reachable rows of the token table equals training the whole table; and hidden tokens.

Of these: which, how many, and that evaluation sees every word.
"""

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
from recurra.data.batching import Collator
from recurra.models.modeling import RecurraModel
from recurra.training.fit import train_transformer
from recurra.training.protocols import ProtocolConfig
from recurra.training.vocabulary import MaskTokens, drop_tokens, reachable_vocabulary
from tiny import tiny_model, tiny_split


def test_steps_on_the_narrow_table_are_those_on_the_whole_one() -> None:
    split = tiny_split(rows=16, vocab_size=40)
    # The words lie far apart in a large table, out of their order of first use.
    spread = replace(split, input_ids=(split.input_ids * 20 + 3).astype(np.int32))
    results = []
    for narrow in (False, True):
        model = tiny_model(vocab_size=1000, hidden_dropout=0.0).train()

        def steps(rows: object, model: torch.nn.Module = model) -> None:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
            batch = Collator(model.config.pad_token_id)(list(rows))  # type: ignore[call-overload]
            for _ in range(3):
                optimizer.zero_grad()
                model(**batch).loss.backward()
                optimizer.step()

        if narrow:
            with reachable_vocabulary(model, [spread]) as (rows,):
                assert model.get_input_embeddings().num_embeddings == len(np.unique(spread.input_ids)) + 1
                steps(rows)
        else:
            steps(spread)
        results.append(model.state_dict())
        assert model.get_input_embeddings().num_embeddings == 1000
        assert model.config.pad_token_id == 0
    for name, weight in results[0].items():
        torch.testing.assert_close(results[1][name], weight, rtol=1e-5, atol=1e-6)


def test_rows_that_are_not_reached_stay_as_they_were() -> None:
    split = tiny_split(rows=4, vocab_size=20)
    model = tiny_model(vocab_size=1000)
    before = model.get_input_embeddings().weight.detach().clone()
    with reachable_vocabulary(model, [split]), torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    after = model.get_input_embeddings().weight
    reached = np.unique(np.append(split.input_ids, 0))
    rest = np.setdiff1d(np.arange(1000), reached)
    assert torch.equal(after[rest], before[rest])
    assert torch.equal(after[reached], before[reached] + 1.0)


def test_a_table_that_is_almost_all_reached_is_left_alone() -> None:
    model, split = tiny_model(vocab_size=40), tiny_split(rows=200)
    table = model.get_input_embeddings()
    with reachable_vocabulary(model, [split]) as (rows,):
        assert rows is split
        assert model.get_input_embeddings() is table


# As in the rows of tests: 0 pads, 1 begins, 2 ends; 3 hides.
TOKENS = MaskTokens(mask=3, exempt=(0, 1, 2, 3))


def protocol(token_dropout: float) -> ProtocolConfig:
    settings = {"learning_rate": 1e-2, "batch_size": 16, "max_epochs": 1, "early_stopping_patience": 0}
    return ProtocolConfig(name="test", token_dropout=token_dropout, **settings)


def test_special_tokens_and_padding_are_never_hidden() -> None:
    ids = torch.randint(4, 40, (400, 20), generator=torch.Generator().manual_seed(1))
    ids[:, 0], ids[:, 9], ids[:, 10:12] = 1, 2, 0
    torch.manual_seed(0)
    dropped = drop_tokens(ids, 0.9, TOKENS)
    special = torch.isin(ids, torch.tensor(TOKENS.exempt))
    assert special.any() and torch.equal(dropped[special], ids[special])
    changed = dropped != ids
    assert (dropped[changed] == TOKENS.mask).all()
    assert float(changed.sum() / (~special).sum()) == pytest.approx(0.9, abs=0.02)


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
        tiny_model(), train, train, protocol(0.5),
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
        model, train, lacking, protocol(0.2),
        folder=tmp_path, seed=0, precision="fp32", reporter=Reporter(quiet=True), mask_tokens=TOKENS,
    )  # fmt: skip
    table = model.cpu().eval().get_input_embeddings().weight
    seen = np.union1d(train.input_ids, TOKENS.exempt)
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
    assert MaskTokens.of(unknown) == MaskTokens(mask=1, exempt=(0, 1, 2))
    neither = SimpleNamespace(mask_token_id=None, unk_token_id=None, all_special_ids=[0])
    with pytest.raises(ConfigurationError, match=r"the tokenizer has neither \[MASK\] nor \[UNK\].* set it to 0"):
        MaskTokens.of(neither)
