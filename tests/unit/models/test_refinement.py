"""Encoders of convolutional cycles with exits equal the formulas on padded and packed batches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from recurra import RecurraForSequenceClassification, RecurraModel
from recurra.core.errors import ConfigurationError
from references import recurrent_transformer as reference
from tiny import language_config, stir

TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}
ENCODER: dict[str, Any] = {"causal": False, "causal_convolution": False, "num_recurrences": 3, "exits": [1, 2]}
VARIANTS: dict[str, dict[str, Any]] = {
    "conv+linear": {},
    "separate heads": {"heads": "separate"},
    "conv": {"feed_forward": "conv"},
    "linear": {"feed_forward": "linear"},
    "depthwise": {"feed_forward": "depthwise"},
    "causal convolution": {"causal_convolution": True},
    "causal, last": {"causal": True, "causal_convolution": True, "pooling": "last"},
    "last": {"pooling": "last"},
    "max": {"pooling": "max"},
    "pre-norm, rotary, token types": {
        "norm": "rms", "norm_placement": "pre", "position": "rotary", "type_vocab_size": 2, "embedding_norm": True,
        "final_norm": True,
    },
    "prelude": {"num_prelude_layers": 1, "num_recurrences": 2, "exits": [1]},
    "coda": {"num_coda_layers": 1, "num_recurrences": 2, "exits": []},
    "SwiGLU": {"feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0},
}  # fmt: skip
LENGTHS = [5, 5, 3, 1]
# Left of a padded row the first position would be padding.
CASES = [
    (variant, layout)
    for variant, values in VARIANTS.items()
    for layout in ("right", "left", "packed")
    if layout != "left" or values.get("pooling", "first") != "first"
]


def classifier(variant: str) -> RecurraForSequenceClassification:
    torch.manual_seed(0)
    model = RecurraForSequenceClassification(language_config(**{**ENCODER, **VARIANTS[variant]})).double().eval()
    stir(model)
    return model


def rows_of(lengths: list[int]) -> list[list[int]]:
    dice = torch.Generator().manual_seed(1)
    return [torch.randint(0, 11, (length,), generator=dice).tolist() for length in lengths]


def padded(rows: list[list[int]], *, left: bool) -> dict[str, Tensor]:
    """Padded with a token that also occurs in rows, so that only the mask can tell."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), 3)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        where = slice(width - len(row), None) if left else slice(None, len(row))
        ids[place, where], mask[place, where] = torch.tensor(row), 1
    return {"input_ids": ids, "attention_mask": mask}


def packed(rows: list[list[int]], *, left: bool) -> dict[str, Tensor]:
    flat = [token for row in rows for token in row]
    return {"input_ids": torch.tensor([flat]), "row_lengths": torch.tensor([*map(len, rows)])}


@pytest.mark.parametrize(("variant", "layout"), CASES)
def test_every_exit_and_every_gradient_equals_the_formulas(variant: str, layout: str) -> None:
    model = classifier(variant)
    config = model.config
    rows, labels = rows_of(LENGTHS), [0, 1, 1, 0]
    lay = packed if layout == "packed" else padded
    output = model(**lay(rows, left=layout == "left"), labels=torch.tensor(labels))
    output.loss.backward()
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    losses: dict[int, Any] = {}
    for place, row in enumerate(rows):
        wanted = reference.classify_exits(row, None, weights, config)
        found = [*(output.exit_logits or ()), output.logits]
        for (number, scores), logits in zip(wanted.items(), found, strict=True):
            torch.testing.assert_close(logits[place].double(), scores.detach(), **TOLERANCE)
            losses[number] = losses.get(number, 0) + reference.cross_entropy(scores, labels[place]) / len(rows)
    loss = reference.weigh(losses, config)
    loss.backward()
    torch.testing.assert_close(output.loss.double(), loss, **TOLERANCE)
    for name, weight in model.named_parameters():
        ours, theirs = weight.grad, weights[name].grad
        ours = torch.zeros_like(weight) if ours is None else ours
        theirs = torch.zeros_like(weight) if theirs is None else theirs
        torch.testing.assert_close(ours, theirs, **TOLERANCE, msg=lambda text, n=name: f"gradient of {n}: {text}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_computing_only_leading_positions_equals_the_full_computation(variant: str) -> None:
    torch.manual_seed(0)
    full = RecurraModel(language_config(**{**ENCODER, **VARIANTS[variant]})).double().eval()
    stir(full)
    short = copy.deepcopy(full)
    inputs = padded(rows_of(LENGTHS), left=False)
    wanted, got = full(**inputs), short(**inputs, num_positions=2)
    pairs = [(wanted.last_hidden_state, got.last_hidden_state)]
    pairs += zip(wanted.exit_states or (), got.exit_states or (), strict=True)
    assert len(pairs) == 1 + len(full.config.exits)
    for whole, leading in pairs:
        torch.testing.assert_close(leading, whole[:, :2], rtol=1e-9, atol=1e-10)


def test_a_classifier_has_no_table_to_tie_its_heads_to() -> None:
    with pytest.raises(ConfigurationError, match="'heads' is 'tied'; allowed for a classifier: shared, separate"):
        RecurraForSequenceClassification(language_config(heads="tied"))
