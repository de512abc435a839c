"""The model equals the formulas, in outputs and in the gradient of every parameter, however rows lie in a batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from recurra import RecurraConfig, RecurraForSequenceClassification, RecurraModel
from recurra.core.errors import ConfigurationError
from references import recurrent_transformer as reference
from relaxed import RELAXED
from tiny import language_config, stir, tiny_config, tiny_model

# Ours turns queries and keys in FP32 whatever the states' type, hence not the 1e-12 that float64 could give.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}
SMALL: dict[str, Any] = {"vocab_size": 12, "hidden_size": 8, "intermediate_size": 6}
PLAIN: dict[str, dict[str, Any]] = {
    "baseline-like": {"num_core_layers": 3, "num_recurrences": 1, "residual_scale": 0.0},
    "recurrent-like": {"num_core_layers": 2, "num_recurrences": 2, "residual_scale": 0.5},
    "scale 1": {"residual_scale": 1.0},
    "learned scale": {"residual_scale": 0.7, "learned_residual_scale": True},
    "three recurrences": {"num_core_layers": 1, "num_recurrences": 3},
    "causal, last": {"causal": True, "pooling": "last"},
    "max": {"pooling": "max"},
    "factorised embedding": {"embedding_size": 6},
    "recurrence embedding": {"recurrence_embedding": True},
    "injection by addition": {"input_injection": "add"},
    "injection by a linear map": {"input_injection": "concat"},
    "prelude and coda": {"num_prelude_layers": 1, "num_core_layers": 1, "num_coda_layers": 1},
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
# As many recurrences as a row's tokens ask for.
COUNTED: dict[str, dict[str, Any]] = {
    f"counted, {name}": {"num_core_layers": 1, "num_recurrences": 3, "tokens_without_recurrence": 2, **values}
    for name, values in {
        "first": {},
        "two tokens a pass": {"tokens_per_recurrence": 2},
        "last, no positions": {"pooling": "last", "position": "none", "causal": True},
        "max, injection": {"pooling": "max", "input_injection": "add", "final_norm": True},
        "relaxed": {**RELAXED, "recurrence_embedding": True},
    }.items()
}
ENCODER: dict[str, Any] = {"causal": False, "causal_convolution": False, "num_recurrences": 3, "exits": [1, 2]}
CYCLES: dict[str, dict[str, Any]] = {
    "conv+linear": {},
    "separate heads": {"heads": "separate"},
    "conv": {"feed_forward": "conv"},
    "linear": {"feed_forward": "linear"},
    "depthwise": {"feed_forward": "depthwise"},
    "causal convolution, last": {"causal": True, "causal_convolution": True, "pooling": "last"},
    "max, cycles": {"pooling": "max"},
    "pre-norm, rotary, token types": {
        "norm": "rms", "norm_placement": "pre", "position": "rotary", "type_vocab_size": 2, "embedding_norm": True,
        "final_norm": True,
    },
    "prelude, exit": {"num_prelude_layers": 1, "num_recurrences": 2, "exits": [1]},
    "coda": {"num_coda_layers": 1, "num_recurrences": 2, "exits": []},
    "SwiGLU": {"feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0},
}  # fmt: skip
VARIANTS = [*PLAIN, *COUNTED, *CYCLES]
LENGTHS = [5, 5, 3, 1]


def config_of(variant: str) -> RecurraConfig:
    if variant in CYCLES:
        return language_config(**{**ENCODER, **CYCLES[variant]})
    return tiny_config(**{**SMALL, **{**PLAIN, **COUNTED}[variant]})


def some_rows(least: int, end: int, seed: int) -> list[list[int]]:
    dice = torch.Generator().manual_seed(seed)
    return [torch.randint(least, end, (length,), generator=dice).tolist() for length in LENGTHS]


def laid_out(rows: list[list[int]], types: list[list[int]] | None, layout: str) -> dict[str, Tensor]:
    """Padded with a token that also occurs in rows, so that only the mask can tell; or end to end, with fillers too."""
    parts = {"input_ids": rows, **({} if types is None else {"token_type_ids": types})}
    if layout in ("packed", "filled"):
        fillers = [3, 1, 0, 0] if layout == "filled" else []
        flat = {
            name: torch.tensor([[*(token for row in part for token in row), *[0] * sum(fillers)]])
            for name, part in parts.items()
        }
        return {**flat, "row_lengths": torch.tensor([*map(len, rows), *fillers])}
    width = max(map(len, rows))

    def pad(part: list[list[int]], fill: int) -> Tensor:
        gaps = [[fill] * (width - len(row)) for row in part]
        return torch.tensor([gap + row if layout == "left" else row + gap for gap, row in zip(gaps, part, strict=True)])

    padded = {name: pad(part, 3 if name == "input_ids" else 0) for name, part in parts.items()}
    return {**padded, "attention_mask": pad([[1] * len(row) for row in rows], 0)}


# Left of a padded row the first position would be padding.
CASES = [
    (variant, layout)
    for variant in VARIANTS
    for layout in ("right", "left", "packed", "filled")
    if layout != "left" or config_of(variant).pooling != "first"
]


@pytest.mark.parametrize(("variant", "layout"), CASES)
def test_every_head_and_every_gradient_equals_the_formulas(variant: str, layout: str) -> None:
    config = config_of(variant)
    torch.manual_seed(0)
    model = RecurraForSequenceClassification(config).double().eval()
    stir(model)
    rows, labels = some_rows(1, config.vocab_size, 1), [0, 1, 1, 0]
    types = some_rows(0, 2, 2) if config.type_vocab_size and layout != "packed" else None
    inputs = laid_out(rows, types, layout)
    if layout != "filled":
        inputs["labels"] = torch.tensor(labels)
    output = model(**inputs)
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    given = [None] * len(rows) if types is None else types
    wanted = [reference.classify_exits(row, kinds, weights, config) for row, kinds in zip(rows, given, strict=True)]
    found = [logits[: len(rows)].double() for logits in (*(output.exit_logits or ()), output.logits)]
    heads = [torch.stack([logits[number] for logits in wanted]) for number in wanted[0]]
    directions = torch.randn(len(heads), len(rows), config.num_labels, dtype=torch.float64)
    for scores, expected in zip(found, heads, strict=True):
        torch.testing.assert_close(scores, expected.detach(), **TOLERANCE)
    if layout != "filled":
        losses = {number: torch.stack([reference.cross_entropy(logits[number], label)
                                       for logits, label in zip(wanted, labels, strict=True)]).mean()
                  for number in wanted[0]}  # fmt: skip
        torch.testing.assert_close(output.loss.double(), reference.weigh(losses, config), **TOLERANCE)
    (torch.stack(found) * directions).sum().backward()
    (torch.stack(heads) * directions).sum().backward()
    for name, weight in model.named_parameters():
        ours, theirs = (torch.zeros_like(weight) if one is None else one for one in (weight.grad, weights[name].grad))
        torch.testing.assert_close(
            ours, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"gradient of {n}: {text}"
        )


@pytest.mark.parametrize("variant", [*PLAIN, *CYCLES])
@pytest.mark.parametrize("positions", [1, 2])
def test_computing_only_leading_positions_equals_the_full_computation(variant: str, positions: int) -> None:
    torch.manual_seed(0)
    full = RecurraModel(config_of(variant)).double().eval()
    stir(full)
    short = copy.deepcopy(full)
    inputs = laid_out(some_rows(1, full.config.vocab_size, 1), None, "right")
    outputs = [full(**inputs), short(**inputs, num_positions=positions)]
    whole, leading = (torch.stack([*(each.exit_states or ()), each.last_hidden_state]) for each in outputs)
    wanted = whole[:, :, :positions]
    assert leading.shape == wanted.shape == (1 + len(full.config.exits), 4, positions, 8)
    torch.testing.assert_close(leading, wanted, rtol=1e-9, atol=1e-10)
    direction = torch.randn(wanted.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (wanted * direction).sum().backward()
    (leading * direction).sum().backward()
    for (name, first), (_, second) in zip(full.named_parameters(), short.named_parameters(), strict=True):
        torch.testing.assert_close(
            first.grad, second.grad, rtol=1e-8, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("variant", PLAIN)
@pytest.mark.parametrize("layout", ["right", "packed"])
def test_logits_after_a_recurrence_are_those_of_a_model_that_ends_there(variant: str, layout: str) -> None:
    torch.manual_seed(0)
    model = RecurraForSequenceClassification(config_of(variant)).double().eval()
    stir(model)
    inputs = laid_out(some_rows(1, model.config.vocab_size, 1), None, layout)
    by_recurrence = model.logits_by_recurrence(**inputs)
    assert list(by_recurrence) == list(range(1, model.config.num_recurrences + 1))
    for number, logits in by_recurrence.items():
        model.config.num_recurrences = number
        torch.testing.assert_close(logits, model(**inputs).logits, **TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_without_gradients_packed_and_padded_and_with_gradients_agree(dtype: torch.dtype, causal: bool) -> None:
    model = tiny_model(causal=causal).to(dtype).eval()
    # Long and short rows side by side, and rows of equal length that attention takes together.
    dice = torch.Generator().manual_seed(0)
    rows = [torch.randint(1, 40, (length,), generator=dice).tolist() for length in (64, 33, 33, 16, 7, 1)]
    padded, filled = laid_out(rows, None, "right"), laid_out(rows, None, "filled")
    wanted = model(**padded).logits.detach()
    assert wanted.dtype == torch.float32
    near = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-3}
    with torch.inference_mode():
        for inputs in (padded, filled):
            torch.testing.assert_close(model(**inputs).logits[: len(rows)], wanted, **near)


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


PACKED = {"input_ids": torch.tensor([[1, 2, 3, 1, 2, 3]]), "row_lengths": torch.tensor([3, 3])}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": torch.ones(1, 9, dtype=torch.long)}, "an input has 9 tokens; this model takes at most 8; trun"),
        ({"input_ids": torch.ones(1, 9, dtype=torch.long), "row_lengths": torch.tensor([9])}, "an input has 9 tokens"),
        ({**PACKED, "input_ids": torch.ones(1, 5, dtype=torch.long)}, r"rows of 6 tokens came with .* \(1, 5\)"),
        ({**PACKED, "input_ids": torch.ones(2, 3, dtype=torch.long)}, r"input_ids of shape \(2, 3\)"),
        ({**PACKED, "attention_mask": torch.ones(1, 6)}, "and an attention_mask; give the rows end to end"),
    ],
)
def test_inputs_that_do_not_fit_are_one_clear_line(inputs: dict[str, Tensor], message: str) -> None:
    model = tiny_model(max_position_embeddings=8)
    model(torch.ones(1, 16, dtype=torch.long), row_lengths=torch.tensor([8, 8]))
    with pytest.raises(ConfigurationError, match=message):
        model(**inputs)
