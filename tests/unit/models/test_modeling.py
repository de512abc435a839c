"""The model equals the formulas, in outputs and in the gradient of every parameter."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recurra import RecurraForSequenceClassification, RecurraModel
from recurra.core.errors import ConfigurationError
from references import recurrent_transformer as reference
from relaxed import RELAXED, relaxed_shapes
from tiny import stir, tiny_config, tiny_model

# Ours turns queries and keys in FP32 whatever the states' type, hence not the 1e-12 that float64 could give.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}

VARIANTS: dict[str, dict[str, Any]] = {
    "baseline-like": {"num_core_layers": 3, "num_recurrences": 1, "residual_scale": 0.0},
    "recurrent-like": {"num_core_layers": 2, "num_recurrences": 2, "residual_scale": 0.5},
    "scale 0": {"residual_scale": 0.0},
    "scale 1": {"residual_scale": 1.0},
    "learned scale": {"residual_scale": 0.7, "learned_residual_scale": True},
    "three recurrences": {"num_core_layers": 1, "num_recurrences": 3},
    "causal": {"causal": True},
    "causal, last": {"causal": True, "pooling": "last"},
    "last": {"pooling": "last"},
    "max": {"pooling": "max"},
    "factorised embedding": {"embedding_size": 6},
    "recurrence embedding": {"recurrence_embedding": True},
    "injection by addition": {"input_injection": "add"},
    "injection by a linear map": {"input_injection": "concat"},
    "prelude and coda": {"num_prelude_layers": 1, "num_core_layers": 1, "num_coda_layers": 1},
    "prelude alone": {"num_prelude_layers": 2, "num_core_layers": 1},
    "final norm": {"final_norm": True},
    "no token types": {"type_vocab_size": 0},
    "no positions": {"position": "none"},
    "no positions, causal": {"position": "none", "causal": True, "pooling": "last"},
    "four heads, other theta": {"num_attention_heads": 4, "rope_theta": 50.0},
    "relaxed": {**RELAXED, "num_recurrences": 3},
    "relaxed feed-forward, post-norm, coda": {
        "low_rank": 3, "low_rank_where": "feed-forward", "norm_placement": "post", "num_coda_layers": 1,
    },
    "everything": {
        **RELAXED,
        "embedding_size": 5, "num_prelude_layers": 1, "num_core_layers": 1, "num_coda_layers": 1, "causal": True,
        "learned_residual_scale": True, "recurrence_embedding": True, "input_injection": "concat", "final_norm": True,
        "pooling": "last",
    },
}  # fmt: skip


def rows_of(lengths: list[int], vocab_size: int, seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    dice = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(1, vocab_size, (length,), generator=dice).tolist() for length in lengths]
    types = [torch.randint(0, 2, (length,), generator=dice).tolist() for length in lengths]
    return tokens, types


def padded(rows: list[list[int]], *, left: bool = False, fill: int = 0) -> Tensor:
    width = max(map(len, rows))
    gaps = [[fill] * (width - len(row)) for row in rows]
    return torch.tensor([gap + row if left else row + gap for gap, row in zip(gaps, rows, strict=True)])


def both_gradients(
    config: Any, lengths: list[int], *, with_types: bool, left: bool = False, seed: int = 0
) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Logits and gradients of the mean cross-entropy: ours on a padded batch, the reference's row by row."""
    model = RecurraForSequenceClassification(config).double().eval()
    stir(model, seed)
    tokens, types = rows_of(lengths, config.vocab_size, seed)
    labels = [index % config.num_labels for index in range(len(tokens))]
    mask = padded([[1] * len(row) for row in tokens], left=left)
    output = model(
        padded(tokens, left=left),
        attention_mask=None if bool(mask.all()) else mask,
        token_type_ids=padded(types, left=left) if with_types else None,
        labels=torch.tensor(labels),
    )
    output.loss.backward()
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    given = types if with_types else [None] * len(tokens)
    rows = zip(tokens, given, strict=True)
    expected = torch.stack([reference.classify(row, kinds, weights, config) for row, kinds in rows])
    loss = sum(reference.cross_entropy(logits, label) for logits, label in zip(expected, labels, strict=True))
    (loss / len(labels)).backward()
    torch.testing.assert_close(output.loss.double(), loss / len(labels), **TOLERANCE)
    return output.logits.double(), expected, gradients(dict(model.named_parameters())), gradients(weights)


def gradients(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients by name; a weight that the loss does not reach has a gradient of 0."""
    return {name: torch.zeros_like(weight) if weight.grad is None else weight.grad for name, weight in weights.items()}


def assert_same_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(
            gradient, theirs[name], **TOLERANCE, msg=lambda text, name=name: f"gradient of {name}: {text}"
        )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("lengths", [[4, 4], [5, 2, 1]], ids=["full", "padded"])
def test_logits_and_gradients_equal_the_formulas(variant: str, lengths: list[int]) -> None:
    config = tiny_config(**{"vocab_size": 12, "hidden_size": 8, "intermediate_size": 6, **VARIANTS[variant]})
    logits, expected, ours, theirs = both_gradients(config, lengths, with_types=False)
    torch.testing.assert_close(logits, expected.detach(), **TOLERANCE)
    assert_same_gradients(ours, theirs)


COUNTED: dict[str, dict[str, Any]] = {
    "first": {},
    "last, no positions": {"pooling": "last", "position": "none", "causal": True},
    "max, injection": {"pooling": "max", "input_injection": "add", "final_norm": True},
    "relaxed": {**RELAXED, "recurrence_embedding": True},
}


@pytest.mark.parametrize("variant", COUNTED)
@pytest.mark.parametrize("lengths", [[4, 4], [6, 3, 1, 5]], ids=["alike", "mixed"])
def test_each_row_has_the_recurrences_that_its_tokens_ask_for(variant: str, lengths: list[int]) -> None:
    shape = {"vocab_size": 12, "hidden_size": 8, "intermediate_size": 6, "num_core_layers": 1, "num_recurrences": 3}
    config = tiny_config(**{**shape, "tokens_without_recurrence": 2, **COUNTED[variant]})
    logits, expected, ours, theirs = both_gradients(config, lengths, with_types=False)
    torch.testing.assert_close(logits, expected.detach(), **TOLERANCE)
    assert_same_gradients(ours, theirs)

    model = RecurraForSequenceClassification(config).eval()
    stir(model)
    tokens, _ = rows_of(lengths, config.vocab_size)
    side_by_side = model(padded(tokens), attention_mask=padded([[1] * len(row) for row in tokens]))
    end_to_end = model(
        torch.tensor([[token for row in tokens for token in row]]), row_lengths=torch.tensor([*map(len, tokens)])
    )
    torch.testing.assert_close(end_to_end.logits, side_by_side.logits, **TOLERANCE)
    assert side_by_side.exited_after.tolist() == [min(max(length - 2, 1), 3) for length in lengths]


@pytest.mark.parametrize("key", [{"exits": [1]}, {"num_coda_layers": 1}])
def test_counted_recurrences_have_one_head(key: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="'tokens_without_recurrence' is 3; allowed: null with exits or coda"):
        tiny_config(tokens_without_recurrence=3, **key)


CONFIGS = relaxed_shapes(
    {
        "hidden_size": st.sampled_from([4, 8]),
        "num_attention_heads": st.sampled_from([1, 2]),
        "intermediate_size": st.integers(1, 7),
        "embedding_size": st.sampled_from([None, 3]),
        "num_prelude_layers": st.integers(0, 1),
        "num_core_layers": st.integers(1, 2),
        "num_recurrences": st.integers(1, 3),
        "num_coda_layers": st.integers(0, 1),
        "residual_scale": st.sampled_from([0.0, 0.5, 1.0, -0.3]),
        "learned_residual_scale": st.booleans(),
        "recurrence_embedding": st.booleans(),
        "input_injection": st.sampled_from(["none", "add", "concat"]),
        "final_norm": st.booleans(),
        "causal": st.booleans(),
        "pooling": st.sampled_from(["first", "last", "max"]),
        "num_labels": st.integers(2, 3),
    }
)


@given(CONFIGS, st.lists(st.integers(1, 4), min_size=1, max_size=2), st.booleans(), st.integers(0, 1000))
@settings(max_examples=25)
def test_any_small_shape_equals_the_formulas(
    values: dict[str, Any], lengths: list[int], with_types: bool, seed: int
) -> None:
    config = tiny_config(**{"vocab_size": 7, **values})
    logits, expected, ours, theirs = both_gradients(config, lengths, with_types=with_types, seed=seed)
    torch.testing.assert_close(logits, expected.detach(), **TOLERANCE)
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("positions", [1, 2])
def test_computing_only_leading_positions_equals_the_full_computation(variant: str, positions: int) -> None:
    config = tiny_config(**VARIANTS[variant])
    full = RecurraModel(config).double().eval()
    stir(full)
    short = copy.deepcopy(full)
    ids = padded(rows_of([7, 3, 5], config.vocab_size)[0])
    mask = (ids > 0).long()
    wanted = full(ids, mask).last_hidden_state[:, :positions]
    got = short(ids, mask, num_positions=positions).last_hidden_state
    assert got.shape == (3, positions, config.hidden_size)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)
    direction = torch.randn(wanted.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (wanted * direction).sum().backward()
    (got * direction).sum().backward()
    for (name, first), (_, second) in zip(full.named_parameters(), short.named_parameters(), strict=True):
        torch.testing.assert_close(
            first.grad, second.grad, rtol=1e-8, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}"
        )


def test_a_stacked_model_is_the_recurrent_one_with_one_recurrence() -> None:
    """Two copies of the core one after the other, with scale 0, equal the core applied twice."""
    looped = tiny_model(num_core_layers=2, num_recurrences=2, residual_scale=0.0).eval()
    stir(looped)
    stacked = tiny_model(num_core_layers=4, num_recurrences=1, residual_scale=0.0).eval()
    state = looped.state_dict()
    unrolled = dict(state)
    for name in state:
        for number in (0, 1):
            prefix = f"model.core.block.layers.{number}."
            if name.startswith(prefix):
                unrolled[name.replace(prefix, f"model.core.block.layers.{number + 2}.")] = state[name]
    stacked.load_state_dict(unrolled)
    ids = torch.randint(1, 40, (3, 9))
    assert torch.equal(looped(ids).logits, stacked(ids).logits)


def test_no_loss_without_labels_and_fp32_logits_from_half_precision() -> None:
    model = tiny_model().to(torch.bfloat16).eval()
    output = model(torch.randint(1, 40, (2, 6)))
    assert output.loss is None
    assert output.logits.dtype == torch.float32


def test_an_input_that_is_too_long_is_one_clear_line() -> None:
    model = tiny_model(max_position_embeddings=8)
    with pytest.raises(ConfigurationError, match=r"an input has 9 tokens; this model takes at most 8; truncate it"):
        model(torch.ones(1, 9, dtype=torch.long))


@pytest.mark.parametrize(
    "shape",
    [
        {"type_vocab_size": 0, "embedding_size": 8},
        {"input_injection": "concat", "final_norm": True},
        {"input_injection": "add", "learned_residual_scale": True, "recurrence_embedding": True, "causal": True},
    ],
)
def test_autocast_keeps_the_residual_stream_in_fp32(shape: dict[str, Any]) -> None:
    """A norm that meets half precision beside its FP32 scale leaves its fused path and warns; warnings are errors."""
    model = tiny_model(**shape)
    seen: list[torch.dtype] = []
    for name, module in model.named_modules():
        if name.endswith("norm") and isinstance(module, torch.nn.RMSNorm):
            module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randint(1, 40, (3, 7)), labels=torch.tensor([0, 1, 0])).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert set(seen) == {torch.float32}
