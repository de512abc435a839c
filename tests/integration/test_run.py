"""One run from configuration to record, also through kills and a full disk."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_sample_weight

from interrupted import execute, execute_with_little_space, in_a_process, one_fast
from recurra import Classifier
from recurra.cli.main import main
from recurra.core.record import RunRecord, read_record
from recurra.deployment.decision import OneLabel, read_decision
from recurra.deployment.engines.computation import softmax
from recurra.evaluation.metrics import evaluate_logits, fit_temperature
from recurra.evaluation.predictions import read_predictions
from recurra.models.names import MODEL_KEYS
from recurra.study.plan import claim_folder
from recurra.tasks.labelling.training import balanced_weights
from reviews import snapshot, write_tiny_model
from tiny_runs import TrainedRun, assert_goes_on_after, assert_same_result, history, train_in_two_processes


def test_a_finished_run_has_everything_that_the_interface_names(trained: TrainedRun) -> None:
    names = {path.name for path in trained.folder.iterdir()}
    assert names == {
        "config.yaml", "record.json", "history.jsonl", "model", "model-files.json", "predictions", "training.json",
        "checkpoints",
    }  # fmt: skip
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {
        path.name for path in (trained.folder / "model").iterdir()
    }
    record = read_record(trained.folder)
    assert (record.run_id, record.config) == (trained.config.run_id, trained.config.plain())
    assert record.model.file_size_bytes == (trained.folder / "model" / "model.safetensors").stat().st_size
    assert record.training.epochs == len(history(trained.folder)) == 3
    built = json.loads((trained.folder / "model" / "config.json").read_text(encoding="utf-8"))
    assert set(record.shape) == set(MODEL_KEYS) and record.shape["num_recurrences"] == built["num_recurrences"] == 2
    decision = read_decision(record.data.label_names, record.decision)
    for split in record.data.reported_splits:
        predictions = read_predictions(trained.folder, split)
        measured = evaluate_logits(predictions.logits, predictions.labels, decision.temperature)
        assert measured == record.metrics[split]
        assert record.metrics[split].rows == record.data.splits[split].rows
        assert {audit.name for audit in record.audits} >= {f"seen.{split}", f"leakage.contained.{split}"}


def test_the_temperature_is_that_of_the_rows_that_chose_the_epoch(trained: TrainedRun) -> None:
    record = read_record(trained.folder)
    chosen = read_predictions(trained.folder, record.data.selection_split)
    classifier = Classifier.from_run(trained.folder)
    assert isinstance(classifier.decision, OneLabel)
    assert classifier.decision.temperature == fit_temperature(chosen.logits, chosen.labels)
    texts = ["good food", "never again", ""]
    expected = softmax(classifier.logits(texts) / classifier.decision.temperature)
    np.testing.assert_allclose(classifier.predict_proba(texts), expected, rtol=1e-5)


def test_nothing_in_a_run_folder_is_a_pickle(trained: TrainedRun) -> None:
    files = [path for path in trained.folder.rglob("*") if path.is_file()]
    assert any("checkpoint-" in str(path) for path in files)
    pickles = [path for path in files if zipfile.is_zipfile(path) or path.read_bytes()[:1] == b"\x80"]
    assert pickles == []
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jsonl", ".parquet", ".yaml"}


def test_a_finished_run_is_not_run_again(trained: TrainedRun) -> None:
    before = snapshot(trained.folder)
    record = claim_folder(trained.config, trained.folder)
    assert isinstance(record, RunRecord)
    assert in_a_process(execute, trained.config.plain(), trained.folder, ["first step"]) == 0
    assert snapshot(trained.folder) == before


@pytest.mark.parametrize(
    "moments",
    one_fast(
        [
            ["marker of checkpoint 2", "end of training"],
            ["step 30"],
            ["model folder"],
            ["note that training is done"],
            ["predictions"],
            ["record"],
        ]
    ),
    ids=", ".join,
)
def test_a_killed_run_started_again_gives_what_it_would_have_given(
    moments: list[str], trained: TrainedRun, tmp_path: Path
) -> None:
    assert_goes_on_after(moments, trained, tmp_path / "run")


@pytest.mark.parametrize("most_bytes", [400, 30_000])
def test_a_full_disk_is_one_clear_line_and_the_run_goes_on_when_there_is_space(
    most_bytes: int, trained: TrainedRun, tmp_path: Path
) -> None:
    """400 bytes do not hold the configuration, 30,000 not the first checkpoint."""
    folder, config = tmp_path / "run", trained.config.plain()
    assert in_a_process(execute_with_little_space, config, folder, most_bytes) == 0
    message = (tmp_path / "refused.txt").read_text(encoding="utf-8")
    assert message.startswith(f"cannot write '{folder}") and "file too large" in message and "\n" not in message
    assert not (folder / "record.json").exists()
    assert in_a_process(execute, config, folder, []) == 0
    assert_same_result(folder, trained.folder)


@pytest.mark.slow
def test_two_processes_train_one_model_and_leave_one_record(trained: TrainedRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    said = train_in_two_processes(trained.config, folder)
    record = read_record(folder)
    assert record.training.epochs == 3
    assert record.training.steps == read_record(trained.folder).training.steps // 2
    assert not (folder / "checkpoints").exists() and not (folder / ".lock").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "run"]
    assert said.count(f"{trained.config.run_id}: evaluating") == 1


def test_bf16_is_recorded_and_used(trained: TrainedRun, tmp_path: Path) -> None:
    config: dict[str, Any] = {**trained.config.plain(), "precision": "bf16"}
    assert in_a_process(execute, config, tmp_path / "run", []) == 0
    record = read_record(tmp_path / "run")
    assert record.environment.precision == "bf16"
    ours, theirs = (run.training.history[-1].train_loss for run in (record, read_record(trained.folder)))
    assert ours != theirs
    assert ours == pytest.approx(theirs, abs=0.1)


def test_balanced_classes_keep_a_rare_one_alive(tmp_path: Path) -> None:
    """One class in ten: unweighted the model says the other of every text, weighted it names both."""
    rng = np.random.default_rng(0)
    labels = rng.random(400) < 0.1
    words = ["film", "plot", "cast", "scene", "score"]
    rows = [
        {
            "text": " ".join([*rng.choice(words, 5), "dull" if rare else "fine", str(row)]),
            "label": "no" if rare else "yes",
        }
        for row, rare in enumerate(labels)
    ]
    (tmp_path / "rare.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    model = write_tiny_model(tmp_path / "tiny.yaml")
    said = {}
    for weights in ("none", "balanced"):
        run = tmp_path / weights
        arguments = ["train", "--model", str(model), "--data", str(tmp_path / "rare.jsonl"), "--output", str(run)]
        arguments += ["--tokenizer", "trained", "--threads", "1", "--no-latency", "--quiet"]
        assert main([*arguments, "max_epochs=2", "learning_rate=1e-2", f"class_weights={weights}"]) == 0
        confusion = np.array(read_record(run).metrics["test"].confusion_matrix)
        said[weights] = confusion[0, 0] / confusion[0].sum()
    assert said["none"] < said["balanced"]


def test_balanced_weights_give_every_class_the_same_sum() -> None:
    labels = np.array([0, 0, 0, 0, 1, 2, 2])
    weights = balanced_weights(labels)
    assert weights.mean() == pytest.approx(1)
    assert np.bincount(labels, weights=weights) == pytest.approx([7 / 3] * 3)
    assert weights == pytest.approx(compute_sample_weight("balanced", labels))
    own = np.array([1, 2, 1, 1, 5, 1, 1], dtype=np.float32)
    assert np.bincount(labels, weights=balanced_weights(labels, own)) == pytest.approx([7 / 3] * 3)
    # A class whose rows weigh nothing has no sum to give.
    own[4] = 0
    assert np.bincount(labels, weights=balanced_weights(labels, own)) == pytest.approx([7 / 2, 0, 7 / 2])
