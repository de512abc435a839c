"""Exports of runs with exits carry a rule that was chosen with the export itself; it is used, told, and honest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import deployment, exiting_export
from benchmarks.lockstep import Job
from scipy.special import bdtr

from recurra import Classifier
from recurra.core.errors import ConfigurationError
from recurra.core.progress import Reporter
from recurra.deployment.engines.computation import Depth
from recurra.deployment.export.build import CheckRows, calibrate_exits, export_run
from recurra.deployment.export.manifest import ExportManifest, ExportOptions, read_export, read_manifest
from recurra.deployment.serving.models import describe_model
from recurra.models.exits.rules import ExitRule
from recurra.models.exits.thresholds import depths_under
from reviews import Command, review_rows, write_csv

TEXTS = [text for text, _ in review_rows(60, seed=9)]
FORMATS = [("onnx", "fp32"), ("onnx", "int8"), ("safetensors", "fp32")]


@pytest.fixture(scope="module")
def exports(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, ExportManifest]]:
    root = tmp_path_factory.mktemp("exports")
    found = {}
    for kind, precision in FORMATS:
        folder = root / f"{kind}-{precision}"
        options = ExportOptions(kind, precision, agreement=0.9)
        found[folder.name] = folder, export_run(runs["exits"], folder, options)
    return found


def test_the_rule_keeps_what_was_asked_for_on_the_rows_that_chose_it(exports: dict[str, Any]) -> None:
    for folder, manifest in exports.values():
        assert read_export(folder) == manifest
        record = manifest.exits
        assert record.exits == [1] and record.asked == 0.9 and record.source.startswith("the validation split of")
        assert record.rule is not None and record.agreement >= 0.9
        assert sum(record.taken.values()) == record.rows and record.taken[1] > 0
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert "## Early exit" in card and record.exit_rule.describe() in card
        assert f"| {100 * record.taken[1] / record.rows:.1f} % of these rows |" in card
        assert f"{record.rows:,} rows of the validation split" in card


def test_a_promise_is_repeated_by_the_export_and_the_server(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "promised"
    options = ExportOptions("onnx", "fp32", agreement=0.8, confidence=0.9)
    record = export_run(runs["exits"], folder, options).exits
    assert record is not None and record.confidence == 0.9
    lost = record.rows - round((record.agreement or 1) * record.rows)
    assert record.rule is not None and bdtr(lost, record.rows, 0.2) <= 0.1
    assert "with a confidence of 0.9 at least 0.8 of texts like these keep theirs" in record.describe()
    assert "| promised, with a confidence of 0.9 | at least 80 % of labels" in (folder / "README.md").read_text("utf-8")
    known = {"kind": "onnx", "size_bytes": 1, "run_id": "tiny", "content_hash": "0"}
    exits = describe_model("promised", Classifier.from_export(folder), **known).exits
    assert exits is not None and (exits.confidence, exits.agreement_asked) == (0.9, 0.8)


def test_calibrated_is_what_stop_early_takes(exports: dict[str, Any], command: Command) -> None:
    for folder, manifest in exports.values():
        classifier = Classifier.from_export(folder)
        full = classifier.predict_proba(TEXTS)
        wanted = classifier.classify(TEXTS, rule=manifest.exits.exit_rule)
        classifier.stop_early()
        np.testing.assert_allclose(classifier.predict_proba(TEXTS), wanted.probabilities, rtol=1e-4)
        assert not np.allclose(wanted.probabilities, full)
        trace = classifier.trace(TEXTS)
        assert trace.stops_after is not None and trace.own_heads and set(trace.stops_after.tolist()) <= {1, 2}
        rows = command("predict", folder, *TEXTS, "--exit-rule", "calibrated", "--json").json["predictions"]
        said = [list(row["probabilities"].values()) for row in rows]
        np.testing.assert_allclose(said, wanted.probabilities, rtol=1e-3, atol=1e-5)


def test_a_mistake_is_one_line(
    runs: dict[str, Path], exports: dict[str, Any], tmp_path: Path, refused: Callable[..., str]
) -> None:
    for name, more, line in (
        ("plain", ("--agreement", "0.9"), "--agreement 0.9 needs a model with exits"),
        ("plain", ("--confidence", "0.9"), "--confidence 0.9 needs a model with exits"),
        ("exits", ("--agreement", "1", "--confidence", "0.9"), "no rows can promise an agreement of 1"),
    ):
        output = tmp_path / "out"
        assert line in refused("export", runs[name], "--format", "onnx", "--output", output, "--quiet", *more)
    for more, line in (
        (("calibrated", "--threshold", "0.9"), "'calibrated' has its own threshold; leave --threshold"),
        (("calibratd",), "unknown exit rule 'calibratd' (did you mean 'calibrated'?)"),
    ):
        assert line in refused("predict", exports["onnx-int8"][0], "a text", "--exit-rule", *more)


def test_rows_of_a_file_choose_and_rows_that_are_not_there_do_not(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_csv(tmp_path / "rows.csv", [(text,) for text in TEXTS], ("text",))
    options = ExportOptions("onnx", "fp32", rows_file=rows, agreement=0.8)
    manifest = export_run(runs["exits"], tmp_path / "file", options)
    assert manifest.exits is not None and manifest.exits.source == "the file rows.csv" and manifest.exits.rows == 60
    assert manifest.exits.accuracy is None
    # The run's own file is gone: the demo's rows check the export, and choose nothing.
    lost = Path(shutil.copytree(runs["exits"], tmp_path / "lost"))
    record = json.loads((lost / "record.json").read_text(encoding="utf-8"))
    source = Path(record["config"]["data"]["name"])
    aside = source.rename(source.with_suffix(".aside"))
    try:
        manifest = export_run(lost, tmp_path / "out", ExportOptions("onnx", "fp32"), reporter=Reporter())
    finally:
        aside.rename(source)
    assert manifest.exits is not None and manifest.exits.rule is None and manifest.exits.rows == 0
    assert "not calibrated" in manifest.exits.describe()
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Not calibrated" in card and "labels are unknown" in card
    assert "not checked on the run's own rows: " in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match="was not calibrated"):
        Classifier.from_export(tmp_path / "out").stop_early()


class Drifting:
    """An engine whose rows that stay say something else once others have left, as int8's may."""

    depth = Depth((1,), 2, 2)

    def __init__(self, drift: int) -> None:
        self.drift = drift
        sure = np.linspace(0.02, 3, 100, dtype=np.float32)
        # The first exit is wrong on the ten rows that it is least sure of.
        first = np.stack([sure, np.zeros_like(sure)], axis=1)
        last = first.copy()
        last[:10] = last[:10, ::-1]
        self.outputs = {1: first, 2: last}

    def logits_by_recurrence(self, texts: Any, batch_size: int) -> dict[int, np.ndarray]:
        return self.outputs

    def leave_early(self, texts: Any, batch_size: int, rule: ExitRule) -> tuple[np.ndarray, np.ndarray]:
        taken = depths_under(rule, self.outputs)
        logits = np.where((taken == 1)[:, None], self.outputs[1], self.outputs[2]).copy()
        left = int((taken == 1).sum())
        if left > 50:
            logits[np.flatnonzero(taken == 2)[: self.drift]] *= -1
        return logits, taken


def test_what_the_record_says_was_found_with_rows_that_really_leave() -> None:
    rows = CheckRows("rows", ["text"] * 100, np.zeros(100, dtype=np.int64))
    steady = calibrate_exits(Drifting(0), rows, 0.97, 8)
    assert steady.rule is not None and steady.agreement is not None and steady.agreement >= 0.97
    assert steady.taken[1] > 90
    # Each threshold that lets more than half leave then costs five labels, so a more careful one is taken, or none.
    drifting = calibrate_exits(Drifting(5), rows, 0.97, 8)
    assert drifting.rule is None or (drifting.agreement >= 0.97 and drifting.taken.get(1, 0) <= 50)  # type: ignore[operator]
    assert calibrate_exits(Drifting(0), CheckRows("none", []), 0.97, 8).rows == 0


def test_a_run_competes_with_its_own_rule(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Corpus:
        texts = TEXTS
        tokenizer = type("Tokenizer", (), {"model_max_length": 0})()

    monkeypatch.setattr(deployment.corpora, "Corpus", lambda folder: Corpus())
    monkeypatch.setattr(deployment, "SENTENCES", 24)
    call = deployment.build(Job("deployment", exiting_export.EXITS, str(runs["exits"]), str(tmp_path), 1, 2))
    found = call(1)
    assert len(found["single_ms"]) == 3 and min(found["single_ms"]) > 0 and found["batch_s"] > 0
    (folder,) = tmp_path.glob("recurra-bench-onnx-*/export")
    record = read_manifest(folder).exits
    assert record is not None and found["agreement"] == record.agreement
    if record.rule is not None:
        assert found["rows"] == record.rows and 1 <= found["recurrences"] <= 2
        latency = {exiting_export.EXITS: 0.5, "one": 1.0, "two": 0.8}
        rate = {exiting_export.EXITS: 900.0, "one": 450.0, "two": 300.0}
        alone, together = exiting_export.lines(found, "recurrent", latency, rate, ("one", "two"))
        assert (alone.other_name, alone.result, alone.target, alone.met) == ("two", 1.6, 1.2, True)
        assert (together.other_name, together.result, together.target) == ("one", 2.0, None)
        assert f"keep {record.agreement:.1%} of labels on {record.rows:,} rows" in alone.title
    assert exiting_export.lines({"agreement": None}, "recurrent", {}, {}, ()) == []


def test_a_run_of_another_shape_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has vocab_size \d+, the preset 'recurrent' has 30522"):
        exiting_export.check_shape(str(runs["exits"]), "recurrent")
    with pytest.raises(ConfigurationError, match="is not a run folder"):
        exiting_export.check_shape(str(tmp_path), "recurrent")
