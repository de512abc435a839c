"""Loss under exit rules, against decoding token by token; thresholds that keep what they promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recurra import RecurraForCausalLM
from recurra.core.errors import ConfigurationError
from recurra.evaluation.perplexity import calibrate_language, score_texts, score_token_exits
from recurra.models.cache import RecurraCache
from recurra.models.exits.rules import ConfidenceRule, ExitRule, FixedExit, confidence
from tiny import language_model, stir

CRT: dict[str, Any] = {"num_recurrences": 4, "exits": [1, 3], "max_position_embeddings": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "crt": CRT,
    "rotary, two layers, prelude": {**CRT, "position": "rotary", "num_core_layers": 2, "num_prelude_layers": 1},
    "SwiGLU": {**CRT, "feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0, "residual_scale": 0.5},
}  # fmt: skip
READ: dict[str, Any] = {"first_read": 0, "context": 16}


def model_of(variant: str = "crt") -> RecurraForCausalLM:
    model = language_model(**VARIANTS[variant]).double().eval()
    stir(model, spread=0.4)
    return model


def some_texts() -> list[Any]:
    dice = np.random.default_rng(0)
    # Of several windows, of a part of one, and of one token.
    return [dice.integers(0, 11, size) for size in (40, 9, 1, 16)]


def middle_rule(model: RecurraForCausalLM) -> ConfidenceRule:
    with torch.no_grad():
        logits = model(torch.from_numpy(some_texts()[0])[None], output_exits=True).exit_logits[0]
    return ConfidenceRule.constant(float(confidence(logits).quantile(0.8)))


@torch.no_grad()
def decoded(model: RecurraForCausalLM, rule: ExitRule | None) -> tuple[list[float], list[int]]:
    """Nats and recurrences of every token, each read through a cache behind those before it in its block."""
    nats, depths = [], []
    for text in some_texts():
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
def test_rows_of_a_batch_are_scored_as_if_decoded_alone(variant: str) -> None:
    model = model_of(variant)
    rule = middle_rule(model)
    nats, depths = decoded(model, rule)
    found = score_token_exits(model, some_texts(), rule, **READ)
    np.testing.assert_allclose(found.nats, nats, rtol=1e-5, atol=1e-6)
    assert sorted(found.exit_counts.elements()) == sorted(depths) and len(set(depths)) >= 2
    assert found.mean_recurrences == pytest.approx(np.mean(depths))


def test_without_a_rule_and_at_a_fixed_exit_the_loss_is_that_of_the_head() -> None:
    model = model_of()
    by_head = score_texts(model, some_texts(), exits=True, **READ)
    np.testing.assert_allclose(score_token_exits(model, some_texts(), None, **READ).nats, by_head["final"], rtol=1e-9)
    fixed = score_token_exits(model, some_texts(), FixedExit(3), **READ)
    np.testing.assert_allclose(fixed.nats, by_head["exit-3"], rtol=1e-9)
    assert dict(+fixed.exit_counts) == {3: 66}


@pytest.mark.parametrize("kind", ["confidence", pytest.param("entropy", marks=pytest.mark.slow)])
def test_a_threshold_keeps_the_loss_bound_and_a_looser_bound_takes_fewer_recurrences(kind: str) -> None:
    model, texts = model_of(), some_texts()[1:]
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


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda model: calibrate_language(model, some_texts(), -0.1, **READ), "loss bound is -0.1; allowed: 0 or ab"),
        (
            lambda _: score_token_exits(language_model(causal_convolution=False), some_texts(), None, **READ),
            "this model cannot generate: it leaks",
        ),
    ],
)
def test_what_cannot_be_is_one_clear_line(ask: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        ask(model_of())
