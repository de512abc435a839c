"""One run from configuration to record, also through kills and a full disk."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sklearn.utils.class_weight import compute_sample_weight

from interrupted import execute, execute_with_little_space, in_a_process, one_fast
from recurra import Classifier
from recurra.core.errors import CheckpointError, RunError
from recurra.core.progress import Reporter
from recurra.core.record import RunRecord, read_record
from recurra.core.sealed import SEAL_NAME, seal_model
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset, recorded_data
from recurra.deployment.decision import OneLabel, read_decision
from recurra.deployment.engines.computation import softmax
from recurra.evaluation.metrics import evaluate_logits, fit_temperature
from recurra.evaluation.predictions import read_predictions
from recurra.models.names import MODEL_KEYS
from recurra.report.summary import load_runs, summarise
from recurra.study.plan import claim_folder
from recurra.study.run import execute_run
from recurra.tasks.classification.reporting import REPORTING
from recurra.tasks.labelling.training import balanced_weights
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.protocols import load_protocol
from reviews import Command, review_rows, snapshot, train_tiny, write_tiny_model
from small_treebank import write_treebank
from tiny_runs import TrainedRun, assert_goes_on_after, assert_same_result, history, train_in_two_processes


def test_a_record_says_what_lies_beside_it_and_nothing_is_a_pickle(trained: TrainedRun) -> None:
    # Which files there are: `test_cli.py`.
    files = [path for path in trained.folder.rglob("*") if path.is_file()]
    assert any("checkpoint-" in str(path) for path in files)
    assert not [path for path in files if zipfile.is_zipfile(path) or path.read_bytes()[:1] == b"\x80"]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jsonl", ".parquet", ".yaml"}
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
    # The temperature is that of the rows that chose the epoch.
    chosen = read_predictions(trained.folder, record.data.selection_split)
    classifier = Classifier.from_run(trained.folder)
    assert isinstance(classifier.decision, OneLabel)
    assert classifier.decision.temperature == fit_temperature(chosen.logits, chosen.labels)
    texts = ["good food", "never again", ""]
    expected = softmax(classifier.logits(texts) / classifier.decision.temperature)
    np.testing.assert_allclose(classifier.predict_proba(texts), expected, rtol=1e-5)


def test_a_finished_run_is_not_run_again(trained: TrainedRun) -> None:
    before = snapshot(trained.folder)
    assert isinstance(claim_folder(trained.config, trained.folder), RunRecord)
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
    rng, words, rows = np.random.default_rng(0), ["film", "plot", "cast", "scene", "score"], []
    for row, rare in enumerate(rng.random(400) < 0.1):
        text = " ".join([*rng.choice(words, 5), "dull" if rare else "fine", str(row)])
        rows.append((text, "no" if rare else "yes"))
    said = {}
    for weights in ("none", "balanced"):
        (tmp_path / weights).mkdir()
        keys = ("max_epochs=2", "learning_rate=1e-2", f"class_weights={weights}")
        run = train_tiny(tmp_path / weights, *keys, rows=rows)
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


def test_a_model_that_halts_by_itself_records_what_it_takes(tmp_path: Path) -> None:
    # Of 14 tokens and of 16.
    rows = [(f"{text}{' again' * (number // 2 % 2 * 2)}", label) for number, (text, label) in enumerate(review_rows())]
    keys = ("num_recurrences=4", "tokens_without_recurrence=13", "learned_halt=true", "halt_loss_weight=1")
    training = ("max_epochs=12", "learning_rate=1e-2", "batch_size=8", "early_stopping_patience=20")
    folder = train_tiny(tmp_path, *(f"model.{key}" for key in keys), *training, rows=rows)
    classifier, record = Classifier.from_run(folder), read_record(folder)
    tokenizer, model = classifier.engine.tokenizer, classifier.engine.model
    assert isinstance(record, RunRecord)
    dataset = load_dataset(recorded_data(record))
    for name, metrics in record.metrics.items():
        tokens = [tokenizer(text, return_tensors="pt")["input_ids"] for text in dataset.splits[name].texts]
        with torch.no_grad():
            taken = Counter(int(model(row).exited_after) for row in tokens)
        assert metrics.recurrences == taken and sum(taken.values()) == metrics.rows
    assert len(taken) > 1
    (table,) = summarise(load_runs([folder])[0]).tables
    (row,) = next(part for part in REPORTING.tables(table) if part.key == "results").rows
    mean = sum(number * count for number, count in taken.items()) / metrics.rows
    assert row["Recurrences"] == f"{mean:.2f}" and table.headline_split == name


def test_a_run_trains_on_auxiliary_labels_first_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_treebank(tmp_path)
    data = DataConfig(name="sst2", tokenizer="trained", trained_vocab_size=100, auxiliary="treebank")
    protocol, model = load_protocol("tuned-treebank", {"batch_size": 8}), write_tiny_model(tmp_path / "tiny.yaml")
    config = make_run(str(model), data, protocol, seed=0, precision="fp32")
    assert config.run_id.startswith("sst2-default-treebank-tiny-tuned-treebank-s0-")
    machine = Machine(threads=1, latency=False, cache_dir=tmp_path / "cache", data_root=tmp_path)
    record = execute_run(StudyData(machine), tmp_path / "run", config, reporter=Reporter())
    assert record is not None and not record.failed_audits()
    said = capsys.readouterr().err
    assert said.index("auxiliary epoch 1") < said.index("epoch 1: train loss")
    assert any("five-class labels" in note for note in record.data.notes)
    assert record.data.splits.keys() == {"train", "held_out", "validation", "test"}
    assert (record.training.protocol, record.training.epochs, record.training.resumed) == ("tuned-treebank", 1, 0)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.fixture
def run(trained: TrainedRun, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained.folder, tmp_path / "run"))


def test_what_was_changed_since_training_is_one_line_and_a_run_from_before_there_was_a_seal_is_read(
    run: Path, refused: Callable[..., str]
) -> None:
    weights, seal = run / "model" / "model.safetensors", run / SEAL_NAME
    assert set(json.loads(seal.read_text(encoding="utf-8"))["files"]) == {
        path.name for path in weights.parent.iterdir()
    }
    before = Classifier.open(run).logits(["good", "bad"])
    flipped = bytearray(weights.read_bytes())
    flipped[-5] ^= 0x40
    for path, changed, said in (
        (weights, bytes(flipped), "was changed after the run was made"),
        (seal, seal.read_bytes().replace(b'"size_bytes": ', b'"size_bytes": 1'), "its content does not match its hash"),
    ):
        content = path.read_bytes()
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=said):
            Classifier.open(run)
        assert said in refused("predict", run, "a text", "--json")
        path.write_bytes(content)
    seal.unlink()
    np.testing.assert_array_equal(Classifier.open(run).logits(["good", "bad"]), before)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_give_no_answer(value: float, run: Path, command: Command) -> None:
    path = run / "model" / "model.safetensors"
    weights = load_file(path)
    weights["classifier.weight"] = np.full_like(weights["classifier.weight"], value)
    save_file(weights, path, metadata={"format": "pt"})
    seal_model(run)
    with pytest.raises(RunError, match="not numbers for text 1 of 2"):
        Classifier.open(run).predict(["good", "bad"])
    out, err = command("predict", run, "a text", "--json", code=1)
    # The document is written text by text, so it may have begun; it holds no answer and does not end.
    assert "its weights are damaged" in err and "NaN" not in out and "label" not in out
