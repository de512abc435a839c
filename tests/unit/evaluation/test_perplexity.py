"""Perplexity and loss by position: against counts, a stock model's own loss, and a loop over the text."""

from __future__ import annotations

import itertools
import math
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from recurra.core.errors import ConfigurationError, RunError
from recurra.core.record import FINAL_HEAD
from recurra.data.language.tokenization import EncodedText
from recurra.evaluation.perplexity import (
    PositionLoss,
    evaluate_perplexity,
    loss_by_position,
    score_texts,
    scoring_windows,
)

VOCABULARY = 23


class Bigrams(nn.Module):
    """A model whose next-token probabilities are a table: its cross-entropy is known exactly."""

    def __init__(self, logits: torch.Tensor, exits: Any = None) -> None:
        super().__init__()
        self.table = nn.Parameter(logits)
        self.config = SimpleNamespace(vocab_size=len(logits), exits=[] if exits is None else [2, 4])
        self.exits = exits

    def forward(self, input_ids: torch.Tensor, **_: object) -> SimpleNamespace:
        logits = self.table[input_ids]
        early = None if self.exits is None else self.exits(logits)
        return SimpleNamespace(logits=logits, exit_logits=early)


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**sizes, initializer_range=0.4, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).eval()


def encoded(lengths: list[int], seed: int = 0) -> EncodedText:
    dice = np.random.default_rng(seed)
    ids = dice.integers(1, VOCABULARY, sum(lengths)).astype(np.int32)
    return EncodedText(ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), 0, words=50, num_bytes=300)


@given(lengths=st.lists(st.integers(0, 20), max_size=4), context=st.integers(1, 9), share=st.floats(0, 1))
def test_windows_score_each_token_once_with_the_most_before_it(lengths: list[int], context: int, share: float) -> None:
    stride = 1 + round(share * (context - 1))
    windows = list(scoring_windows(lengths, context, stride))
    scored = [(window.text, token) for window in windows for token in range(window.scored, window.end)]
    assert scored == [(text, token) for text, length in enumerate(lengths) for token in range(length)]
    for window in windows:
        assert window.tokens <= context and window.start % stride == 0
        for token in range(window.scored, window.end):
            assert token - window.start >= min(token, context - stride)


def test_bigrams_have_the_cross_entropy_of_their_counts() -> None:
    text = encoded([30, 0, 41, 7])
    stream = [0, *text.joined.tolist()]
    counts = torch.ones(VOCABULARY, VOCABULARY, dtype=torch.float64)
    for before, after in itertools.pairwise(stream):
        counts[before, after] += 1
    rows = counts.sum(1)
    exact = -sum(math.log(counts[a, b] / rows[a]) for a, b in itertools.pairwise(stream))
    model = Bigrams(counts.log())
    # A bigram model needs one token only, so that context and stride must not matter.
    for context, stride in ((1, 1), (8, None), (8, 3), (200, None)):
        result = evaluate_perplexity(model, text, context=context, stride=stride)[FINAL_HEAD]
        assert result.nats == pytest.approx(exact, rel=1e-12) and result.tokens == 30 + 41 + 7 + 4
    assert result.word_perplexity == pytest.approx(math.exp(exact / 50))
    assert result.bits_per_byte == pytest.approx(exact / math.log(2) / 300)
    assert result.token_perplexity == pytest.approx(math.exp(exact / result.tokens)) == math.exp(result.loss)


@torch.no_grad()
def test_blocks_are_what_the_stock_model_says_with_its_own_loss() -> None:
    model, text = gpt2(), encoded([25, 14, 30])
    stream = np.concatenate([[0], text.joined])
    nats = 0.0
    for start in range(0, len(stream) - 1, 8):
        block = torch.from_numpy(stream[start : start + 9].astype(np.int64))[None]
        nats += float(model(block, labels=block).loss) * (block.shape[1] - 1)
    assert evaluate_perplexity(model, text, context=8)[FINAL_HEAD].nats == pytest.approx(nats, rel=1e-5)


@pytest.mark.parametrize(("packed", "stride"), [(True, 3), (True, None), (False, None), (False, 2)])
def test_the_batch_changes_nothing_and_padding_is_not_counted(packed: bool, stride: int | None) -> None:
    model, text = gpt2(), encoded([25, 0, 14, 3, 1, 30])
    results = [
        evaluate_perplexity(model, text, context=8, stride=stride, packed=packed, batch_positions=positions)[FINAL_HEAD]
        for positions in (1, 20, 10_000)
    ]
    assert {result.tokens for result in results} == {len(text.joined)}
    assert [result.nats for result in results] == pytest.approx([results[0].nats] * 3, rel=1e-6)


def test_exits_are_scored_if_the_model_has_them() -> None:
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))
    model = Bigrams(table, exits=lambda logits: (logits * 0, logits * 0.5))
    text = encoded([20])
    results = evaluate_perplexity(model, text, context=8, exits=True)
    uniform, half, final = results.values()
    assert uniform.token_perplexity == pytest.approx(VOCABULARY, rel=1e-6)
    assert half.nats == pytest.approx(evaluate_perplexity(Bigrams(table * 0.5), text, context=8)[FINAL_HEAD].nats)
    assert final == evaluate_perplexity(model, text, context=8)[FINAL_HEAD]
    assert [*results] == ["exit-2", "exit-4", FINAL_HEAD]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"context": 0}, "context 0 is impossible; allowed: from 1"),
        ({"context": 33}, "context 33 is more than the model can read; allowed: 1 to 32"),
        ({"context": 8, "stride": 9}, "stride 9 is impossible; allowed: 1 to the context, 8"),
    ],
)
def test_impossible_windows(values: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        evaluate_perplexity(gpt2(), encoded([20]), **values)


def test_a_tokenizer_that_does_not_fit_and_a_broken_model() -> None:
    with pytest.raises(ConfigurationError, match="token 22 is unknown to the model, which has 5 tokens"):
        score_texts(Bigrams(torch.zeros(5, 5)), [np.array([3, 22])], first_read=0, context=4)
    with pytest.raises(RunError, match="not numbers"):
        score_texts(Bigrams(torch.full((5, 5), math.nan)), [np.array([3, 2])], first_read=0, context=4)


def test_the_logits_of_one_batch_are_held_at_a_time() -> None:
    alive: list[int] = []
    made: list[weakref.ref[torch.Tensor]] = []

    class Watched(Bigrams):
        def forward(self, input_ids: torch.Tensor, **_: object) -> SimpleNamespace:
            alive.append(sum(reference() is not None for reference in made))
            output = super().forward(input_ids)
            made.append(weakref.ref(output.logits))
            assert output.logits.shape[:2].numel() <= 16
            return output

    evaluate_perplexity(Watched(torch.zeros(VOCABULARY, VOCABULARY)), encoded([90]), context=8, batch_positions=16)
    assert len(made) > 4 and set(alive) == {0}


@torch.no_grad()
def naive(model: Any, text: np.ndarray, context: int, stride: int) -> dict[int, list[float]]:
    """Nats of each token by position: one call a token, the windows laid by hand."""
    read = [0, *text.tolist()]
    found: dict[int, list[float]] = {}
    for token in range(len(text)):
        start = 0
        while start + context <= token:
            start += stride
        logits = model(input_ids=torch.tensor([read[start : token + 1]])).logits[0, -1].double()
        found.setdefault(token - start, []).append(-float(logits.log_softmax(-1)[text[token]]))
    return found


@pytest.mark.parametrize(("packed", "stride"), [(True, None), (True, 3), (False, None), (False, 1)])
def test_each_position_has_the_mean_of_a_loop_over_the_text(packed: bool, stride: int | None) -> None:
    model, text = gpt2(), encoded([25, 0, 14, 3])
    texts = [text.joined] if packed else [text.text(index) for index in range(len(text))]
    expected: dict[int, list[float]] = {}
    for each in texts:
        for position, nats in naive(model, each, 8, stride or 8).items():
            expected.setdefault(position, []).extend(nats)
    result = evaluate_perplexity(model, text, context=8, stride=stride, packed=packed, by_position=True)[FINAL_HEAD]
    found = result.positions
    assert found is not None and len(found.loss) == len(found.tokens) == 8
    assert list(found.tokens) == [len(expected.get(position, [])) for position in range(8)]
    for position, loss in enumerate(found.loss):
        assert loss == (pytest.approx(np.mean(expected[position]), rel=1e-4) if position in expected else None)
    assert found.mean(slice(None)) == pytest.approx(result.loss)
    but_last = [nats for position in range(7) for nats in expected.get(position, [])]
    assert found.mean(slice(0, 7)) == pytest.approx(np.mean(but_last), rel=1e-4)


def test_a_position_without_tokens_has_no_loss_and_no_weight() -> None:
    found = loss_by_position(np.array([1.0, 3.0, 5.0]), np.array([2, 2, 0]), 4)
    assert found == PositionLoss((5.0, None, 2.0, None), (1, 0, 2, 0))
    assert (found.mean(slice(None)), found.mean(slice(1, 2)), found.mean(slice(1, None))) == (3.0, None, 2.0)
    assert found.plain() == {"loss": [5.0, None, 2.0, None], "tokens": [1, 0, 2, 0]}
