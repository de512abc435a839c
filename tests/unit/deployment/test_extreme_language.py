"""Language models with numbers at the edge of what their types hold: a figure is a number, or an error says so."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings

from extreme import EDITS, LARGEST, Edit, edited
from recurra.core.errors import RunError
from recurra.deployment.generation import GenerationSettings, Generator, LanguageModel
from recurra.evaluation.perplexity import score_texts
from recurra.models.exits.rules import ConfidenceRule, FixedExit
from tiny import language_model, stir

CONTEXT, END, VOCABULARY = 32, 0, 11
MODELS = {
    "conv, learned positions": language_model(max_position_embeddings=CONTEXT),
    "rotary, pre-norm, separate heads": language_model(
        max_position_embeddings=CONTEXT, position="rotary", norm_placement="pre", final_norm=True, heads="separate"
    ),
}
for _model in MODELS.values():
    stir(_model.eval())
WEIGHTS = {name: copy.deepcopy(model.state_dict()) for name, model in MODELS.items()}
ROWS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1e-3, "top_p": 0.9},
    "beams": {"num_beams": 3},
    "early": {"rule": ConfidenceRule.constant(0.3)},
    "after 1": {"rule": FixedExit(1)},
    "drafted": {"draft": 1},
}


def with_weights(name: str, edits: list[Edit]) -> Any:
    """The model with tensors, or their first values, of another size."""
    MODELS[name].load_state_dict(edited(WEIGHTS[name], edits))
    return MODELS[name]


def scored(model: Any, texts: list[np.ndarray], precision: str) -> dict[str, np.ndarray]:
    return score_texts(
        model, texts, first_read=END, context=CONTEXT, batch_positions=2 * CONTEXT, precision=precision, exits=True
    )


class Tokens:
    """What a generator asks of a tokenizer."""

    eos_token_id = END

    def __len__(self) -> int:
        return VOCABULARY


def on(model: Any, how: str) -> Generator:
    tokenizer: Any = Tokens()
    return Generator(LanguageModel("model", model, tokenizer), GenerationSettings(max_new_tokens=4, **HOW[how]))


def or_error(compute: Callable[[], Any], words: str) -> Any:
    """What was computed; none if an error of ours said that it is no number."""
    try:
        return compute()
    except RunError as error:
        assert words in str(error)
        return None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=15)
@given(edits=EDITS)
@example(edits=[(0, LARGEST, True)])
def test_with_any_weights_a_token_costs_a_number_alone_and_among_others(
    name: str, precision: str, edits: list[Edit]
) -> None:
    model = with_weights(name, edits)
    texts = [np.array(row) for row in ROWS]
    together = or_error(lambda: scored(model, texts, precision), "are not numbers")
    apart = [or_error(lambda one=one: scored(model, [one], precision), "are not numbers") for one in texts]
    assert (together is None) == any(one is None for one in apart)
    if together is None:
        return
    for head, nats in together.items():
        assert (nats >= 0).all()
        alone = np.concatenate([one[head] for one in apart])
        finite = np.isfinite(nats)
        assert np.array_equal(finite, np.isfinite(alone))
        bound = {"fp32": 1e-5, "bf16": 2e-2}[precision] * max(1.0, nats[finite].max(initial=0))
        assert np.abs(nats[finite] - alone[finite]).max(initial=0) <= bound


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=8)
@given(edits=EDITS)
@example(edits=[(0, LARGEST, True)])
@example(edits=[(10781, LARGEST, False)])
def test_with_any_weights_a_text_goes_on_in_tokens_or_an_error_says_so(name: str, how: str, edits: list[Edit]) -> None:
    generator = on(with_weights(name, edits), how)
    found = or_error(lambda: generator.extend(ROWS), "scores that are not numbers")
    if found is not None:
        assert all(0 <= token < VOCABULARY for row in found for token in row)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", MODELS)
def test_no_text_is_made_of_what_is_no_number(name: str, how: str) -> None:
    model = with_weights(name, [(place, math.nan, True) for place in range(len(WEIGHTS[name]))])
    with pytest.raises(RunError, match="scores that are not numbers"):
        on(model, how).extend(ROWS)


@pytest.mark.parametrize("name", MODELS)
def test_a_text_of_100_000_tokens_is_scored_in_windows(name: str) -> None:
    model = with_weights(name, [])
    long = np.random.default_rng(0).integers(1, VOCABULARY, 100_000)
    short = long[: 3 * CONTEXT]
    nats = score_texts(model, [long, short], first_read=END, context=CONTEXT)["final"]
    assert len(nats) == len(long) + len(short) and np.isfinite(nats).all()
    np.testing.assert_allclose(nats[: len(short)], nats[len(long) :], rtol=1e-5)
