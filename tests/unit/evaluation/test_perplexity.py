"""Perplexity, loss by position and loss under exit rules: against counts, and loops over the text token by token."""

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
from transformers import GPT2LMHeadModel

from foreign import tiny_gpt2
from recurra import RecurraForCausalLM
from recurra.core.errors import ConfigurationError, RunError
from recurra.core.record import FINAL_HEAD
from recurra.data.language.tokenization import EncodedText
from recurra.evaluation.perplexity import (
    PositionLoss,
    calibrate_language,
    loss_by_position,
    measure_text,
    score_texts,
    score_token_exits,
    scoring_windows,
)
from recurra.models.cache import RecurraCache
from recurra.models.exits.rules import ConfidenceRule, ExitRule, FixedExit, confidence
from tiny import language_model, stir

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
    return tiny_gpt2(vocab_size=VOCABULARY, n_positions=32).eval()


def encoded(lengths: list[int]) -> EncodedText:
    ids = np.random.default_rng(0).integers(1, VOCABULARY, sum(lengths)).astype(np.int32)
    return EncodedText(ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), 0, words=50, num_bytes=300)


def measured(model: Any, text: EncodedText, context: int, *, mode: str = "packed", **how: Any) -> Any:
    how = {"lossless": True, "precision": "fp32", **how}
    return measure_text(model, text, SimpleNamespace(context=context, mode=mode), **how)  # type: ignore[arg-type]


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
        result = measured(model, text, context, stride=stride)[0]
        assert result.final.loss * result.tokens == pytest.approx(exact, rel=1e-12)
        assert (result.tokens, result.words, result.bytes) == (30 + 41 + 7 + 4, 50, 300)
    assert result.final.word_perplexity == pytest.approx(math.exp(exact / 50))
    assert result.final.bits_per_byte == pytest.approx(exact / math.log(2) / 300)
    assert result.final.token_perplexity == math.exp(result.final.loss)
    lossy = measured(model, text, 8, lossless=False)[0].final
    assert lossy.loss == pytest.approx(result.final.loss) and lossy.word_perplexity is lossy.bits_per_byte is None
    # A seen pair costs a thousand nats at least.
    far = measured(Bigrams(-1e3 * counts), text, 8)[0].final
    assert far.loss > 700 and far.token_perplexity is far.word_perplexity is None and far.bits_per_byte > 0


@pytest.mark.parametrize(("packed", "stride"), [(True, None), (True, 3), (False, None), (False, 1)])
@torch.no_grad()
def test_each_position_has_the_mean_of_a_loop_over_the_text_whatever_the_batch(
    packed: bool, stride: int | None
) -> None:
    model, text = gpt2(), encoded([25, 0, 14, 3, 1])
    # Nats by position: one call a token, the windows laid by hand.
    expected: list[list[float]] = [[] for _ in range(8)]
    for tokens in [text.joined] if packed else [text.text(index) for index in range(len(text))]:
        read = [0, *tokens.tolist()]
        for token in range(len(tokens)):
            start = 0
            while start + 8 <= token:
                start += stride or 8
            logits = model(input_ids=torch.tensor([read[start : token + 1]])).logits[0, -1].double()
            expected[token - start].append(-float(logits.log_softmax(-1)[tokens[token]]))
    options: dict[str, Any] = {"stride": stride, "mode": "packed" if packed else "lines", "by_position": True}
    for batch_positions in (1, 20, 10_000):
        result, positions = measured(model, text, 8, **options, batch_positions=batch_positions)
        found, nats = positions[FINAL_HEAD], result.final.loss * result.tokens
        assert list(found.tokens) == [len(nats) for nats in expected]
        assert result.tokens == (len(text.joined) if packed else sum(map(len, expected)))
        for loss, position_nats in zip(found.loss, expected, strict=True):
            assert loss == (pytest.approx(np.mean(position_nats), rel=1e-4) if position_nats else None)
        assert nats == pytest.approx(sum(map(sum, expected)), rel=1e-5)
    assert found.mean(slice(None)) == pytest.approx(result.final.loss)
    assert found.mean(slice(0, 7)) == pytest.approx(np.mean([each for nats in expected[:7] for each in nats]), rel=1e-4)


def test_a_position_without_tokens_has_no_loss_and_no_weight() -> None:
    found = loss_by_position(np.array([1.0, 3.0, 5.0]), np.array([2, 2, 0]), 4)
    assert found == PositionLoss((5.0, None, 2.0, None), (1, 0, 2, 0))
    assert (found.mean(slice(None)), found.mean(slice(1, 2)), found.mean(slice(1, None))) == (3.0, None, 2.0)
    assert found.plain() == {"loss": [5.0, None, 2.0, None], "tokens": [1, 0, 2, 0]}


def test_exits_are_scored_if_the_model_has_them() -> None:
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))
    model = Bigrams(table, exits=lambda logits: (logits * 0, logits * 0.5))
    text = encoded([20])
    results = measured(model, text, 8)[0].heads
    uniform, half, final = results.values()
    assert uniform.token_perplexity == pytest.approx(VOCABULARY, rel=1e-6)
    assert half.loss == pytest.approx(measured(Bigrams(table * 0.5), text, 8)[0].final.loss)
    assert final == measured(Bigrams(table), text, 8)[0].final
    assert [*results] == ["exit-2", "exit-4", FINAL_HEAD]


def test_what_cannot_be_scored_is_refused() -> None:
    for context, stride, message in (
        (0, None, "context 0 is impossible; allowed: from 1"),
        (33, None, "context 33 is more than the model can read; allowed: 1 to 32"),
        (8, 9, "stride 9 is impossible; allowed: 1 to the context, 8"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            measured(gpt2(), encoded([20]), context, stride=stride)
    with pytest.raises(ConfigurationError, match="token 22 is unknown to the model, which has 5 tokens"):
        score_texts(Bigrams(torch.zeros(5, 5)), [np.array([3, 22])], first_read=0, context=4)
    with pytest.raises(RunError, match="not numbers"):
        score_texts(Bigrams(torch.full((5, 5), math.nan)), [np.array([3, 2])], first_read=0, context=4)
    with pytest.raises(ConfigurationError, match=r"loss bound is -0\.1; allowed: 0 or above"):
        calibrate_language(model_of("crt"), TEXTS, -0.1, **READ)
    with pytest.raises(ConfigurationError, match="this model cannot generate: it leaks"):
        score_token_exits(language_model(causal_convolution=False), TEXTS, None, **READ)


def test_the_logits_of_one_batch_are_held_at_a_time() -> None:
    alive: list[int] = []
    made: list[weakref.ref[torch.Tensor]] = []

    def watch(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        alive.append(sum(reference() is not None for reference in made))
        early = logits * 0, logits * 0
        made.extend(map(weakref.ref, (logits, *early)))
        assert logits.shape[:2].numel() <= 16
        return early

    model = Bigrams(torch.zeros(VOCABULARY, VOCABULARY), exits=watch)
    measured(model, encoded([90]), 8, batch_positions=16)
    assert len(made) > 4 and set(alive) == {0}


# Rules of exits.
CRT: dict[str, Any] = {"num_recurrences": 4, "exits": [1, 3], "max_position_embeddings": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "crt": CRT,
    "rotary, two layers, prelude": {**CRT, "position": "rotary", "num_core_layers": 2, "num_prelude_layers": 1},
    "SwiGLU": {**CRT, "feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0, "residual_scale": 0.5},
}  # fmt: skip
READ: dict[str, Any] = {"first_read": 0, "context": 16}
# Of several windows, of a part of one, and of one token.
DICE = np.random.default_rng(0)
TEXTS: list[Any] = [DICE.integers(0, 11, size) for size in (40, 9, 1, 16)]


def model_of(variant: str) -> RecurraForCausalLM:
    model = language_model(**VARIANTS[variant]).double().eval()
    stir(model, spread=0.4)
    return model


@torch.no_grad()
def decoded(model: RecurraForCausalLM, rule: ExitRule | None) -> tuple[list[float], list[int]]:
    """Nats and recurrences of every token, each read through a cache behind those before it in its block."""
    nats, depths = [], []
    for text in TEXTS:
        for start in range(0, len(text), 16):
            block = text[start : start + 16].tolist()
            cache = RecurraCache(model.config)
            read = [int(text[start - 1]) if start else 0, *block[:-1]]
            for token, target in zip(read, block, strict=True):
                output = model(torch.tensor([[token]]), past_key_values=cache, exit_rule=rule)
                nats.append(-float(output.logits[0, 0].log_softmax(-1)[target]))
                depths.append(4 if output.exited_after is None else int(output.exited_after))
    return nats, depths


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_a_batch_are_scored_as_if_decoded_alone_or_by_one_head(variant: str) -> None:
    model = model_of(variant)
    with torch.no_grad():
        logits = model(torch.from_numpy(TEXTS[0])[None], output_exits=True).exit_logits[0]
    rule = ConfidenceRule.constant(float(confidence(logits).quantile(0.8)))
    nats, depths = decoded(model, rule)
    found = score_token_exits(model, TEXTS, rule, **READ)
    np.testing.assert_allclose(found.nats, nats, rtol=1e-5, atol=1e-6)
    assert sorted(found.exit_counts.elements()) == sorted(depths) and len(set(depths)) >= 2
    assert found.mean_recurrences == pytest.approx(np.mean(depths))
    by_head = score_texts(model, TEXTS, exits=True, **READ)
    np.testing.assert_allclose(score_token_exits(model, TEXTS, None, **READ).nats, by_head["final"], rtol=1e-9)
    fixed = score_token_exits(model, TEXTS, FixedExit(3), **READ)
    np.testing.assert_allclose(fixed.nats, by_head["exit-3"], rtol=1e-9)
    assert dict(+fixed.exit_counts) == {3: 66}
    # Whoever decodes or times the model afterwards drops nothing out.
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("kind", ["confidence", pytest.param("entropy", marks=pytest.mark.slow)])
def test_a_threshold_keeps_the_loss_bound_and_a_looser_bound_takes_fewer_recurrences(kind: str) -> None:
    model, texts = model_of("crt"), TEXTS[2:]
    depths = []
    for bound in (0.0, 0.05, 100.0):
        chosen = calibrate_language(model, texts, bound, kind=kind, **READ)
        if chosen.rule is None:
            assert chosen.quality == chosen.full and chosen.mean_recurrences == 4
        else:
            found = score_token_exits(model, texts, chosen.rule, **READ)
            assert found.loss == pytest.approx(chosen.quality) and dict(found.exit_counts) == dict(chosen.exit_counts)
        assert chosen.quality <= chosen.full * (1 + bound)
        depths.append(chosen.mean_recurrences)
    assert depths == sorted(depths, reverse=True) and depths[-1] == 1
