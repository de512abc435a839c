"""Training only the reachable rows of the token table equals training the whole table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from recurra.data.batching import Collator
from recurra.training.vocabulary import reachable_vocabulary
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
