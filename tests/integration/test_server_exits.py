"""Exits and what was thought after each recurrence, over real sockets: as the classifier itself says them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recurra import Classifier
from recurra.core.errors import ConfigurationError
from recurra.deployment.decision import AnyLabels
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.deployment.serving.models import open_models
from recurra.models.exits.rules import FixedExit
from reviews import review_rows
from served import Running, running

TEXTS = [text for text, _ in review_rows(24, seed=3)]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def folders(runs: dict[str, Path], linear_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Exports with a rule, a run with exits and no rule, an export without exits, and a linear model."""
    root = tmp_path_factory.mktemp("exits")
    for precision in ("fp32", "int8"):
        export_run(runs["exits"], root / precision, ExportOptions("onnx", precision, agreement=0.9))
    export_run(runs["plain"], root / "plain", ExportOptions("onnx", "fp32"))
    found = {name: root / name for name in ("fp32", "int8", "plain")}
    return {**found, "run": runs["exits"], "linear": linear_run}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Running]:
    with running(open_models(folders, threads=1)) as found:
        yield found


def rows(predictions: list[dict[str, Any]]) -> list[list[float]]:
    return [list(one["probabilities"].values()) for one in predictions]


def test_models_say_what_they_can(server: Running, folders: dict[str, Path]) -> None:
    models = {model["name"]: model for model in server.get("/v1/models").json["models"]}
    for name in ("fp32", "int8"):
        record = Classifier.open(folders[name]).calibration
        assert record is not None and record.exit_rule is not None
        assert models[name]["exits"] == {
            "after": [1],
            "rule": record.exit_rule.describe(),
            "threshold": record.exit_rule.bound(1),
            "agreement_asked": 0.9,
            "agreement": record.agreement,
            "rows": record.rows,
            "confidence": None,
        }
        assert models[name]["num_recurrences"] == 2 and models[name]["own_heads"]
    assert models["run"]["exits"]["after"] == [1] and models["run"]["exits"]["threshold"] is None
    assert models["plain"]["exits"] is None and not models["plain"]["own_heads"]
    assert models["plain"]["num_recurrences"] == 2
    assert models["linear"]["exits"] is None and models["linear"]["num_recurrences"] is None


def test_a_text_of_several_labels_may_not_leave(folders: dict[str, Path]) -> None:
    one = Classifier.open(folders["run"])
    labels = one.classes_.tolist()
    several = Classifier(one.engine, labels, decision=AnyLabels(labels, [0.5] * len(labels), ";"))
    assert (one.may_leave, several.may_leave, Classifier.open(folders["plain"]).may_leave) == (True, False, False)
    with pytest.raises(ConfigurationError, match="gives each text one label"):
        several.check_rule(FixedExit(1))


@pytest.mark.parametrize("name", ["fp32", "int8"])
def test_texts_stop_early_if_asked(server: Running, folders: dict[str, Path], name: str) -> None:
    classifier = Classifier.open(folders[name], threads=1)
    wanted = classifier.classify(TEXTS, rule=classifier.calibrated_rule)
    assert wanted.exited_after is not None
    found = server.classify(TEXTS, model=name, exit_rule="calibrated")
    np.testing.assert_allclose(rows(found), wanted.probabilities, atol=TOLERANCE)
    assert [one["exited_after"] for one in found] == wanted.exited_after.tolist()
    assert 1 in wanted.exited_after and set(found[0]) == {"label", "probabilities", "exited_after"}
    full = server.classify(TEXTS, model=name)
    np.testing.assert_allclose(rows(full), classifier.predict_proba(TEXTS), atol=TOLERANCE)


def test_metrics_count_exits_and_show_drift_from_calibration(folders: dict[str, Path]) -> None:
    name = "fp32"
    classifier = Classifier.open(folders[name], threads=1)
    assert classifier.calibration is not None
    after = classifier.classify(TEXTS, rule=classifier.calibrated_rule).exited_after
    assert after is not None
    with running(open_models({name: folders[name]}, threads=1)) as server:

        def metric(line: str) -> float:
            lines = server.get("/metrics").body.decode().splitlines()
            return float(next(one.rpartition(" ")[2] for one in lines if one.startswith(line)))

        server.classify(TEXTS, model=name)
        # The texts without a word each, by which an answer is explained, are no one's.
        server.classify(TEXTS, model=name, exit_rule="calibrated", explain=True)
        assert metric(f'recurra_exits_total{{model="{name}",recurrences="1"}}') == (after == 1).sum()
        assert np.isnan(metric(f'recurra_exit_drift{{model="{name}"}}'))
        for _ in range(5):
            server.classify(TEXTS, model=name, exit_rule="calibrated")
        share = classifier.calibration.taken[1] / classifier.calibration.rows
        assert metric(f'recurra_exit_drift{{model="{name}"}}') == pytest.approx(abs((after == 1).mean() - share))


@pytest.mark.parametrize("name", ["fp32", "plain", "run"])
def test_what_was_thought_is_that_of_the_trace(server: Running, folders: dict[str, Path], name: str) -> None:
    trace = Classifier.open(folders[name], threads=1).trace(TEXTS)
    found = server.classify(TEXTS, model=name, recurrences=True)
    for number, one in enumerate(found):
        assert [thought["after"] for thought in one["recurrences"]] == list(trace.after) == [1, 2]
        np.testing.assert_allclose(rows(one["recurrences"]), trace.probabilities[number], atol=TOLERANCE)
        for thought in one["recurrences"]:
            assert thought["label"] == max(thought["probabilities"], key=thought["probabilities"].get)
        # Nobody was let go: the label is that of the whole model.
        assert one["probabilities"] == one["recurrences"][-1]["probabilities"] and "exited_after" not in one
        if trace.stops_after is None:
            assert "stops_after" not in one
        else:
            assert one["stops_after"] == trace.stops_after[number]
    if name == "fp32":
        both = server.classify(TEXTS, model=name, recurrences=True, exit_rule="calibrated")
        for one in both:
            assert one["exited_after"] == one["stops_after"]
            assert one["probabilities"] == one["recurrences"][one["exited_after"] - 1]["probabilities"]


def test_a_model_without_the_means_says_so(server: Running) -> None:
    for name in ("run", "plain"):
        found = server.classify(TEXTS, model=name, exit_rule="calibrated")
        assert {one["exited_after"] for one in found} == {2}
        np.testing.assert_allclose(rows(found), rows(server.classify(TEXTS, model=name)), atol=TOLERANCE)
    found = server.classify(TEXTS[:2], model="linear", exit_rule="calibrated", recurrences=True)
    assert [set(one) for one in found] == [{"label", "probabilities"}] * 2
    several = server.post({"text": TEXTS[0], "model": ["linear", "fp32"], "recurrences": True}).json["results"]
    assert "recurrences" not in several[0]["predictions"][0] and "recurrences" in several[1]["predictions"][0]


@pytest.mark.parametrize("after", [1, 2])
def test_every_text_stops_where_the_request_says(server: Running, folders: dict[str, Path], after: int) -> None:
    for name in ("fp32", "run"):
        found = server.classify(TEXTS, model=name, exit_after=after)
        wanted = Classifier.open(folders[name]).classify(TEXTS, rule=FixedExit(after)).probabilities
        np.testing.assert_allclose(rows(found), wanted, atol=TOLERANCE)
        assert {one["exited_after"] for one in found} == {after}


def test_a_depth_that_a_model_does_not_have_is_one_line(server: Running) -> None:
    for model, after, said in (
        ("fp32", 3, "'exit_after', fp32: there is no head after recurrence 3; allowed for this model: 1, 2"),
        ("plain", 1, "'exit_after', plain: there is no head after recurrence 1; allowed for this model: 2"),
        ("linear", 1, "'exit_after', linear: an exit rule needs a Transformer"),
    ):
        answer = server.post({"text": "a", "model": model, "exit_after": after})
        assert answer.status == 404 and answer.json["error"]["message"].startswith(said)
    both = server.classify(TEXTS, model="fp32", exit_after=1, exit_rule="calibrated")
    assert {one["exited_after"] for one in both} == {1}
