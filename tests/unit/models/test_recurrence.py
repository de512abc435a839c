"""Rows that leave a batch: each gets what it gets alone, and costs what the rule says and no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recurra import RecurraForSequenceClassification
from recurra.models.exits.rules import ConfidenceRule, EntropyRule, ExitRule, FixedExit, confidence, entropy
from references import recurrent_transformer as reference
from references.exits import stops
from tiny import assert_same_gradients, laid_out, rows_of, stir, stirred, stirred_language_model, tiny_model

TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}
LENGTHS = [5, 3, 5, 1, 4, 2]
EXITS: dict[str, Any] = {"num_recurrences": 4, "exits": [1, 3]}
CONV: dict[str, Any] = {**EXITS, "feed_forward": "conv+linear", "num_cycles": 2, "causal_convolution": False}
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "first": EXITS,
    "separate heads": {**EXITS, "heads": "separate"},
    "last": {**EXITS, "pooling": "last", "final_norm": True},
    "max": {**EXITS, "pooling": "max"},
    "causal, injection, prelude": {
        **EXITS, "pooling": "last", "causal": True, "input_injection": "concat", "num_prelude_layers": 1,
    },
    "conv": CONV,
    "conv, learned positions": {**CONV, "position": "learned"},
}  # fmt: skip
LANGUAGE: dict[str, dict[str, Any]] = {
    "crt": EXITS,
    "separate heads, rotary, pre-norm": {
        **EXITS, "heads": "separate", "position": "rotary", "norm_placement": "pre", "final_norm": True,
    },
    "tied, two layers": {**EXITS, "heads": "tied", "num_core_layers": 2},
}  # fmt: skip


def alone(by_exit: list[dict[int, Tensor]], rule: ExitRule) -> tuple[list[Tensor], list[int]]:
    """What each row gets and where it leaves, from the formulas' logits at all of its exits."""
    # The formulas give (classes,) or (tokens, classes); both are one row.
    depths = [next((at for at in sorted(row) if stops(rule.plain(), row[at], at)), max(row)) for row in by_exit]
    return [row[depth] for row, depth in zip(by_exit, depths, strict=True)], depths


@torch.no_grad()
def middle_rules(by_exit: list[dict[int, Tensor]], exits: list[int]) -> list[ExitRule]:
    """Rules that let some rows go and keep others, at more than one exit, and the extremes."""

    def middle(measure: Any, number: int) -> float:
        return float(torch.stack([measure(logits[number]).mean() for logits in by_exit]).sort().values[2:4].mean())

    return [
        *(ConfidenceRule.constant(middle(confidence, number)) for number in exits),
        *(EntropyRule(middle(entropy, number)) for number in exits),
        ConfidenceRule.constant(1.0),
        ConfidenceRule.constant(1e-6),
        *(FixedExit(number) for number in exits),
    ]


def counted_rows(model: Any) -> list[int]:
    """The rows that the core will compute, recurrence by recurrence."""
    rows: list[int] = []
    model.model.core.block.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    return rows


def expected_work(depths: list[int]) -> list[int]:
    return [sum(depth >= number for depth in depths) for number in range(1, max(depths) + 1)]


def classifier(variant: str) -> RecurraForSequenceClassification:
    sizes = {"vocab_size": 12, "hidden_size": 8, "intermediate_size": 6, "num_core_layers": 1}
    return stirred(**sizes, **CLASSIFIERS[variant]).double()


@pytest.mark.parametrize("packing", ["padded", "packed"])
@pytest.mark.parametrize("variant", CLASSIFIERS)
@torch.no_grad()
def test_a_row_of_a_batch_gets_what_it_gets_alone(variant: str, packing: str) -> None:
    model, rows = classifier(variant), rows_of(LENGTHS, 12)
    inputs, config, weights = laid_out(rows, packing), model.config, dict(model.named_parameters())
    by_exit = [reference.classify_exits(row, None, weights, config) for row in rows]
    whole, work = model(**inputs), counted_rows(model)
    seen = set()
    for rule in middle_rules(by_exit, config.exits):
        said, depths = alone(by_exit, rule)
        work.clear()
        output = model(**inputs, exit_rule=rule)
        assert output.exited_after.tolist() == depths
        torch.testing.assert_close(output.logits.double(), torch.stack(said), **TOLERANCE)
        if packing == "padded":
            assert work == expected_work(depths)
        else:
            assert len(work) == max(depths)
        if set(depths) == {config.num_recurrences}:
            torch.testing.assert_close(output.logits, whole.logits, rtol=0, atol=0)
        seen |= {tuple(sorted(set(depths)))}
    # The rules did part the rows, at more than one exit.
    assert any(len(depths) > 1 for depths in seen) and {depth for depths in seen for depth in depths} == {1, 3, 4}


@pytest.mark.parametrize("variant", ["separate heads", "causal, injection, prelude", "conv"])
def test_gradients_through_rows_that_stopped_are_those_of_the_formulas(variant: str) -> None:
    model, rows = classifier(variant), rows_of(LENGTHS, 12)
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    by_exit = [reference.classify_exits(row, None, weights, model.config) for row in rows]
    rule = middle_rules(by_exit, model.config.exits)[0]
    said, depths = alone(by_exit, rule)
    torch.stack(said).square().sum().backward()
    for packing in ("padded", "packed"):
        output = model(**laid_out(rows, packing), exit_rule=rule)
        assert output.exited_after.tolist() == depths and len(set(depths)) > 1
        model.zero_grad()
        output.logits.double().square().sum().backward()
        assert_same_gradients(model, weights, rtol=1e-4, atol=1e-5)


def test_rows_without_tokens_keep_nobody_waiting() -> None:
    """They fill a packed batch up to a size that is known; what they read is another row's and means nothing."""
    stayed, batch = 0, laid_out(rows_of(LENGTHS, 40), "packed")
    filled = {**batch, "row_lengths": torch.tensor([*LENGTHS, 0, 0])}
    for seed in range(12):
        model = tiny_model(**EXITS).eval()
        stir(model, seed)
        with torch.inference_mode():
            sure = model(**filled).exit_logits[0].softmax(-1).amax(-1)
            rule = ConfidenceRule.constant(float(sure[:6].min()) - 1e-5)
            output, wanted = model(**filled, exit_rule=rule), model(**batch, exit_rule=rule)
        stayed += bool((sure[6:] < rule.bound(1)).any())
        assert output.exited_after[:6].tolist() == [1] * 6 == wanted.exited_after.tolist()
        torch.testing.assert_close(output.logits[:6], wanted.logits, **TOLERANCE)
    assert stayed


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("variant", LANGUAGE)
@torch.no_grad()
def test_a_scored_row_of_a_batch_gets_what_it_gets_alone(variant: str, side: str) -> None:
    model = stirred_language_model(**LANGUAGE[variant], spread=0.6).double()
    rows, weights = rows_of(LENGTHS, 11), dict(model.named_parameters())
    inputs = laid_out(rows, side)
    real = inputs["attention_mask"].bool()
    by_exit = [reference.next_token_logits(row, weights, model.config) for row in rows]
    # The last position alone may decide: that of who asks for one.
    ends = [{number: logits[-1:] for number, logits in row.items()} for row in by_exit]
    work, seen = counted_rows(model), set[int]()
    for rule in middle_rules(by_exit, model.config.exits):
        said, depths = alone(by_exit, rule)
        output = model(**inputs, exit_rule=rule)
        assert output.exited_after.tolist() == depths and work == expected_work(depths)
        torch.testing.assert_close(output.logits[real], torch.cat(said), **TOLERANCE)
        seen |= set(depths)
        work.clear()
        if side == "left":
            said, depths = alone(ends, rule)
            output = model(**inputs, exit_rule=rule, logits_to_keep=1)
            assert output.exited_after.tolist() == depths and work == expected_work(depths)
            torch.testing.assert_close(output.logits, torch.stack(said), **TOLERANCE)
            work.clear()
    assert seen == {1, 3, 4}


def test_the_last_layer_before_a_fixed_exit_computes_one_position() -> None:
    model = tiny_model(**EXITS).eval()
    shapes: list[tuple[int, ...]] = []
    model.model.core.block.register_forward_hook(lambda *said: shapes.append(tuple(said[2].shape[:2])))
    with torch.no_grad():
        output = model(**laid_out(rows_of(LENGTHS, 40)), exit_rule=FixedExit(3))
    assert shapes == [(6, 5), (6, 5), (6, 1)] and output.exited_after.tolist() == [3] * 6
