"""A halting head: taught the passes that a row's tokens ask for, it decides by itself in evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.references import recurrent_transformer as reference
from tests.unit.models.test_modeling import TOLERANCE, config_of, laid_out, some_rows
from torch import Tensor

from recurra.core.errors import ConfigurationError
from recurra.models.exits.rules import FixedExit
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.training.distillation import RowLoss

VARIANTS = [f"counted, {name}" for name in ("first", "last, no positions", "max, injection", "relaxed")]
LAYOUTS = [(variant, layout) for variant in VARIANTS for layout in ("right", "packed")]


def halting_model(variant: str) -> tuple[RecurraForSequenceClassification, list[list[int]]]:
    """A model in FP64 whose halting head says now this and now that, and rows of several lengths."""
    config = config_of(variant)
    config.learned_halt = True
    torch.manual_seed(0)
    model = RecurraForSequenceClassification(config).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model, some_rows(1, config.vocab_size, 1)


def by_recurrence(row: list[int], weights: dict[str, Tensor], config: Any) -> list[tuple[Tensor, Tensor]]:
    """The label's logits and the halting logit of one row after each recurrence, by the formulas."""
    base = {name.removeprefix("model."): weight for name, weight in weights.items()}
    states = reference.embed(row, None, base, config)
    for number in range(config.num_prelude_layers):
        states = reference.layer(states, base, f"prelude.layers.{number}", config)
    found = []
    for after in reference.recur(states, base, config):
        normed = [reference.normalise(state, base, "final_norm", config) for state in after if config.final_norm]
        pooled = reference.read_of(normed or after, config.pooling)
        logits = reference.affine(pooled, weights["classifier.weight"], weights["classifier.bias"])
        found.append((logits, reference.affine(pooled, weights["halt.weight"], weights["halt.bias"])[0]))
    return found


@pytest.mark.parametrize(("variant", "layout"), LAYOUTS)
def test_a_row_stops_after_the_first_recurrence_at_which_its_halting_head_says_so(variant: str, layout: str) -> None:
    model, rows = halting_model(variant)
    model.eval()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    wanted = [by_recurrence(row, weights, model.config) for row in rows]
    # Somewhere between the rows, or all of them would do the same.
    with torch.no_grad():
        model.halt.bias -= torch.stack([steps[0][1] for steps in wanted]).quantile(0.5)
    wanted = [by_recurrence(row, dict(model.named_parameters()), model.config) for row in rows]
    places = [next((place for place, (_, halt) in enumerate(steps) if halt > 0), len(steps) - 1) for steps in wanted]
    output = model(**laid_out(rows, None, layout))
    assert output.exited_after.tolist() == [place + 1 for place in places] and len(set(places)) > 1
    expected = torch.stack([steps[place][0] for steps, place in zip(wanted, places, strict=True)])
    torch.testing.assert_close(output.logits.double(), expected, **TOLERANCE)


@pytest.mark.parametrize(("variant", "layout"), LAYOUTS)
def test_training_follows_the_number_that_is_told_and_teaches_the_halt(variant: str, layout: str) -> None:
    model, rows = halting_model(variant)
    config = model.config
    config.hidden_dropout = config.attention_dropout = 0.0
    model = RecurraForSequenceClassification(config).double().train()
    labels = [0, 1, 1, 0]
    output = model(**laid_out(rows, None, layout), labels=torch.tensor(labels))
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    told = [reference.recurrences_of(row, config) for row in rows]
    assert output.exited_after.tolist() == told
    losses, halts = [], []
    for row, label, last in zip(rows, labels, told, strict=True):
        steps = by_recurrence(row, weights, config)[:last]
        losses.append(reference.cross_entropy(steps[-1][0], label))
        chances = [1 / (1 + torch.exp(-halt)) for _, halt in steps]
        halts += [-torch.log(chance) if chance is chances[-1] else -torch.log(1 - chance) for chance in chances]
    loss = sum(losses) / len(losses) + config.halt_loss_weight * sum(halts) / len(halts)
    torch.testing.assert_close(output.loss.double(), loss, **TOLERANCE)
    output.loss.backward()
    loss.backward()
    for name, weight in model.named_parameters():
        ours, theirs = (torch.zeros_like(weight) if one is None else one for one in (weight.grad, weights[name].grad))
        torch.testing.assert_close(
            ours, theirs, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"gradient of {n}: {text}"
        )


@pytest.mark.parametrize("halting", [False, True])
@pytest.mark.parametrize(("variant", "layout"), LAYOUTS)
def test_a_row_keeps_what_it_ended_with_in_what_is_said_after_each_recurrence(
    variant: str, layout: str, halting: bool
) -> None:
    model, rows = halting_model(variant)
    model.eval()
    if not halting:
        model.halt = None
    inputs = laid_out(rows, None, layout)
    output = model(**inputs)
    after = model.logits_by_recurrence(**inputs)
    torch.testing.assert_close(after[3], output.logits, **TOLERANCE)
    for row, last in enumerate(output.exited_after.tolist()):
        torch.testing.assert_close(after[last][row], after[3][row])


def test_a_model_that_gives_each_row_its_own_number_takes_no_other() -> None:
    model, rows = halting_model(VARIANTS[0])
    inputs = laid_out(rows, None, "right")
    for keywords in ({"exit_after": 3}, {"exit_rule": FixedExit(3)}, {"output_hidden_states": True}):
        with pytest.raises(ConfigurationError, match="of a model with tokens_without_recurrence"):
            model(**inputs, **keywords)
    assert isinstance(model.eval()(**inputs, labels=torch.tensor([0, 1, 1, 0]), return_dict=False)[0].item(), float)


@pytest.mark.parametrize("taught", [False, True])
def test_rows_with_weights_teach_the_halt_too(taught: bool) -> None:
    model, rows = halting_model(VARIANTS[0])
    inputs = {**laid_out(rows, None, "right"), "labels": torch.tensor([0, 1, 1, 0]), "row_weights": torch.ones(4)}
    answers = {"teacher_logits": torch.zeros(4, 2)} if taught else {}
    RowLoss(teacher_weight=0.5)(model.train(), inputs | answers).backward()
    assert model.halt.weight.grad.abs().max() > 0
