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
from recurra.data.batching import Collator
from recurra.data.encoding import EncodedSplit
from recurra.models.modeling import RecurraModel
from recurra.training.vocabulary import MaskTokens, drop_tokens, reachable_vocabulary
from tiny import tiny_model, tiny_protocol, tiny_split, train_quietly

# As in the rows of tests: 0 pads, 1 begins, 2 ends; 3 hides.
TOKENS = MaskTokens(mask=3, exempt=(0, 1, 2, 3))


def with_token(split: EncodedSplit, old: int, new: int) -> EncodedSplit:
    """The rows with another token in place of one."""
    return replace(split, input_ids=np.where(split.input_ids == old, new, split.input_ids).astype(np.int32))


def test_steps_on_the_narrow_table_are_those_on_the_whole_one() -> None:
    split = tiny_split(rows=16, vocab_size=40)
    # The words lie far apart in a large table, out of their order of first use.
    spread = replace(split, input_ids=(split.input_ids * 20 + 3).astype(np.int32))

    def steps(model: Any, rows: Any) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
        batch = Collator(model.config.pad_token_id)(list(rows))
        for _ in range(3):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()

    whole, narrow = (tiny_model(vocab_size=1000, hidden_dropout=0.0).train() for _ in range(2))
    steps(whole, spread)
    with reachable_vocabulary(narrow, [spread]) as (rows,):
        assert narrow.get_input_embeddings().num_embeddings == len(np.unique(spread.input_ids)) + 1
        steps(narrow, rows)
    assert narrow.get_input_embeddings().num_embeddings == 1000
    assert narrow.config.pad_token_id == 0
    torch.testing.assert_close(narrow.state_dict(), whole.state_dict(), rtol=1e-5, atol=1e-6)


def test_a_table_that_is_almost_all_reached_is_left_alone() -> None:
    model, split = tiny_model(vocab_size=40), tiny_split(rows=200)
    table = model.get_input_embeddings()
    with reachable_vocabulary(model, [split]) as (rows,):
        assert rows is split
        assert model.get_input_embeddings() is table


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


def test_training_hides_tokens_and_evaluation_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What the network is given, by whether it was training.
    seen: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    forward = RecurraModel.forward

    def watched(self: RecurraModel, input_ids: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        seen[self.training].append(input_ids.flatten())
        return forward(self, input_ids, *arguments, **keywords)

    monkeypatch.setattr(RecurraModel, "forward", watched)
    train = with_token(tiny_split(rows=64, seed=1), 3, 4)
    chosen = tiny_protocol(max_epochs=1, token_dropout=0.5)
    train_quietly(tmp_path, tiny_model(), chosen, train, train, mask_tokens=TOKENS)
    trained, evaluated = (torch.cat(seen[training]) for training in (True, False))
    assert 0.4 < float((trained[trained > 2] == 3).float().mean()) < 0.6
    assert not (evaluated == 3).any()
    for token in (1, 2):
        assert int((trained == token).sum()) == int((evaluated == token).sum()) == len(train)


@pytest.mark.parametrize("vocab_size", [60, 1000], ids=["whole table", "narrowed table"])
def test_a_word_that_training_lacks_reads_as_the_mask(vocab_size: int, tmp_path: Path) -> None:
    model = tiny_model(vocab_size=vocab_size)
    train = tiny_split(rows=64, seed=1, vocab_size=50)
    lacking = with_token(tiny_split(rows=32, seed=2, vocab_size=50), 30, 55)
    chosen = tiny_protocol(learning_rate=1e-2, max_epochs=1, token_dropout=0.2)
    record = train_quietly(tmp_path, model, chosen, train, lacking, mask_tokens=TOKENS)
    table = model.cpu().eval().get_input_embeddings().weight
    seen = np.union1d(train.input_ids, TOKENS.exempt)
    unseen = np.setdiff1d(np.arange(vocab_size), seen)
    assert 55 in unseen
    assert torch.equal(table[unseen], table[3].expand(len(unseen), -1))
    assert not (table[seen[seen > 3]] == table[3]).all(dim=1).any()
    assert torch.equal(table[0], torch.zeros_like(table[0]))
    right = [
        int(model(torch.tensor(row["input_ids"][None].astype("int64"))).logits.argmax()) == row["labels"]
        for row in lacking.__getitems__(range(32))
    ]
    assert np.mean(right) == pytest.approx(record.history[0].validation_accuracy)


def test_without_a_mask_the_unknown_word_hides_and_without_either_it_is_one_clear_line() -> None:
    unknown = SimpleNamespace(mask_token_id=None, unk_token_id=1, all_special_ids=[0, 1, 2])
    assert MaskTokens.of(unknown) == MaskTokens(mask=1, exempt=(0, 1, 2))
    neither = SimpleNamespace(mask_token_id=None, unk_token_id=None, all_special_ids=[0])
    with pytest.raises(ConfigurationError, match=r"the tokenizer has neither \[MASK\] nor \[UNK\].* set it to 0"):
        MaskTokens.of(neither)
