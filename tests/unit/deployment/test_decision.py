"""The decisions that a model's scores stand for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, softmax

from recurra.core.errors import CheckpointError
from recurra.core.record import DecisionRecord, OneLabelRecord
from recurra.deployment.decision import OneLabel, read_decision, sigmoid


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_sigmoid_is_that_of_an_independent_library_and_overflows_nowhere(kind: type) -> None:
    scores: np.ndarray = np.array([*np.linspace(-40, 40, 2001), -np.inf, -1000.0, 0.0, 1000.0, np.inf], dtype=kind)
    with np.errstate(all="raise", under="ignore"):
        found = sigmoid(scores)
    np.testing.assert_allclose(found, expit(scores.astype(np.float64)), rtol=1e-14)
    assert found[-5:].tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


@given(temperature=st.floats(0.01, 100), seed=st.integers(0, 999), scale=st.floats(1e-3, 30))
def test_a_temperature_changes_no_label(temperature: float, seed: int, scale: float) -> None:
    logits = (np.random.default_rng(seed).normal(size=(50, 3)) * scale).astype(np.float32)
    names = ["a", "b", "c"]
    calibrated = read_decision(names, OneLabelRecord(temperature=temperature))
    found = calibrated.probabilities(logits)
    assert calibrated.labels(found) == OneLabel(names).labels(OneLabel(names).probabilities(logits))
    np.testing.assert_allclose(found, softmax(logits.astype(np.float64) / temperature, axis=1), atol=1e-12)
    record = calibrated.record()
    assert record is None if temperature == 1 else record == OneLabelRecord(temperature=temperature)


def test_a_threshold_too_few_is_one_clear_line() -> None:
    of_one, of_several = (
        OneLabelRecord(temperature=1, abstain_below=[0.5] * 2),
        DecisionRecord(thresholds=[0.5] * 2, separator=";"),
    )
    for record in (of_one, of_several):
        with pytest.raises(CheckpointError, match="3 labels and 2 thresholds"):
            read_decision(["a", "b", "c"], record)


def test_thresholds_of_several_labels_are_those_of_the_record() -> None:
    record = DecisionRecord(thresholds=[0.2, 0.9], separator="|")
    decision = read_decision(["a", "b"], record)
    assert decision.labels(np.array([[0.3, 0.8], [0.1, 0.95]])) == [["a"], ["b"]]
    assert decision.record() == record
    assert (decision.text(["a", "b"]), decision.text([])) == ("a|b", "")
    in_json = read_decision(["a", "b"], record.model_copy(update={"separator": "json"}))
    assert (in_json.text(["a", "größer"]), in_json.text([])) == ('["a", "größer"]', "[]")


@given(own=st.lists(st.floats(0, 1), min_size=3, max_size=3), asked=st.floats(0, 1), seed=st.integers(0, 99))
def test_bounds_of_labels_are_kept_and_the_higher_one_counts(own: list[float], asked: float, seed: int) -> None:
    names = ["a", "b", "c"]
    probabilities = softmax(np.random.default_rng(seed).normal(size=(40, 3)), axis=1)
    decision = read_decision(names, OneLabel(names, 2.0, own).record())
    assert decision.abstain_below is not None and OneLabel(names).abstain_below is None
    assert OneLabel(names).abstained(probabilities) is None
    both = decision.abstaining_below(asked)
    for found, bounds in ((decision, own), (both, [max(one, asked) for one in own])):
        said = probabilities.argmax(axis=1)
        expected = [row.max() < bounds[label] for row, label in zip(probabilities, said, strict=True)]
        abstained = found.abstained(probabilities)
        assert abstained is not None and abstained.tolist() == expected
    np.testing.assert_array_equal(both.probabilities(probabilities), decision.probabilities(probabilities))
    assert OneLabel(names).abstaining_below(own).record() == OneLabel(names, 1.0, own).record()
