"""Exits and what was thought after each recurrence, over real sockets: as the classifier itself says them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from recurra import Classifier
from recurra.core.errors import ConfigurationError
from recurra.deployment.decision import AnyLabels
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.deployment.serving.limits import ServerLimits
from recurra.deployment.serving.models import open_models
from recurra.models.exits.rules import FixedExit
from reviews import review_rows
from served import Running, probabilities, running

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


def test_models_say_what_they_can(server: Running, folders: dict[str, Path]) -> None:
    models = {model["name"]: model for model in server.get("/v1/models").json["models"]}
    for name in ("fp32", "int8"):
        record = Classifier.open(folders[name]).calibration
        assert record is not None and record.exit_rule is not None
        assert models[name]["exits"] == {
            "after": [1], "rule": record.exit_rule.describe(), "threshold": record.exit_rule.bound(1),
            "agreement_asked": 0.9, "agreement": record.agreement, "rows": record.rows, "confidence": None,
        }  # fmt: skip
        assert models[name]["num_recurrences"] == 2 and models[name]["own_heads"]
    assert models["run"]["exits"]["after"] == [1] and models["run"]["exits"]["threshold"] is None
    assert models["plain"]["exits"] is None and not models["plain"]["own_heads"]
    assert models["plain"]["num_recurrences"] == 2
    assert models["linear"]["exits"] is None and models["linear"]["num_recurrences"] is None


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


@pytest.mark.parametrize("name", ["fp32", "int8"])
def test_texts_stop_early_if_asked(server: Running, folders: dict[str, Path], name: str) -> None:
    classifier = Classifier.open(folders[name], threads=1)
    wanted = classifier.classify(TEXTS, rule=classifier.calibrated_rule)
    assert wanted.exited_after is not None and 1 in wanted.exited_after
    found = server.classify(TEXTS, model=name, exit_rule="calibrated")
    np.testing.assert_allclose(probabilities(found), wanted.probabilities, atol=TOLERANCE)
    assert [one["exited_after"] for one in found] == wanted.exited_after.tolist()
    assert set(found[0]) == {"label", "probabilities", "exited_after"}
    full = server.classify(TEXTS, model=name)
    np.testing.assert_allclose(probabilities(full), classifier.predict_proba(TEXTS), atol=TOLERANCE)


@pytest.mark.parametrize("name", ["fp32", "plain", "run"])
def test_what_was_thought_is_that_of_the_trace(server: Running, folders: dict[str, Path], name: str) -> None:
    trace = Classifier.open(folders[name], threads=1).trace(TEXTS)
    found = server.classify(TEXTS, model=name, recurrences=True)
    for number, one in enumerate(found):
        assert [thought["after"] for thought in one["recurrences"]] == list(trace.after) == [1, 2]
        np.testing.assert_allclose(probabilities(one["recurrences"]), trace.probabilities[number], atol=TOLERANCE)
        for thought in one["recurrences"]:
            assert thought["label"] == max(thought["probabilities"], key=thought["probabilities"].get)
        # Nobody was let go: the label is that of the whole model.
        assert one["probabilities"] == one["recurrences"][-1]["probabilities"] and "exited_after" not in one
        assert ("stops_after" in one) == (trace.stops_after is not None)
        assert trace.stops_after is None or one["stops_after"] == trace.stops_after[number]
    if name == "fp32":
        for one in server.classify(TEXTS, model=name, recurrences=True, exit_rule="calibrated"):
            assert one["exited_after"] == one["stops_after"]
            assert one["probabilities"] == one["recurrences"][one["exited_after"] - 1]["probabilities"]


def test_a_model_without_the_means_says_so(server: Running, folders: dict[str, Path]) -> None:
    for name in ("run", "plain"):
        found = server.classify(TEXTS, model=name, exit_rule="calibrated")
        assert {one["exited_after"] for one in found} == {2}
        np.testing.assert_allclose(
            probabilities(found), probabilities(server.classify(TEXTS, model=name)), atol=TOLERANCE
        )
    answer = server.post({"text": "a", "model": ["linear", "fp32"], "exit_rule": "calibrated", "recurrences": True})
    linear, deep = (result["predictions"][0] for result in answer.json["results"])
    assert set(linear) == {"label", "probabilities"} and "recurrences" in deep
    for model, after, said in (
        ("fp32", 3, "'exit_after', fp32: there is no head after recurrence 3; allowed for this model: 1, 2"),
        ("plain", 1, "'exit_after', plain: there is no head after recurrence 1; allowed for this model: 2"),
        ("linear", 1, "'exit_after', linear: an exit rule needs a Transformer"),
    ):
        answer = server.post({"text": "a", "model": model, "exit_after": after})
        assert answer.status == 404 and answer.json["error"]["message"].startswith(said)
    one = Classifier.open(folders["run"])
    labels = one.classes_.tolist()
    several = Classifier(one.engine, labels, decision=AnyLabels(labels, [0.5] * len(labels), ";"))
    assert (one.may_leave, several.may_leave, Classifier.open(folders["plain"]).may_leave) == (True, False, False)
    with pytest.raises(ConfigurationError, match="gives each text one label"):
        several.check_rule(FixedExit(1))


@pytest.mark.parametrize(
    ("after", "name", "rule"),
    [(1, "fp32", None), (1, "fp32", "calibrated"), (2, "fp32", "calibrated"), (1, "run", None)],
)
def test_every_text_stops_where_the_request_says(
    server: Running, folders: dict[str, Path], after: int, name: str, rule: str | None
) -> None:
    found = server.classify(TEXTS, model=name, exit_after=after, exit_rule=rule)
    wanted = Classifier.open(folders[name]).classify(TEXTS, rule=FixedExit(after)).probabilities
    np.testing.assert_allclose(probabilities(found), wanted, atol=TOLERANCE)
    assert {one["exited_after"] for one in found} == {after}


POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
# Address, whether what is asked fits the document, and what the answers' statuses must hold. What has neither body nor
# parameter cannot be asked for wrongly.
GENERATED = {
    ("POST", "/v1/classify", POSITIVE): {200},
    ("POST", "/v1/classify", NEGATIVE): {400, 422},
    ("GET", "/v1/models/{name}", POSITIVE): {200},
    ("GET", "/v1/models/{name}", NEGATIVE): {404},
    ("GET", "/v1/models", POSITIVE): {200},
    ("GET", "/v1/models", NEGATIVE): {401},
    ("GET", "/health/ready", POSITIVE): {200},
    ("GET", "/health/live", POSITIVE): {200},
    ("GET", "/metrics", POSITIVE): {200},
    ("GET", "/", POSITIVE): {200},
}


@pytest.fixture(scope="module")
def limited(folders: dict[str, Path]) -> Iterator[Running]:
    """With limits so small that what is beyond them is generated too, and a key."""
    limits = ServerLimits(max_texts=3, max_characters=40, max_body_bytes=4096)
    models = open_models({name: folders[name] for name in ("fp32", "int8")}, threads=1)
    with running(models, limits, key="0123456789abcdef-schema") as found:
        yield found


@pytest.mark.parametrize(("method", "path", "mode"), GENERATED, ids=str)
def test_every_request_is_answered_as_the_document_says(limited: Running, method: str, path: str, mode: Any) -> None:
    schema = schemathesis.openapi.from_url(f"{limited.url}/openapi.json")
    listed = {(one.ok().method.upper(), one.ok().path) for one in schema.get_all_operations()}
    assert listed == {(method, path) for method, path, _ in GENERATED}
    seen: set[int] = set()
    headers = {"Authorization": "Bearer 0123456789abcdef-schema"}

    @settings(max_examples=60 if method == "POST" else 10, suppress_health_check=list(HealthCheck))
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def exchange(case: Any) -> None:
        response = case.call(headers=headers)
        # Status, kind and shape are what the document says; never is it a failure.
        case.validate_response(response, headers=headers)
        assert response.status_code < 500
        assert "Traceback" not in response.text and 'File "' not in response.text
        seen.add(response.status_code)

    exchange()
    assert seen >= GENERATED[method, path, mode], seen
    assert not limited.events("computation") and not limited.events("failed")
