"""``recurra exits`` on runs of ``recurra train``: a threshold keeps what was asked, and it says what that saves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from language_runs import PROTOCOL, TEXT_KEYS, TINY_KEYS, write_text
from recurra.cli.main import main
from recurra.core.exits_record import read_exits
from recurra.core.record import read_language_record, read_record
from recurra.data.cleaning import clean_text
from recurra.deployment.classifier import Classifier
from recurra.models.exits.rules import ConfidenceRule, FixedExit
from recurra.models.loading import load_classifier_model
from recurra.report.summary import load_runs
from recurra.tasks.labelling.evaluation import own_split
from rendered import part_rows, summarise_folders
from reviews import Command, review_rows, train_linear

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A classifier with exits, one without, a linear model, and a language model; exits are written into them."""
    root = tmp_path_factory.mktemp("runs")
    text = write_text(root / "river.txt")
    arguments = ["train", "--model", "crt-tiny", "--data", str(text), "--output", str(root / "text"), "--quiet"]
    assert main([*arguments, "--threads", "1", *TINY_KEYS, *TEXT_KEYS, *PROTOCOL]) == 0
    exits = shutil.copytree(runs["exits"], root / "exits")
    return {"exits": exits, "plain": runs["plain"], "linear": train_linear(root), "text": root / "text"}


@pytest.fixture
def exits_of(command: Command) -> Callable[..., Any]:
    """What ``recurra exits`` answers."""

    def run(*arguments: object) -> Any:
        return command("exits", *arguments, "--threads", 1, "--json").json

    return run


def test_a_classifier_keeps_its_labels(folders: dict[str, Path], exits_of: Callable[..., Any]) -> None:
    for agreement in (0.99, 0.5):
        found = exits_of(folders["exits"], "--agreement", agreement)
        assert found["chosen"]["quality"] >= agreement
        if found["judged"] is not None:
            judged = found["judged"]
            assert 0 <= judged["agreement"] <= 1 and 0 <= judged["exits"] <= 1
            assert [each["batch_size"] for each in found["timed"]] == [1, 32]
            assert all(each["speed_up"] == pytest.approx(each["full_ms"] / each["exits_ms"]) for each in found["timed"])
    # Half of the labels stay whatever the exit says, so every row may leave at once.
    assert set(judged["taken"]) == {"1", "2"} and judged["taken"]["1"] > 0
    model = load_classifier_model(folders["exits"] / "model")
    assert model.config.exits == [1] and len(model.exit_classifiers) == 1


def test_a_language_model_keeps_its_loss(
    folders: dict[str, Path], exits_of: Callable[..., Any], command: Command
) -> None:
    tight, loose = (exits_of(folders["text"], "--bound", bound) for bound in (0.005, 10.0))
    for found, bound in ((tight, 0.005), (loose, 10.0)):
        assert found["chosen"]["quality"] <= found["chosen"]["full"] * (1 + bound)
    assert loose["chosen"]["mean_recurrences"] == 1 and loose["judged"]["taken"]["1"] > 0
    assert loose["judged"]["split"] == "test" and np.isfinite(loose["judged"]["exits"])
    assert ConfidenceRule(**{key: loose["chosen"]["rule"][key] for key in ("start", "decay", "floor")})
    said = command("exits", folders["text"], "--bound", 10, "--threads", 1).out
    assert "chosen on validation for loss at most 1000 %" in said and "Recurrences taken" in said and "Speed-up" in said


def test_what_is_kept_is_every_exit_and_the_rule(
    folders: dict[str, Path], exits_of: Callable[..., Any], command: Command
) -> None:
    run = folders["text"]
    found = exits_of(run, "--bound", 10.0, "--keep")
    kept, record = read_exits(run), read_language_record(run)
    assert kept is not None and (kept.run_id, kept.split, kept.num_recurrences) == (record.run_id, "test", 2)
    # All tokens leave at an exit: its own loss, as the evaluation of the run has it.
    heads = record.metrics["test"].heads
    assert [one.loss for one in kept.fixed[:-1]] == pytest.approx([heads["exit-1"].loss], rel=1e-5)
    # An untrained model is never sure of a token: under the published schedule nothing leaves.
    schedule = kept.fixed[-1]
    assert schedule.label == "published schedule: confidence of at least max(0.8, 0.92 * 0.98^recurrence)"
    assert schedule.taken == {2: record.metrics["test"].tokens} and schedule.loss == pytest.approx(kept.full_loss)
    assert kept.full_loss == pytest.approx(heads["final"].loss, rel=1e-5)
    assert kept.fixed[0].taken == {1: record.metrics["test"].tokens}
    assert [timed.batch_size for timed in kept.fixed[0].timed] == [1, 32]
    assert found["fixed"][0]["timed"][1]["speed_up"] == pytest.approx(kept.fixed[0].timed[1].speed_up)
    assert kept.chosen is not None and kept.chosen.loss == found["judged"]["exits"]
    (loaded,), _ = load_runs([run])
    assert loaded.exits == kept
    said = command("exits", run, "--threads", 1, "--keep").out
    assert "Every exit by itself, and the published schedule" in said


def test_a_classifier_keeps_every_exit_and_the_schedule(folders: dict[str, Path], exits_of: Callable[..., Any]) -> None:
    run = folders["exits"]
    exits_of(run, "--agreement", 1.0, "--keep")
    kept, record = read_exits(run), read_record(run)
    assert kept is not None and (kept.run_id, kept.split, kept.full_loss) == (record.run_id, "test", None)
    classifier, split = Classifier.from_run(run, precision="fp32"), own_split(record, "test", None)
    first, last = (classifier.classify(split.texts, rule=FixedExit(depth)).probabilities for depth in (1, 2))
    # The published schedule after recurrence 1: max(0.80, 0.92 * 0.98).
    leave = first.max(axis=1) >= 0.9016
    said = np.where(leave, first.argmax(axis=1), last.argmax(axis=1))
    for one, labels, early in zip(kept.fixed, (first.argmax(axis=1), said), (len(said), leave.sum()), strict=True):
        assert one.loss is None and one.accuracy == pytest.approx((labels == split.labels).mean())
        assert one.agreement == pytest.approx((labels == last.argmax(axis=1)).mean())
        assert one.taken == {1: early, 2: len(said) - early} and [timed.batch_size for timed in one.timed] == [1, 32]
    headings, rows = part_rows("classification", summarise_folders([run]).tables[0], "leaving")
    assert headings[2:5] == ["Accuracy", "Labels kept", "Recurrences a row"]
    assert [row[1] for row in rows[:3]] == ["nowhere", "after loop 1", kept.fixed[-1].label]
    assert rows[2][2:4] == [f"{kept.fixed[-1].accuracy:.4f}", f"{kept.fixed[-1].agreement:.2%}"]


def test_a_mistake_is_one_line(folders: dict[str, Path], tmp_path: Path, refused: Callable[..., str]) -> None:
    for words, name, more, line in (
        (["exits"], "plain", [], "this model was trained without; train one with exits"),
        (["exits"], "linear", [], "is a linear model, which has no exits"),
        (["exits"], "exits", ["--bound", 0.1], "'--bound' has no meaning here"),
        (["exits"], "text", ["--agreement", 0.9], "'--agreement' has no meaning here"),
        (["predict"], "linear", ["a text", "--exit", 1], "needs a Transformer; this model has no recurrences"),
        (["predict"], "exits", ["a", "--exit", 1, "--input", tmp_path], "an exit rule is for texts and single files"),
    ):
        assert line in refused(*words, folders[name], *more)


def test_predict_stops_early(folders: dict[str, Path], command: Command) -> None:
    run, texts = folders["exits"], [text for text, _ in review_rows(12)]

    def predicted(*extra: object) -> Any:
        rows = command("predict", run, *texts, "--precision", "fp32", "--json", *extra).json["predictions"]
        return [list(row["probabilities"].values()) for row in rows]

    classifier = Classifier.from_run(run, precision="fp32")
    with torch.inference_mode():
        wanted = [
            classifier.engine.model(**classifier.engine.tokenizer(clean_text(text), return_tensors="pt"))
            for text in texts
        ]
    for number, logits in (
        (1, [output.exit_logits[0] for output in wanted]),
        (2, [output.logits for output in wanted]),
    ):
        probabilities = classifier.decision.probabilities(torch.cat(logits).numpy())
        np.testing.assert_allclose(predicted("--recurrences", number), probabilities, atol=1e-5)
    np.testing.assert_allclose(predicted("--exit", 2), predicted(), atol=1e-6)
    sure = torch.cat([output.exit_logits[0] for output in wanted]).softmax(-1).amax(-1)
    mixed = predicted("--exit-rule", "confidence", "--threshold", float(sure.median()))
    for row, output, found in zip(sure >= sure.median(), wanted, mixed, strict=True):
        spoke = output.exit_logits[0] if row else output.logits
        np.testing.assert_allclose(found, classifier.decision.probabilities(spoke.numpy())[0], atol=1e-5)


def test_an_evaluation_says_what_each_exit_is_worth(folders: dict[str, Path], command: Command, tmp_path: Path) -> None:
    recorded = read_record(folders["exits"]).metrics["test"].exit_accuracy
    assert recorded
    command("export", folders["exits"], "--output", tmp_path / "onnx", "--format", "onnx", "--precision", "fp32")
    for folder in (folders["exits"], tmp_path / "onnx"):
        told = command("evaluate", folder, "--json").json
        assert {int(number): accuracy for number, accuracy in told["metrics"]["exit_accuracy"].items()} == recorded
    assert "accuracy if every text stops early: " in command("evaluate", folders["exits"]).out
