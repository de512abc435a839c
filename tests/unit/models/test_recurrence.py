"""Rows that leave a batch: each gets what it gets alone, and costs what the rule says and no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recurra.models.exits.rules import ConfidenceRule, EntropyRule, ExitRule, FixedExit, confidence, entropy
from references import recurrent_transformer as reference
from references.exits import stops
from tiny import laid_out, language_model, rows_of, stir, tiny_model

TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}
LENGTHS = [5, 3, 5, 1, 4, 2]
EXITS: dict[str, Any] = {"num_recurrences": 4, "exits": [1, 3]}
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "first": EXITS,
    "separate heads": {**EXITS, "heads": "separate"},
    "last": {**EXITS, "pooling": "last", "final_norm": True},
    "max": {**EXITS, "pooling": "max"},
    "causal, injection, prelude": {
        **EXITS, "pooling": "last", "causal": True, "input_injection": "concat", "num_prelude_layers": 1,
    },
    "conv": {**EXITS, "feed_forward": "conv+linear", "num_cycles": 2, "causal_convolution": False},
    "conv, learned positions": {
        **EXITS, "feed_forward": "conv+linear", "num_cycles": 2, "causal_convolution": False, "position": "learned",
    },
}  # fmt: skip
LANGUAGE: dict[str, dict[str, Any]] = {
    "crt": EXITS,
    "separate heads, rotary, pre-norm": {
        **EXITS, "heads": "separate", "position": "rotary", "norm_placement": "pre", "final_norm": True,
    },
    "tied, two layers": {**EXITS, "heads": "tied", "num_core_layers": 2},
}  # fmt: skip


def alone(by_exit: list[dict[int, Tensor]], rule: ExitRule, last: int) -> tuple[list[Tensor], list[int]]:
    """What each row gets and where it leaves, from the formulas' logits at all of its exits."""
    said, depths = [], []
    for logits in by_exit:
        # The formulas give (classes,) or (tokens, classes); both are one row.
        stopping = (number for number in sorted(logits) if stops(rule.plain(), logits[number], number))
        depth = next(stopping, last)
        said.append(logits[depth])
        depths.append(depth)
    return said, depths


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


class Work:
    """Counts the rows that the core computes, recurrence by recurrence."""

    def __init__(self, model: Any) -> None:
        self.rows: list[int] = []
        model.model.core.block.register_forward_pre_hook(lambda _, inputs: self.rows.append(len(inputs[0])))

    def taken(self) -> list[int]:
        taken, self.rows = self.rows, []
        return taken


def expected_work(depths: list[int]) -> list[int]:
    return [sum(depth >= number for depth in depths) for number in range(1, max(depths) + 1)]


@pytest.mark.parametrize("packing", ["padded", "packed"])
@pytest.mark.parametrize("variant", CLASSIFIERS)
def test_a_row_of_a_batch_gets_what_it_gets_alone(variant: str, packing: str) -> None:
    shape = {"vocab_size": 12, "hidden_size": 8, "intermediate_size": 6, "num_core_layers": 1, **CLASSIFIERS[variant]}
    model = tiny_model(**shape).double().eval()
    stir(model, spread=0.3)
    config = model.config
    rows = rows_of(LENGTHS, 12)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        by_exit = [reference.classify_exits(row, None, weights, config) for row in rows]
        inputs = laid_out(rows, packing)
        full = model(**inputs)
        work = Work(model)
        seen = set()
        for rule in middle_rules(by_exit, config.exits):
            said, depths = alone(by_exit, rule, config.num_recurrences)
            output = model(**inputs, exit_rule=rule)
            assert output.exited_after.tolist() == depths
            torch.testing.assert_close(output.logits.double(), torch.stack(said), **TOLERANCE)
            taken = work.taken()
            if packing == "padded":
                assert taken == expected_work(depths)
            else:
                assert len(taken) == max(depths)
            if set(depths) == {config.num_recurrences}:
                torch.testing.assert_close(output.logits, full.logits, rtol=0, atol=0)
            seen |= {tuple(sorted(set(depths)))}
    # The rules did part the rows, at more than one exit.
    assert any(len(depths) > 1 for depths in seen) and {depth for depths in seen for depth in depths} == {1, 3, 4}


def test_rows_without_tokens_keep_nobody_waiting() -> None:
    """They fill a packed batch up to a size that is known; what they read is another row's and means nothing."""
    stayed = 0
    for seed in range(12):
        model = tiny_model(**EXITS).eval()
        stir(model, seed)
        rows = rows_of(LENGTHS, 40)
        batch = laid_out(rows, "packed")
        filled = {**batch, "row_lengths": torch.cat([batch["row_lengths"], torch.zeros(2, dtype=torch.long)])}
        with torch.inference_mode():
            sure = model(**filled).exit_logits[0].softmax(-1).amax(-1)
            rule = ConfidenceRule.constant(float(sure[: len(rows)].min()) - 1e-5)
            output = model(**filled, exit_rule=rule)
            wanted = model(**batch, exit_rule=rule)
        stayed += bool((sure[len(rows) :] < rule.bound(1)).any())
        assert output.exited_after[: len(rows)].tolist() == [1] * len(rows) == wanted.exited_after.tolist()
        torch.testing.assert_close(output.logits[: len(rows)], wanted.logits, **TOLERANCE)
    assert stayed


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("variant", LANGUAGE)
def test_a_scored_row_of_a_batch_gets_what_it_gets_alone(variant: str, side: str) -> None:
    model = language_model(**LANGUAGE[variant]).double().eval()
    stir(model, spread=0.6)
    config = model.config
    rows = rows_of(LENGTHS, 11)
    weights = dict(model.named_parameters())
    inputs = laid_out(rows, side)
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        by_exit = [reference.next_token_logits(row, weights, config) for row in rows]
        work = Work(model)
        seen: set[int] = set()
        for rule in middle_rules(by_exit, config.exits):
            said, depths = alone(by_exit, rule, config.num_recurrences)
            output = model(**inputs, exit_rule=rule)
            assert output.exited_after.tolist() == depths
            assert work.taken() == expected_work(depths)
            for row, wanted in enumerate(said):
                torch.testing.assert_close(output.logits[row][real[row]], wanted, **TOLERANCE)
            seen |= set(depths)
            # The last position alone may decide: that of who asks for one.
            if side == "left":
                ends = [{number: logits[-1:] for number, logits in row.items()} for row in by_exit]
                last, depths = alone(ends, rule, 4)
                output = model(**inputs, exit_rule=rule, logits_to_keep=1)
                assert output.exited_after.tolist() == depths and work.taken() == expected_work(depths)
                torch.testing.assert_close(output.logits, torch.stack(last), **TOLERANCE)
    assert seen == {1, 3, 4}


@pytest.mark.parametrize("packing", ["padded", "packed"])
@pytest.mark.parametrize("variant", ["separate heads", "causal, injection, prelude", "conv"])
def test_gradients_through_rows_that_stopped_are_those_of_the_formulas(variant: str, packing: str) -> None:
    shape = {"vocab_size": 12, "hidden_size": 8, "intermediate_size": 6, "num_core_layers": 1, **CLASSIFIERS[variant]}
    model = tiny_model(**shape).double().eval()
    stir(model, spread=0.3)
    rows, weights = rows_of(LENGTHS, 12), dict(model.named_parameters())
    leaves = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
    by_exit = [reference.classify_exits(row, None, leaves, model.config) for row in rows]
    detached = [{number: logits.detach() for number, logits in row.items()} for row in by_exit]
    rule = middle_rules(detached, model.config.exits)[0]
    said, depths = alone(by_exit, rule, model.config.num_recurrences)
    torch.stack(said).square().sum().backward()
    output = model(**laid_out(rows, packing), exit_rule=rule)
    assert output.exited_after.tolist() == depths and len(set(depths)) > 1
    output.logits.double().square().sum().backward()
    for name, weight in weights.items():
        ours, theirs = (torch.zeros_like(weight) if part is None else part for part in (weight.grad, leaves[name].grad))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_last_layer_before_a_fixed_exit_computes_one_position() -> None:
    model = tiny_model(**EXITS).eval()
    shapes: list[tuple[int, ...]] = []
    model.model.core.block.register_forward_hook(lambda *said: shapes.append(tuple(said[2].shape[:2])))
    with torch.no_grad():
        output = model(**laid_out(rows_of(LENGTHS, 40)), exit_rule=FixedExit(3))
    assert shapes == [(6, 5), (6, 5), (6, 1)] and output.exited_after.tolist() == [3] * 6
