"""The language model equals the formulas, at every exit, in losses and in the gradient of every parameter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from references import recurrent_transformer as reference
from tiny import STACKED, assert_same_gradients, laid_out, language_model, rows_of, stirred_language_model

# Rotary models turn queries and keys in FP32 whatever the states' type.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}
CRT: dict[str, Any] = {"num_recurrences": 3, "exits": [1, 2]}
VARIANTS: dict[str, dict[str, Any]] = {
    "shared heads": CRT,
    "separate heads": {**CRT, "heads": "separate"},
    "tied heads": {**CRT, "heads": "tied"},
    "tied, table of full width": {**CRT, "heads": "tied", "embedding_size": None},
    "no exits": {"exits": []},
    "other weight of exits": {**CRT, "exit_loss_weight": 0.8},
    "conv": {"feed_forward": "conv"},
    "linear": {"feed_forward": "linear"},
    "depthwise": {"feed_forward": "depthwise"},
    "leaking": {"causal_convolution": False},
    "leaking, depthwise, kernel 5": {"causal_convolution": False, "feed_forward": "depthwise", "kernel_size": 5},
    "kernel 2, three cycles": {"kernel_size": 2, "num_cycles": 3, "dilations": [2, 1]},
    "RMSNorm": {"norm": "rms"},
    "no norm": {"norm": "none"},
    "pre-norm, final norm": {**CRT, "norm_placement": "pre", "final_norm": True},
    "rotary": {"position": "rotary"},
    "plain embedding, normed": {"embedding_cycles": 0, "embedding_size": None, "embedding_norm": True},
    "no loop encoding": {"recurrence_embedding": False},
    "two layers, injection, scale": {"num_core_layers": 2, "input_injection": "concat", "learned_residual_scale": True},
    "stacked SwiGLU": {**STACKED, "final_norm": True, "heads": "tied"},
    "SwiGLU, post-norm": {"feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0},
}  # fmt: skip


def batch(rows: list[list[int]], layout: str = "right") -> dict[str, Tensor]:
    inputs = laid_out(rows, layout, fill=3)
    return {**inputs, "labels": inputs["input_ids"].clone()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_logits_and_gradients_equal_the_formulas(variant: str) -> None:
    model = stirred_language_model(**VARIANTS[variant]).double()
    config = model.config
    # A row of one token predicts nothing.
    rows = rows_of([4, 3, 3, 1], config.vocab_size)
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    loss = reference.language_loss(rows, weights, config)
    loss.backward()
    wanted = [list(reference.next_token_logits(row, weights, config).values()) for row in rows]
    for layout in ("left", "right", "packed"):
        inputs = batch(rows, layout)
        output = model(**inputs, output_exits=True, logits_to_keep=0)
        torch.testing.assert_close(output.loss, loss, **TOLERANCE)
        heads = [*(output.exit_logits or ()), output.logits]
        real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
        for number, logits in enumerate(heads):
            torch.testing.assert_close(logits[real], torch.cat([row[number] for row in wanted]), **TOLERANCE)
        model.zero_grad()
        output.loss.backward()
        assert_same_gradients(model, weights, **TOLERANCE)


@pytest.mark.parametrize("exit_after", [1, 2, 3])
def test_a_model_that_stops_early_says_what_that_exit_says(exit_after: int) -> None:
    model = stirred_language_model(**CRT, heads="separate")
    ids = torch.randint(0, 11, (2, 6))
    calls: list[int] = []
    model.model.core.block.register_forward_hook(lambda *_: calls.append(1))
    all_exits = model(ids, output_exits=True)
    assert len(calls) == 3
    early = model(ids, exit_after=exit_after)
    assert len(calls) == 3 + exit_after
    assert early.exit_logits is None
    assert torch.equal(early.logits, [*all_exits.exit_logits, all_exits.logits][exit_after - 1])


def test_logits_are_given_where_they_are_asked_for() -> None:
    model = language_model(**CRT).eval()
    ids = torch.randint(0, 11, (2, 6))
    full = model(ids).logits
    assert full.shape == (2, 6, 11)
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, full[:, -2:])
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([0, 3])).logits, full[:, [0, 3]])
    assert model(ids, labels=ids).logits is None
    assert model(ids, labels=ids, logits_to_keep=0).logits.shape == (2, 6, 11)
