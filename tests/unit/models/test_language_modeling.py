"""The language model equals the formulas, at every exit, in losses and in the gradient of every parameter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from references import recurrent_transformer as reference
from tiny import laid_out, language_model, rows_of, stir

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
    "stacked SwiGLU": {
        "feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0, "norm": "rms", "norm_placement": "pre",
        "position": "rotary", "num_recurrences": 1, "num_core_layers": 2, "final_norm": True, "exits": [],
        "recurrence_embedding": False, "heads": "tied",
    },
    "SwiGLU, post-norm": {"feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0},
}  # fmt: skip


def batch(rows: list[list[int]], layout: str = "right") -> dict[str, Tensor]:
    inputs = laid_out(rows, layout, fill=3)
    return {**inputs, "labels": inputs["input_ids"].clone()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_logits_and_gradients_equal_the_formulas(variant: str) -> None:
    model = language_model(**VARIANTS[variant]).double().eval()
    config = model.config
    stir(model)
    # Padding on the right for some and on the left for others; a row of one token predicts nothing.
    rows = rows_of([4, 3, 1], config.vocab_size)
    inputs = batch(rows, "left" if len(variant) % 2 == 0 else "right")
    output = model(**inputs, output_exits=True, logits_to_keep=0)
    output.loss.backward()
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    loss = reference.language_loss(rows, weights, config)
    loss.backward()
    torch.testing.assert_close(output.loss, loss, **TOLERANCE)
    real = inputs["attention_mask"].bool()
    for place, row in enumerate(rows):
        wanted = reference.next_token_logits(row, weights, config)
        found = [*(output.exit_logits or ()), output.logits]
        for scores, logits in zip(wanted.values(), found, strict=True):
            torch.testing.assert_close(logits[place][real[place]], scores.detach(), **TOLERANCE)
    for name, weight in model.named_parameters():
        theirs = weights[name].grad
        ours = torch.zeros_like(weight) if weight.grad is None else weight.grad
        wanted_slope = torch.zeros_like(weight) if theirs is None else theirs
        torch.testing.assert_close(ours, wanted_slope, **TOLERANCE, msg=lambda text, n=name: f"gradient of {n}: {text}")


@pytest.mark.parametrize("variant", ["shared heads", "linear", "conv", "rotary", "stacked SwiGLU"])
def test_packed_rows_equal_padded_ones(variant: str) -> None:
    model = language_model(**VARIANTS[variant]).double().eval()
    stir(model)
    rows = rows_of([5, 5, 2, 7, 1], model.config.vocab_size)
    flat = torch.tensor([[token for row in rows for token in row]])
    lengths = torch.tensor([*map(len, rows)])
    packed = model(flat, row_lengths=lengths, labels=flat, logits_to_keep=0)
    padded = model(**batch(rows), logits_to_keep=0)
    real = batch(rows)["attention_mask"].bool()
    torch.testing.assert_close(packed.logits[0], padded.logits[real], **TOLERANCE)
    torch.testing.assert_close(packed.loss, padded.loss, **TOLERANCE)


@pytest.mark.parametrize("exit_after", [1, 2, 3])
def test_a_model_that_stops_early_says_what_that_exit_says(exit_after: int) -> None:
    model = language_model(**CRT, heads="separate").eval()
    stir(model)
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


def test_the_number_of_items_divides_the_sum() -> None:
    """Micro-batches of different lengths, each divided by all their tokens, add up to the mean of all."""
    model = language_model(**CRT).double().eval()
    rows = rows_of([6, 5, 2, 2], 11)
    together = model(**batch(rows)).loss
    count = torch.tensor(sum(len(row) - 1 for row in rows))
    apart = sum(model(**batch(part), num_items_in_batch=count).loss for part in (rows[:1], rows[1:]))
    torch.testing.assert_close(apart, together)
