"""Numbers at the edge of what their types hold: an answer is a number, or an error says that there is none.

It is also the same alone and among others, within bounds that `docs/explanation/trust.md` states.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from transformers import PreTrainedTokenizerFast

from extreme import EDGES, EDITS, LARGEST, SMALLEST, Edit, edited
from onnx_graphs import SATURATES
from recurra import Classifier, RecurraForSequenceClassification
from recurra.core.errors import AuditError, RunError
from recurra.data.tokenization import as_transformers, train_wordpiece, wordpiece
from recurra.deployment.decision import AnyLabels, OneLabel
from recurra.deployment.engines.computation import Engine, LinearEngine
from recurra.deployment.engines.trained import TransformerEngine
from recurra.deployment.export.build import save_tokenizer
from recurra.deployment.export.formats import write_safetensors
from recurra.deployment.onnx.engine import OnnxEngine
from recurra.deployment.onnx.graph import quantise_rows
from recurra.deployment.onnx.model import write_onnx
from recurra.models.controls.fitting import fit_linear, fit_static
from recurra.models.exits.rules import ConfidenceRule, EntropyRule, ExitRule, FixedExit, confidence, entropy
from reviews import review_rows
from tiny import stirred

ROWS = review_rows(40)
TEXTS = [*(text for text, _ in ROWS[:8]), "", "great", "!" * 40, "great film " * 50]
HUNDRED_THOUSAND_TOKENS = "great film " * 50_000
MAX_LENGTH = 24


@dataclass(frozen=True)
class Model:
    """A classifier, and the weights that it had."""

    model: RecurraForSequenceClassification
    tokenizer: PreTrainedTokenizerFast
    weights: dict[str, torch.Tensor]


def a_model(**shape: object) -> Model:
    tokenizer = as_transformers(wordpiece(train_wordpiece([text for text, _ in ROWS], 200)))
    model = stirred(vocab_size=len(tokenizer), max_position_embeddings=32, **shape)
    return Model(model, tokenizer, copy.deepcopy(model.state_dict()))


MODELS = {
    "loop": a_model(),
    "exits": a_model(num_recurrences=3, exits=[1], heads="separate", pooling="mean", norm="layer", num_core_layers=1),
}


# How far an answer may differ alone and among others, as a share of the largest logit, and of 1 at least.
ENGINES = {
    "torch fp32": 1e-5, "torch bf16": 2e-2, "safetensors fp16": 1e-5, "onnx fp32": 1e-5,
    "onnx int8": 0.3 if SATURATES else 0.15,
}  # fmt: skip


def opened(name: str, one: Model, edits: Sequence[Edit] = ()) -> Engine | None:
    """An engine of changed weights; none if an error said that FP16 cannot hold them."""
    one.model.load_state_dict(edited(one.weights, list(edits)))
    kind, precision = name.split()
    if kind == "torch":
        return TransformerEngine(copy.deepcopy(one.model), one.tokenizer, precision=precision, max_length=MAX_LENGTH)
    with TemporaryDirectory() as root:
        folder = Path(root)
        if kind == "onnx":
            save_tokenizer(one.tokenizer, MAX_LENGTH, folder)
            write_onnx(one.model, precision, MAX_LENGTH, folder, {})
            return OnnxEngine(folder, precision=precision, max_length=MAX_LENGTH, pad_token_id=0, threads=1)
        try:
            write_safetensors(one.model, precision, folder)
        except AuditError as error:
            assert "fp16 cannot hold" in str(error)
            return None
        one.tokenizer.save_pretrained(folder)
        return TransformerEngine.load(folder, max_length=MAX_LENGTH)


def alone(engine: Engine, texts: list[str]) -> np.ndarray:
    return np.concatenate([engine.logits([text], 32) for text in texts])


def difference(first: np.ndarray, second: np.ndarray) -> float:
    """As a share of the largest, and of 1 at least."""
    return float(np.abs(first.astype(np.float64) - second).max(initial=0) / max(1.0, np.abs(first).max(initial=0)))


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=12)
@given(edits=EDITS, shape=st.sampled_from(sorted(MODELS)))
@example(edits=[(25, SMALLEST, True)], shape="loop")
@example(edits=[(0, LARGEST, True)], shape="loop")
@example(edits=[(0, LARGEST, True)], shape="exits")
def test_with_any_weights_an_answer_is_a_number_or_an_error_says_so(name: str, shape: str, edits: list[Edit]) -> None:
    engine = opened(name, MODELS[shape], edits)
    if engine is None:
        return
    together = engine.logits(TEXTS, 32)
    try:
        found = Classifier(engine, ["no", "yes"]).predict_proba(TEXTS)
    except RunError as error:
        assert "scores that are not numbers" in str(error) and not np.isfinite(together).all()
    else:
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found.sum(axis=1), 1)
    if name == "onnx int8":
        # The activations of a batch share a scale, so that a text with large ones moves the others.
        return
    apart = alone(engine, TEXTS)
    numbers = np.isfinite(together).all(axis=1)
    assert np.array_equal(numbers, np.isfinite(apart).all(axis=1))
    assert difference(together[numbers], apart[numbers]) <= ENGINES[name]


RULES: list[ExitRule] = [FixedExit(1), ConfidenceRule.constant(0.7), EntropyRule(0.5)]


def exits_wanted(rule: ExitRule, by_recurrence: dict[int, np.ndarray], last: int) -> tuple[np.ndarray, np.ndarray]:
    """After which recurrence each text leaves by what its heads say, and for which of them that is certain.

    It is not where rounding may move a text over the threshold, nor where a head says no numbers.
    """
    wanted = np.full(len(TEXTS), last)
    sure = np.all([np.isfinite(logits).all(axis=1) for logits in by_recurrence.values()], axis=0)
    for number in sorted(set(by_recurrence) - {last}, reverse=True):
        if rule.asks(number) and (bound := rule.as_bound(number)) is not None:
            with np.errstate(invalid="ignore", over="ignore"):
                measured = {"confidence": confidence, "entropy": entropy}[bound.measure](by_recurrence[number])
            leaves = measured >= bound.value if bound.measure == "confidence" else measured <= bound.value
            wanted[leaves] = number
            sure &= ~(np.abs(measured - bound.value) < 1e-3)
    return wanted, sure


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=10)
@given(edits=EDITS, rule=st.sampled_from(RULES))
@example(edits=[(0, LARGEST, True)], rule=RULES[0])
@example(edits=[(0, LARGEST, True)], rule=RULES[1])
@example(edits=[(0, LARGEST, True)], rule=RULES[2])
def test_a_text_leaves_with_a_number_that_is_its_own_or_an_error_says_so(
    name: str, rule: ExitRule, edits: list[Edit]
) -> None:
    engine = opened(name, MODELS["exits"], edits)
    if engine is None:
        return
    logits, exited_after = engine.leave_early(TEXTS, 32, rule)
    try:
        found = Classifier(engine, ["no", "yes"]).classify(TEXTS, rule=rule)
    except RunError as error:
        assert "scores that are not numbers" in str(error) and not np.isfinite(logits).all()
    else:
        np.testing.assert_allclose(found.probabilities.sum(axis=1), 1)
        assert found.exited_after is not None and set(found.exited_after) <= {1, engine.depth.num_recurrences}
    if name == "onnx int8":
        return
    by_recurrence = engine.logits_by_recurrence(TEXTS, 32)
    wanted, sure = exits_wanted(rule, by_recurrence, engine.depth.num_recurrences)
    np.testing.assert_array_equal(exited_after[sure], wanted[sure])
    own = np.stack([by_recurrence[number][row] for row, number in enumerate(exited_after)])
    apart = [engine.leave_early([text], 32, rule) for text in TEXTS]
    for other in (own, np.concatenate([text_logits for text_logits, _ in apart])):
        assert difference(logits[sure], other[sure]) <= ENGINES[name]


@pytest.mark.parametrize("shape", MODELS)
@pytest.mark.parametrize("name", ENGINES)
def test_a_text_of_100_000_tokens_is_answered_alike_alone_and_among_others(name: str, shape: str) -> None:
    engine, texts = opened(name, MODELS[shape]), [*TEXTS, HUNDRED_THOUSAND_TOKENS]
    assert engine is not None
    together = engine.logits(texts, 32)
    assert np.isfinite(together).all()
    assert difference(together, alone(engine, texts)) <= ENGINES[name]
    # What is beyond the length of the model is cut off.
    np.testing.assert_array_equal(engine.logits(texts[-1:], 32), engine.logits(["great film " * 30], 32))


LABELS = np.array([label == "positive" for _, label in ROWS], dtype=np.int64)
PIECES = MODELS["loop"].tokenizer.backend_tokenizer
VECTORS = np.random.default_rng(0).normal(size=(PIECES.get_vocab_size(), 8)).astype(np.float32)
LINEAR = {
    "linear": fit_linear([text for text, _ in ROWS], LABELS),
    "static": fit_static([text for text, _ in ROWS], LABELS, VECTORS, PIECES, encoder="random"),
}


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_model_reads_all_of_100_000_tokens(name: str) -> None:
    texts = [*TEXTS, HUNDRED_THOUSAND_TOKENS, HUNDRED_THOUSAND_TOKENS + "awful " * 10_000]
    together = LINEAR[name].logits(texts)
    assert np.isfinite(together).all() and not np.array_equal(together[-2], together[-1])
    np.testing.assert_array_equal(together, np.concatenate([LINEAR[name].logits([text]) for text in texts]))


@pytest.mark.parametrize("name", LINEAR)
@example(weight=LARGEST, bias=1.0, idf=1.0)
@example(weight=1.0, bias=1.0, idf=0.0)
@given(weight=st.sampled_from(EDGES), bias=st.sampled_from(EDGES), idf=st.sampled_from(EDGES))
def test_a_linear_model_with_any_weights_says_the_same_alone_to_the_last_bit(
    name: str, weight: float, bias: float, idf: float
) -> None:
    model = copy.copy(LINEAR[name])
    model.__dict__.pop("_columns_first", None)
    model.weight = np.copysign(np.float32(weight), model.weight)
    model.bias = np.copysign(np.float32(bias), model.bias)
    if name == "linear":
        model.vectorizers = [copy.copy(one) for one in model.vectorizers]
        for one in model.vectorizers:
            one.idf = np.full_like(one.idf, idf)
    classifier = Classifier(LinearEngine(model), ["no", "yes"])
    try:
        together = classifier.logits(TEXTS)
    except RunError:
        assert weight == LARGEST
        return
    assert np.isfinite(classifier.predict_proba(TEXTS)).all()
    np.testing.assert_array_equal(together, np.concatenate([classifier.logits([text]) for text in TEXTS]))


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
LOGITS = arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(2, 4)), elements=FLOATS)


@example(logits=np.array([[LARGEST, -LARGEST]], dtype=np.float32), temperature=5e-324)
@given(logits=LOGITS, temperature=st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_any_logits_at_any_temperature_give_probabilities(logits: np.ndarray, temperature: float) -> None:
    labels = [str(number) for number in range(logits.shape[1])]
    decision = OneLabel(labels, temperature)
    found = decision.probabilities(logits)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1)
    chosen = decision.of_logits(logits)
    assert (found[np.arange(len(found)), chosen] == found.max(axis=1)).all()
    each = AnyLabels(labels, [0.5] * len(labels), "|").probabilities(logits)
    assert ((each >= 0) & (each <= 1)).all()


@example(np.array([[SMALLEST, 0.0], [LARGEST, -LARGEST], [0.0, 0.0]], dtype=np.float32))
@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 5)), elements=FLOATS))
def test_a_weight_in_int8_is_half_a_scale_away_at_most(weight: np.ndarray) -> None:
    values, scale = quantise_rows(weight)
    assert values.dtype == np.int8 and scale.dtype == np.float32 and np.abs(values.astype(int)).max() <= 127
    assert (scale >= np.finfo(np.float32).tiny).all() and np.isfinite(scale).all()
    assert (np.abs(values * scale.astype(np.float64) - weight) <= 0.5001 * scale).all()
