"""Exits and traces of a classifier: the same on torch and on ONNX Runtime, and as the recurrences one by one say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recurra import Classifier
from recurra.core.errors import ConfigurationError, DataError, RunError
from recurra.data.cleaning import clean_texts
from recurra.deployment.engines import load_engine
from recurra.deployment.engines.computation import Engine, softmax
from recurra.deployment.export.manifest import CalibrationRecord
from recurra.deployment.onnx.engine import OnnxEngine
from recurra.models.exits.rules import ConfidenceRule, EntropyRule, FixedExit
from recurra.models.loading import load_classifier_model
from reviews import review_rows
from tiny import write_classifier

TEXTS = [text for text, _ in review_rows(30)]
MIXED = [*TEXTS[:20], "", "!!!", "Great " * 60, "   ", *TEXTS[20:], "unheardof 変 word", TEXTS[0]]
LABELS = ["no", "yes"]
SHAPES: dict[str, dict[str, Any]] = {
    "exits": {"num_recurrences": 4, "exits": [1, 3], "heads": "separate"},
    "last": {"num_recurrences": 3, "exits": [1, 2], "pooling": "last", "causal": True, "final_norm": True},
    "max": {"num_recurrences": 3, "exits": [1, 2], "pooling": "max"},
    "plain": {"num_recurrences": 3},
    "coda": {"num_recurrences": 3, "num_coda_layers": 1, "pooling": "last", "final_norm": True},
    "stacked": {"num_recurrences": 1, "residual_scale": 0.0},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model folder for each shape, its ONNX graph beside it."""
    found = {name: tmp_path_factory.mktemp(name) for name in SHAPES}
    for name, shape in SHAPES.items():
        write_classifier(found[name], TEXTS, graph_length=24, **shape)
    return found


def on_torch(folder: Path, *, precision: str = "fp32", **more: Any) -> Classifier:
    engine = load_engine(folder / "model", precision=precision, max_length=24)
    return Classifier(engine, LABELS, batch_size=5, **more)


def on_onnx(folder: Path, **more: Any) -> Classifier:
    engine = OnnxEngine(folder / "onnx", precision="fp32", max_length=24, pad_token_id=0, threads=1)
    return Classifier(engine, LABELS, batch_size=3, **more)


def between(folder: Path) -> float:
    """A confidence that some of the texts reach after the first exit, and no text all but reaches at any."""
    sure = np.sort(on_torch(folder).trace(MIXED).probabilities.max(-1)[:, :-1].ravel())
    middle = len(sure) // 2
    widest = middle + int(np.diff(sure[middle : middle + 12]).argmax())
    return float(sure[widest : widest + 2].mean())


@pytest.mark.parametrize("name", SHAPES)
def test_a_trace_is_what_each_recurrence_says(
    folders: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, exits, most = folders[name], SHAPES[name].get("exits", []), SHAPES[name]["num_recurrences"]
    places = [*exits, most] if exits else list(range(1, most + 1))
    for made, tolerance in ((on_onnx, 1e-5), (on_torch, 0.0)):
        classifier = made(folder)
        trace, logits = classifier.trace(MIXED), classifier.logits(MIXED)
        assert list(trace.after) == places and trace.stops_after is None and len(trace) == len(MIXED)
        assert trace.own_heads == (name not in ("plain", "coda"))
        assert trace.probabilities.shape == (len(MIXED), len(places), 2)
        np.testing.assert_allclose(trace.probabilities[:, -1], softmax(logits), rtol=1e-3, atol=1e-4)
        # The scores of all heads are computed at once.
        with monkeypatch.context() as patch:
            if exits:
                patch.delattr(type(classifier.engine), "logits")
            by_head = classifier.exit_logits(clean_texts(MIXED))
        assert list(by_head) == [*exits, most]
        np.testing.assert_allclose(by_head[most], logits, rtol=tolerance, atol=tolerance)
        assert classifier.trace([]).probabilities.shape == (0, len(places), 2)
    assert classifier.exit_logits([])[most].shape == (0, 2)
    ours = on_onnx(folder).trace(MIXED).probabilities
    np.testing.assert_allclose(ours, trace.probabilities, rtol=1e-3, atol=1e-4)
    if not trace.own_heads:
        # The reference: a model of fewer recurrences with the same weights.
        for index, number in enumerate(places):
            model = load_classifier_model(folder / "model")
            model.config.num_recurrences = number
            engine = on_torch(folder).engine
            engine.model = model.eval()  # type: ignore[attr-defined]
            with torch.inference_mode():
                wanted = softmax(engine.logits(clean_texts(MIXED), 4))
            np.testing.assert_allclose(ours[:, index], wanted, rtol=1e-3, atol=1e-4)


def test_an_exit_whose_scores_are_no_numbers_is_not_judged_as_if_it_had_answered(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = on_torch(folders["exits"])
    said = classifier.engine.logits_by_recurrence(clean_texts(MIXED), 5)
    said[1] = np.where(np.arange(len(MIXED))[:, None] == 3, np.nan, said[1])
    monkeypatch.setattr(type(classifier.engine), "logits_by_recurrence", lambda *_: said)
    with pytest.raises(RunError, match="not numbers for text 4 of"):
        classifier.exit_logits(clean_texts(MIXED))


def test_a_trace_says_where_the_rule_in_force_stops(folders: dict[str, Path]) -> None:
    folder = folders["exits"]
    rule = ConfidenceRule.constant(between(folder))
    record = CalibrationRecord(exits=[1, 3], asked=0.9, source="rows", rows=9, rule=rule.plain(), agreement=1.0)
    for made in (on_onnx, on_torch):
        classifier = made(folder, calibration=record)
        assert classifier.calibrated_rule == rule
        before = classifier.logits(MIXED)
        trace = classifier.trace(MIXED)
        sure = trace.probabilities.max(-1) >= rule.start
        wanted = [next((place for place, met in zip((1, 3), row, strict=False) if met), 4) for row in sure.tolist()]
        assert trace.stops_after is not None and trace.stops_after.tolist() == wanted
        early, told = (classifier.classify(MIXED, rule=rule, trace=both) for both in (False, True))
        for found in (early, told):
            assert found.exited_after is not None and found.exited_after.tolist() == wanted
        # Asked for the way as well, all is computed, and the label is still that of where it stops.
        np.testing.assert_allclose(told.probabilities, early.probabilities, rtol=1e-3, atol=1e-4)
        classifier.stop_early()
        assert not np.allclose(classifier.logits(MIXED), before)
        classifier.stop_early(FixedExit(3))
        assert classifier.trace(TEXTS[:2]).stops_after.tolist() == [3, 3]  # type: ignore[union-attr]
        np.testing.assert_allclose(classifier.predict_proba(MIXED), trace.probabilities[:, 1], rtol=1e-3, atol=1e-4)


def test_half_precision_fills_batches_and_gives_the_rows_asked_for(folders: dict[str, Path]) -> None:
    exact, rough = (on_torch(folders["exits"], precision=name) for name in ("fp32", "bf16"))
    differences = rough.trace(MIXED).probabilities - exact.trace(MIXED).probabilities
    assert np.abs(differences).mean() < 0.02
    for classifier in (rough, on_onnx(folders["exits"])):
        for texts in (MIXED, []):
            early = classifier.classify(texts, rule=FixedExit(3))
            assert early.probabilities.shape == (len(texts), 2) and early.exited_after is not None
            assert early.exited_after.tolist() == [3] * len(texts) and early.exited_after.dtype == np.int64


def test_what_cannot_be_is_one_clear_line(folders: dict[str, Path], tmp_path: Path) -> None:
    write_classifier(tmp_path, TEXTS, num_recurrences=4, tokens_without_recurrence=2)

    class Flat(Engine):
        def logits(self, texts: Any, batch_size: int) -> np.ndarray:
            return np.zeros((len(texts), 2), dtype=np.float32)

    none = CalibrationRecord(exits=[1], asked=0.999, source="rows", rows=9)
    exits, unknown = on_onnx(folders["exits"]), "there is no head after recurrence 2; allowed for this model: 1, 3, 4"
    cases: list[tuple[Classifier, Any, str]] = [
        (exits, None, "no exit rule is given and this model has none"),
        (on_onnx(folders["exits"], calibration=none), None, "no threshold kept 0.999 of the labels"),
        (exits, FixedExit(2), unknown),
        (on_torch(folders["exits"]), FixedExit(2), unknown),
        (exits, EntropyRule(0.7), "threshold is 0.7; allowed for rule 'entropy' of this model"),
        (on_torch(folders["plain"]), ConfidenceRule(), "this model was trained without; train one with exits"),
        (Classifier(Flat(), LABELS), ConfidenceRule(), "an exit rule needs a Transformer"),
        (on_torch(tmp_path), FixedExit(4), "sets the recurrences of each text itself"),
    ]
    for classifier, rule, line in cases:
        with pytest.raises(ConfigurationError, match=line) as caught:
            classifier.stop_early(rule)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="a trace needs a Transformer"):
        Classifier(Flat(), LABELS).trace(TEXTS)
    with pytest.raises(TypeError, match="give a list of texts"):
        exits.trace("a text")
    with pytest.raises(DataError, match="lone surrogate"):
        exits.trace(["a \ud800"])
    for key, value, line in (("rule", {"rule": "coin"}, "unknown exit rule 'coin'"), ("exits", [], "exits")):
        with pytest.raises(ConfigurationError, match=line):
            CalibrationRecord.parse({**none.plain(), key: value})
