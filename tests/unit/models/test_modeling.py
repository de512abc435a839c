"""The model equals the formulas, in outputs and in the gradient of every parameter, however rows lie in a batch.

A halting head is taught the passes that a row's tokens ask for, and decides by itself in evaluation.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from recurra import RecurraConfig, RecurraForSequenceClassification
from recurra.core.errors import ConfigurationError
from recurra.models.exits.rules import FixedExit
from recurra.training.distillation import RowLoss
from references import recurrent_transformer as reference
from relaxed import RELAXED
from tiny import IDS, MASK, PACKED, assert_same_gradients, language_config, stir, stirred, tiny_config, tiny_model

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
LABELS = [0, 1, 1, 0]


def config_of(variant: str) -> RecurraConfig:
    if variant in CYCLES:
        return language_config(**{**ENCODER, **CYCLES[variant]})
    return tiny_config(**{**SMALL, **{**PLAIN, **COUNTED}[variant]})


def model_of(variant: str, **keys: Any) -> RecurraForSequenceClassification:
    config = config_of(variant)
    for key, value in keys.items():
        setattr(config, key, value)
    torch.manual_seed(0)
    model = RecurraForSequenceClassification(config).double().eval()
    stir(model)
    return model


def some_rows(least: int, end: int, seed: int = 1) -> list[list[int]]:
    dice = torch.Generator().manual_seed(seed)
    return [torch.randint(least, end, (length,), generator=dice).tolist() for length in (5, 5, 3, 1)]


def laid_out(rows: list[list[int]], layout: str, types: list[list[int]] | None = None) -> dict[str, Tensor]:
    """Padded with a token that also occurs in rows, so that only the mask can tell; or end to end, with fillers too."""
    fillers, how = ([[0] * 3, [0], [], []], "packed") if layout == "filled" else ([], layout)
    inputs = tiny.laid_out([*rows, *fillers], how, fill=3)
    if types is not None:
        inputs["token_type_ids"] = tiny.laid_out([*types, *fillers], how, fill=0)["input_ids"]
    return inputs


def tracked(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("variant", [*PLAIN, *COUNTED, *CYCLES])
def test_every_head_and_every_gradient_equals_the_formulas(variant: str) -> None:
    model = model_of(variant)
    config, weights = model.config, tracked(model)
    rows = some_rows(1, config.vocab_size)
    # Without types all are of type 0.
    types = some_rows(0, 2, seed=2) if config.type_vocab_size and "scale" not in variant else None
    wanted = [reference.classify_exits(row, types and types[at], weights, config) for at, row in enumerate(rows)]
    heads = {number: torch.stack([logits[number] for logits in wanted]) for number in wanted[0]}
    losses = {
        number: sum(reference.cross_entropy(scores, label) for scores, label in zip(logits, LABELS, strict=True)) / 4
        for number, logits in heads.items()
    }
    directions = torch.randn(len(heads), len(rows), config.num_labels, dtype=torch.float64)
    (torch.stack([*heads.values()]) * directions).sum().backward()
    # Left of a padded row the first position would be padding.
    for layout in ("right", "packed", "filled", *(["left"] if config.pooling != "first" else [])):
        labels = {} if layout == "filled" else {"labels": torch.tensor(LABELS)}
        output = model(**laid_out(rows, layout, types), **labels)
        found = [logits[: len(rows)].double() for logits in (*(output.exit_logits or ()), output.logits)]
        for scores, expected in zip(found, heads.values(), strict=True):
            torch.testing.assert_close(scores, expected, **TOLERANCE)
        if labels:
            torch.testing.assert_close(output.loss.double(), reference.weigh(dict(losses), config), **TOLERANCE)
        model.zero_grad()
        (torch.stack(found) * directions).sum().backward()
        assert_same_gradients(model, weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", [*PLAIN, *CYCLES])
def test_computing_only_leading_positions_equals_the_full_computation(variant: str) -> None:
    full = model_of(variant).model
    inputs = laid_out(some_rows(1, full.config.vocab_size), "right")
    for positions in (1, 2):
        short = copy.deepcopy(full)
        full.zero_grad()
        outputs = [full(**inputs), short(**inputs, num_positions=positions)]
        whole, leading = (torch.stack([*(each.exit_states or ()), each.last_hidden_state]) for each in outputs)
        wanted = whole[:, :, :positions]
        assert leading.shape == wanted.shape == (1 + len(full.config.exits), 4, positions, 8)
        torch.testing.assert_close(leading, wanted, rtol=1e-9, atol=1e-10)
        direction = torch.randn(wanted.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        (wanted * direction).sum().backward()
        (leading * direction).sum().backward()
        assert_same_gradients(short, full, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("variant", PLAIN)
def test_logits_after_a_recurrence_are_those_of_a_model_that_ends_there(variant: str) -> None:
    model = model_of(variant)
    recurrences = model.config.num_recurrences
    for layout in ("right", "packed"):
        inputs = laid_out(some_rows(1, model.config.vocab_size), layout)
        by_recurrence = model.logits_by_recurrence(**inputs)
        assert list(by_recurrence) == list(range(1, recurrences + 1))
        for number, logits in by_recurrence.items():
            model.config.num_recurrences = number
            torch.testing.assert_close(logits, model(**inputs).logits, **TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_without_gradients_packed_and_padded_and_with_gradients_agree(dtype: torch.dtype, causal: bool) -> None:
    model = tiny_model(causal=causal).to(dtype).eval()
    # Long and short rows side by side, and rows of equal length that attention takes together.
    rows = tiny.rows_of([64, 33, 33, 16, 7, 1], 40)
    padded, filled = laid_out(rows, "right"), laid_out(rows, "filled")
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
        RELAXED,
    ],
    ids=", ".join,
)
def test_autocast_keeps_the_residual_stream_in_fp32_and_trains_every_weight(shape: dict[str, Any]) -> None:
    """A norm that meets half precision beside its FP32 scale leaves its fused path and warns; warnings are errors."""
    model = stirred(**shape).train()
    seen: list[torch.dtype] = []
    for name, module in model.named_modules():
        if name.endswith("norm") and isinstance(module, nn.RMSNorm):
            module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randint(1, 40, (3, 7)), labels=torch.tensor([0, 1, 0])).loss.backward()
    assert set(seen) == {torch.float32}
    for name, part in model.named_parameters():
        assert part.grad is not None and part.grad.isfinite().all(), name
        assert part.grad.any() or "token_type" in name, name


SIX = {"input_ids": torch.tensor([[1, 2, 3, 1, 2, 3]]), "row_lengths": torch.tensor([3, 3])}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": torch.ones(1, 9, dtype=torch.long)}, "an input has 9 tokens; this model takes at most 8; trun"),
        ({"input_ids": torch.ones(1, 9, dtype=torch.long), "row_lengths": torch.tensor([9])}, "an input has 9 tokens"),
        ({**SIX, "input_ids": torch.ones(1, 5, dtype=torch.long)}, r"rows of 6 tokens came with .* \(1, 5\)"),
        ({**SIX, "input_ids": torch.ones(2, 3, dtype=torch.long)}, r"input_ids of shape \(2, 3\)"),
        ({**SIX, "attention_mask": torch.ones(1, 6)}, "and an attention_mask; give the rows end to end"),
    ],
    ids=["long", "long and packed", "other tokens", "other shape", "mask"],
)
def test_inputs_that_do_not_fit_are_one_clear_line(inputs: dict[str, Tensor], message: str) -> None:
    model = tiny_model(max_position_embeddings=8)
    model(torch.ones(1, 16, dtype=torch.long), row_lengths=torch.tensor([8, 8]))
    with pytest.raises(ConfigurationError, match=message):
        model(**inputs)


HALTING = [f"counted, {name}" for name in ("first", "last, no positions", "max, injection", "relaxed")]


def halting_model(variant: str) -> tuple[RecurraForSequenceClassification, list[list[int]]]:
    model = model_of(variant, learned_halt=True, hidden_dropout=0.0, attention_dropout=0.0)
    return model, some_rows(1, model.config.vocab_size)


def by_recurrence(row: list[int], weights: dict[str, Tensor], config: Any) -> list[tuple[Tensor, Tensor]]:
    """The label's logits and the halting logit of one row after each recurrence, by the formulas."""
    every = reference.hidden_states(row, None, weights, config, every=True)
    pooled = [reference.read_of(states, config.pooling) for states in every.values()]
    return [tuple(reference.affine(each, weights, name) for name in ("classifier", "halt")) for each in pooled]


@pytest.mark.parametrize("variant", HALTING)
def test_a_row_stops_where_its_halting_head_says_so_and_keeps_what_it_ended_with(variant: str) -> None:
    model, rows = halting_model(variant)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        # Somewhere between the rows, or all of them would do the same.
        first = [by_recurrence(row, weights, model.config)[0][1] for row in rows]
        model.halt.bias -= torch.cat(first).quantile(0.5)
        wanted = [by_recurrence(row, weights, model.config) for row in rows]
    places = [next((place for place, (_, halt) in enumerate(steps) if halt > 0), len(steps) - 1) for steps in wanted]
    expected = torch.stack([steps[place][0] for steps, place in zip(wanted, places, strict=True)])
    assert len(set(places)) > 1
    for layout in ("right", "packed"):
        output = model(**laid_out(rows, layout))
        assert output.exited_after.tolist() == [place + 1 for place in places]
        torch.testing.assert_close(output.logits.double(), expected, **TOLERANCE)
    # With the head, and without it by the number of tokens.
    for _ in range(2):
        for layout in ("right", "packed"):
            output, after = model(**laid_out(rows, layout)), model.logits_by_recurrence(**laid_out(rows, layout))
            torch.testing.assert_close(after[3], output.logits, **TOLERANCE)
            for row, last in enumerate(output.exited_after.tolist()):
                torch.testing.assert_close(after[last][row], after[3][row])
        model.halt = None


@pytest.mark.parametrize("variant", HALTING)
def test_training_follows_the_number_that_is_told_and_teaches_the_halt(variant: str) -> None:
    model, rows = halting_model(variant)
    config, weights = model.train().config, tracked(model)
    told = [reference.recurrences_of(row, config) for row in rows]
    losses, halts = [], []
    for row, label, last in zip(rows, LABELS, told, strict=True):
        steps = by_recurrence(row, weights, config)[:last]
        losses.append(reference.cross_entropy(steps[-1][0], label))
        chances = [1 / (1 + torch.exp(-halt[0])) for _, halt in steps]
        halts += [-torch.log(chance) if chance is chances[-1] else -torch.log(1 - chance) for chance in chances]
    loss = sum(losses) / len(losses) + config.halt_loss_weight * sum(halts) / len(halts)
    loss.backward()
    for layout in ("right", "packed"):
        model.zero_grad()
        output = model(**laid_out(rows, layout), labels=torch.tensor(LABELS))
        assert output.exited_after.tolist() == told
        torch.testing.assert_close(output.loss.double(), loss, **TOLERANCE)
        output.loss.backward()
        assert_same_gradients(model, weights, rtol=1e-4, atol=1e-6)


def test_a_model_that_gives_each_row_its_own_number_takes_no_other_and_its_halt_learns_beside_row_weights() -> None:
    model, rows = halting_model(HALTING[0])
    inputs = {**laid_out(rows, "right"), "labels": torch.tensor(LABELS)}
    assert isinstance(model(**inputs, return_dict=False)[0].item(), float)
    for teacher in ({}, {"teacher_logits": torch.zeros(4, 2)}):
        model.zero_grad()
        RowLoss(teacher_weight=0.5)(model.train(), {**inputs, "row_weights": torch.ones(4), **teacher}).backward()
        assert model.halt.weight.grad.abs().max() > 0
    del inputs["labels"]
    for keywords in ({"exit_after": 3}, {"exit_rule": FixedExit(3)}, {"output_hidden_states": True}):
        with pytest.raises(ConfigurationError, match="of a model with tokens_without_recurrence"):
            model(**inputs, **keywords)


def logits(model: nn.Module) -> list[Tensor]:
    """With gradients: without, a SwiGLU of plain linear maps computes its two halves apart, to other last digits."""
    return [model(IDS, attention_mask=MASK).logits, model(**PACKED).logits]


@pytest.mark.parametrize("keys", [{"low_rank": 2}, {"recurrence_norms": True}, RELAXED], ids=", ".join)
@pytest.mark.parametrize(
    "shape",
    [
        {"feed_forward": "gelu", "norm": "layer", "norm_placement": "post", "pooling": "mean"},
        {},
        {"feed_forward": "conv+linear", "num_cycles": 2},
    ],
    ids=["as in BERT", "SwiGLU", "cycles"],
)
def test_fresh_updates_and_equal_norms_change_no_bit(shape: dict[str, Any], keys: dict[str, Any]) -> None:
    plain = stirred(num_recurrences=3, **shape)
    relaxed = tiny_model(num_recurrences=3, **shape, **keys).eval()
    state, shared_state = relaxed.state_dict(), plain.state_dict()
    for name in state:
        shared = ".".join(["model.core.block", *name.split(".")[4:]]) if "core.recurrences." in name else name
        state[name] = shared_state.get(shared, state[name])
    relaxed.load_state_dict(state)
    for found, wanted in zip(logits(relaxed), logits(plain), strict=True):
        assert torch.equal(found, wanted)


def test_a_shared_matrix_stands_once_and_belongs_to_its_own_model(tmp_path: Path) -> None:
    model = stirred(**RELAXED)
    state = model.state_dict()
    assert sum(values.numel() for values in state.values()) == sum(part.numel() for part in model.parameters())
    assert len({values.data_ptr() for values in state.values()}) == len(state)
    other = copy.deepcopy(model)
    wanted = logits(model)
    with torch.no_grad():
        other.model.core.block.layers[0].attention.qkv_proj.weight.mul_(-1)
    assert torch.equal(logits(model)[0], wanted[0]) and not torch.equal(logits(other)[0], wanted[0])
    model.save_pretrained(tmp_path)
    loaded = RecurraForSequenceClassification.from_pretrained(tmp_path).eval()
    assert all(torch.equal(found, each) for found, each in zip(logits(loaded), wanted, strict=True))
