"""Any number of labels a text, from a file to record, report, prediction, export and server."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, hamming_loss, log_loss, precision_score, recall_score
from torch.nn.functional import binary_cross_entropy_with_logits

from recurra.cli.main import main
from recurra.core.errors import ConfigurationError, DataError, RunError
from recurra.core.record import MultiLabelRunRecord, read_record
from recurra.data.configuration import MultiLabelData
from recurra.data.corpora import load_dataset
from recurra.data.labels import SeveralLabels, read_table
from recurra.data.splits import iterative_split
from recurra.deployment.classifier import Classifier
from recurra.deployment.decision import AnyLabels, read_decision
from recurra.deployment.engines.computation import Classified
from recurra.deployment.explanation import explain
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions, read_manifest
from recurra.deployment.serving.bodies import predictions_of
from recurra.models.controls.fitting import cross_entropy, fit_linear
from recurra.models.controls.linear import LinearModel, features_of
from recurra.study.run import execute_run
from recurra.tasks.multilabel.reporting import REPORTING, choose_thresholds, measure_labels
from recurra.tasks.multilabel.task import TASK
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.distillation import RowLoss
from recurra.training.protocols import load_protocol
from reviews import NOUNS, read_rows, write_csv, write_tiny_model
from study_of_multilabel import study
from tiny import IDS, MASK, tiny_model

WORDS = {"bad": ("awful", "clumsy"), "good": ("great", "lovely"), "food": ("soup", "bread"), "music": ("song", "choir")}
NAMES = sorted(WORDS)


def write_tags(path: Path, rows: int = 240, *, separator: str = ";") -> Path:
    """A file whose labels are told by words; no two texts are alike."""
    dice, made = random.Random(0), []
    for number in range(rows):
        labels = [name for name in NAMES if dice.random() < 0.4]
        words = [dice.choice(WORDS[name]) for name in labels]
        words += [dice.choice(NOUNS) for _ in range(6 - len(words))]
        dice.shuffle(words)
        cell = json.dumps(labels) if separator == "json" else separator.join(labels)
        made.append((f"number {number} {' '.join(words)}", cell))
    return write_csv(path, made)


def config_of(path: Path, **values: Any) -> MultiLabelData:
    base = {"name": str(path), "tokenizer": "trained", "trained_vocab_size": 200, "max_length": 24}
    return MultiLabelData.parse({**base, "label_separator": ";", **values})


@dataclass(frozen=True)
class Trained:
    data: Path
    run: Path
    linear: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    root = tmp_path_factory.mktemp("tags")
    data, model = write_tags(root / "tags.csv"), write_tiny_model(root / "tiny.yaml")
    study_data = StudyData(Machine(None, root / "cache", 1, False))
    changes = {"max_epochs": 10, "learning_rate": 1e-2, "batch_size": 8, "label_smoothing": 0.05}
    for name, folder in ((str(model), "run"), ("linear", "linear")):
        protocol = load_protocol("tuned", changes)
        run = make_run(name, config_of(data), protocol, seed=0, precision="fp32")
        execute_run(study_data, root / folder, run)
    return Trained(data, root / "run", root / "linear")


def test_a_separator_and_a_json_list_say_the_same(tmp_path: Path) -> None:
    first = load_dataset(config_of(write_tags(tmp_path / "a.csv")))
    second = load_dataset(config_of(write_tags(tmp_path / "b.csv", separator="json"), label_separator="json"))
    assert first.label_names == second.label_names == NAMES
    assert first.fingerprint == second.fingerprint
    rows = [row for split in first.splits.values() for row in zip(split.texts, split.labels.tolist(), strict=True)]
    assert len(rows) == 240 and len(dict(rows)) == 240
    for text, labels in rows:
        assert [bool(set(WORDS[name]) & set(text.split())) for name in NAMES] == [bool(value) for value in labels]
    assert any(sum(labels) == 0 for _, labels in rows)


def test_cells_are_read_as_a_user_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    cells = ["a; b ;a", "", None, "a", ";", "b", "7", 7] * 3
    path.write_text("".join(json.dumps({"text": f"t{n}", "label": cell}) + "\n" for n, cell in enumerate(cells)))
    dataset = load_dataset(config_of(path))
    by_text = {
        text: {dataset.label_names[index] for index in np.flatnonzero(row)}
        for split in dataset.splits.values()
        for text, row in zip(split.texts, split.labels, strict=True)
    }
    assert [by_text[f"t{n}"] for n in range(8)] == [{"a", "b"}, set(), set(), {"a"}, set(), {"b"}, {"7"}, {"7"}]
    lists = [["a", "b"], [], None, ["b"]] * 5
    path.write_text("".join(json.dumps({"text": f"t{n}", "label": cell}) + "\n" for n, cell in enumerate(lists)))
    dataset = load_dataset(config_of(path, label_separator="json"))
    assert sum(int(split.labels.sum()) for split in dataset.splits.values()) == 15


@pytest.mark.parametrize(
    ("cell", "separator", "message"),
    [
        ('{"a": 1}', "json", "line 3: column 'label' holds '{\"a\": 1}', which is no JSON list"),
        ("a, b", "json", "which is no JSON list; write"),
        ("x", ";", "has 1 different labels in column 'label' with the separator ';'"),
        ("['late', 'rude']", ",", "line 3: column 'label' holds a list, \"['late', 'rude']\"; read it with"),
        ("[]", ";", "holds a list"),
    ],
)
def test_what_cannot_be_read_is_one_line(cell: str, separator: str, message: str, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [("one", ""), ("two", cell)])
    with pytest.raises(DataError) as caught:
        load_dataset(config_of(path, label_separator=separator))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("rows", "labels", "right"), [(6, 3, True), (5, 3, False), (2, 2, True), (3, 2, True)])
def test_more_labels_than_half_the_rows_are_no_labels(rows: int, labels: int, right: bool, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [(f"text {row}", str(row % labels)) for row in range(rows)])
    reading = SeveralLabels(";")
    table = read_table(path, "text", "label", labels=reading)
    if right:
        assert reading.names(table, "label") == [str(label) for label in range(labels)]
    else:
        with pytest.raises(DataError, match="3 different labels in 5 rows of column 'label'"):
            reading.names(table, "label")


def test_impossible_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="label_separator"):
        config_of(tmp_path / "a.csv", label_separator=" ")
    with pytest.raises(ConfigurationError, match="differ in spelling; leave it out"):
        config_of(tmp_path / "a.csv", label_separator=None, label_columns="Late,late", join_labels=True)
    with pytest.raises(ConfigurationError, match="'label_separator' is for your own files"):
        load_dataset(MultiLabelData(name="demo", label_separator=";"))


def test_each_label_keeps_its_share_of_every_split(tmp_path: Path) -> None:
    """No share of a split is further from that of all rows than two rows of the split are."""
    dice = np.random.default_rng(3)
    labels = (dice.random((1000, 6)) < [0.5, 0.3, 0.2, 0.1, 0.05, 0.02]).astype(np.int64)
    units, keys = [[row] for row in range(1000)], [bytes(key) for key in dice.integers(0, 256, (1000, 16), np.uint8)]
    places = np.array(iterative_split(units, keys, labels, {"train": 0.8, "validation": 0.1, "test": 0.1}))
    for name, share in (("train", 0.8), ("validation", 0.1), ("test", 0.1)):
        part = labels[places == name]
        assert abs(len(part) - share * 1000) <= 6
        assert (np.abs(part.sum(axis=0) - share * labels.sum(axis=0)) <= 2).all()
    order = dice.permutation(1000)
    again = iterative_split(units, [keys[row] for row in order], labels[order], {"train": 0.8, "v": 0.1, "test": 0.1})
    assert [name == "train" for name in again] == (places[order] == "train").tolist()


def test_a_label_of_one_row_goes_where_most_of_it_is_wanted() -> None:
    units, labels = [[row] for row in range(20)], np.eye(20, dtype=np.int64)
    keys = [bytes([row]) for row in range(20)]
    assert set(iterative_split(units, keys, labels, {"train": 0.8, "validation": 0.1, "test": 0.1})) == {"train"}
    # Rows without a label go where there is room.
    places = iterative_split(units, keys, labels[:, :0], {"train": 0.8, "validation": 0.1, "test": 0.1})
    assert [places.count(name) for name in ("train", "validation", "test")] == [16, 2, 2]


def test_a_fraction_keeps_shares_and_equal_texts_stay_together(tmp_path: Path) -> None:
    path = write_tags(tmp_path / "a.csv", 200)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, *lines[1:60]]) + "\n")
    whole, half = load_dataset(config_of(path)), load_dataset(config_of(path, fraction=0.5))
    texts = {name: set(split.texts) for name, split in whole.splits.items()}
    assert all(not texts[a] & texts[b] for a, b in pairwise(["train", "validation", "test", "train"]))
    all_rows, kept = whole.splits["train"], half.splits["train"]
    assert abs(len(kept) - len(all_rows) / 2) <= 2
    assert (np.abs(kept.labels.sum(axis=0) - all_rows.labels.sum(axis=0) / 2) <= 2).all()


@pytest.mark.parametrize("seed", range(8))
def test_no_other_threshold_has_a_higher_f1(seed: int) -> None:
    dice = np.random.default_rng(seed)
    # Few values, so that there are ties.
    probabilities = dice.integers(0, 12, (40, 3)) / 11
    labels = (dice.random((40, 3)) < 0.3).astype(np.int64)
    for column, threshold in enumerate(choose_thresholds(probabilities, labels)):
        scores, truth = probabilities[:, column], labels[:, column]
        # The threshold itself is the last of these.
        cuts = np.array([*np.linspace(0, 1, 101), threshold])
        given = scores >= cuts[:, None]
        found = 2 * (given & (truth == 1)).sum(axis=1) / np.maximum(given.sum(axis=1) + truth.sum(), 1)
        assert found[-1] == pytest.approx(found.max())
        # Of equals the nearest to one half, but for the middle of a gap being taken.
        nearest = np.abs(cuts[:-1][found[:-1] >= found.max() - 1e-12] - 0.5).min()
        widest = np.diff(np.unique([0.0, *scores])).max()
        assert abs(threshold - 0.5) <= nearest + widest / 2 + 0.01


@pytest.mark.parametrize("seed", range(2))
def test_figures_are_those_of_scikit_learn(seed: int) -> None:
    dice = np.random.default_rng(seed)
    truth = (dice.random((50, 4)) < [0.5, 0.3, 0.1, 0.0]).astype(np.int64)
    logits = dice.normal(0, 2, truth.shape).astype(np.float32)
    decision = AnyLabels(["a", "b", "c", "d"], [0.5, 0.2, 0.7, 0.4], ";")
    metrics = measure_labels((logits, truth, decision))
    probabilities = expit(logits.astype(np.float64))
    given = (probabilities >= decision.thresholds).astype(int)
    assert metrics.micro_f1 == pytest.approx(f1_score(truth, given, average="micro"))
    assert metrics.macro_f1 == pytest.approx(f1_score(truth, given, average="macro", zero_division=0))
    assert metrics.subset_accuracy == pytest.approx(accuracy_score(truth, given))
    assert metrics.hamming_loss == pytest.approx(hamming_loss(truth, given))
    assert metrics.loss == pytest.approx(log_loss(truth.ravel(), probabilities.ravel()))
    for function, key in ((precision_score, "precision"), (recall_score, "recall"), (f1_score, "f1")):
        expected = function(truth, given, average=None, zero_division=0)
        assert [getattr(metrics.labels[name], key) for name in "abcd"] == pytest.approx(expected.tolist())
    assert [item.support for item in metrics.labels.values()] == truth.sum(axis=0).tolist()
    low, high = metrics.micro_f1_interval
    rows = np.random.default_rng(1).integers(0, 50, (200, 50))
    drawn = [f1_score(truth[draw], given[draw], average="micro") for draw in rows]
    assert [low, high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist(), abs=0.04)


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_one_temperature_makes_the_probabilities_of_all_labels_honest(factor: float) -> None:
    """Labels are drawn with the probabilities of logits, which the model then gives `factor` times as large."""
    dice = np.random.default_rng(2)
    honest = dice.normal(0, 2, (3000, 4))
    truth = (dice.random(honest.shape) < expit(honest)).astype(np.int64)
    names, given = ["a", "b", "c", "d"], factor * honest
    decision = TASK.decide(MultiLabelData(name="x.csv", label_separator=";"), names, given, truth)
    assert isinstance(decision, AnyLabels)
    assert decision.temperature == pytest.approx(factor, rel=0.1)
    assert (decision.temperature == 1) == (factor == 1)
    read = read_decision(names, decision.record())
    assert read.probabilities(honest) == pytest.approx(decision.probabilities(honest))
    metrics = measure_labels((given, truth, decision))
    assert metrics.calibration_error is not None and metrics.calibration_error < 0.02
    assert metrics.uncalibrated_error is not None and (factor == 1 or metrics.uncalibrated_error > 0.05)
    # Thresholds are of the probabilities that are given: the labels are those of the same thresholds without.
    plain = AnyLabels(names, choose_thresholds(expit(given), truth), ";")
    rows = np.asarray(decision.of_logits(given) == plain.of_logits(given))
    assert rows.mean() > 0.995


def test_figures_of_nothing_and_of_no_numbers() -> None:
    decision = AnyLabels(["a", "b"], [0.5, 0.5], ";")
    with pytest.raises(DataError, match="no row"):
        measure_labels((np.zeros((0, 2)), np.zeros((0, 2), dtype=int), decision))
    with pytest.raises(RunError, match="1 of 2 rows"):
        measure_labels((np.array([[0, np.nan], [0, 0]]), np.zeros((2, 2), dtype=int), decision))


@pytest.mark.parametrize("exits", [[], [1]])
def test_the_loss_is_the_binary_cross_entropy(exits: list[int]) -> None:
    model = tiny_model(num_labels=3, problem_type="multi_label_classification", exits=exits).eval()
    labels = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    found, again = model(IDS, MASK, labels=labels), model(IDS, MASK)
    expected = binary_cross_entropy_with_logits(again.logits, labels)
    if exits:
        at_exit, weight = binary_cross_entropy_with_logits(again.exit_logits[0], labels), model.config.exit_loss_weight
        expected = (1 - weight) * expected + weight * at_exit
    torch.testing.assert_close(found.loss, expected)
    with pytest.raises(ConfigurationError, match="'problem_type' is 'regression'"):
        tiny_model(problem_type="regression")


def test_the_linear_control_is_a_regression_for_each_label(tmp_path: Path) -> None:
    split = load_dataset(config_of(write_tags(tmp_path / "a.csv"))).splits["train"]
    labels = np.concatenate([split.labels, np.zeros((len(split), 1), int), np.ones((len(split), 1), int)], axis=1)
    linear = fit_linear(split.texts, labels, num_labels=6)
    logits = linear.logits(split.texts)
    for column in range(4):
        features = features_of(linear.vectorizers, split.texts)
        alone = LogisticRegression(C=10, tol=1e-6, max_iter=5000).fit(features, labels[:, column])
        assert logits[:, column] == pytest.approx(alone.decision_function(features), abs=1e-3)
    assert (logits[:, 4] == -25).all() and (logits[:, 5] == 25).all()
    wanted = log_loss(labels.ravel(), expit(logits.astype(float)).ravel())
    assert cross_entropy(logits.astype(float), labels, independent=True) == pytest.approx(wanted, abs=1e-6)
    two = fit_linear(split.texts, labels[:, :2], num_labels=2)
    two.save(tmp_path / "two")
    read = LinearModel.load(tmp_path / "two")
    assert read.independent and np.array_equal(read.logits(split.texts), two.logits(split.texts))


def test_a_shortcut_to_one_label_is_found(tmp_path: Path) -> None:
    rows = [(row["text"], row["label"]) for row in read_rows(write_tags(tmp_path / "a.csv", 600))]
    path = write_csv(tmp_path / "a.csv", [(text + " !!!" * ("music" in label), label) for text, label in rows])
    title, audits = TASK.audit_data(config_of(path), StudyData())
    found = {audit.name: audit for audit in audits}
    assert "a.csv" in title
    shortcut = found["shortcuts.format.test"]
    assert shortcut.status == "note" and shortcut.details["label"] == "music"
    assert "'music', the worst of 4 labels" in shortcut.summary and set(shortcut.details["values"]) == set(NAMES)
    strict = config_of(path).model_copy(update={"form_must_not_predict": True})
    assert {one.name: one.status for one in TASK.audit_data(strict, StudyData())[1]}[shortcut.name] == "failed"
    assert found["leakage.exact.test"].status == "passed" and found["shortcuts.conflicts"].status == "passed"


def test_a_run_learns_and_its_record_says_so(trained: Trained) -> None:
    # Giving every text all labels would have 0.57.
    for folder, least in ((trained.run, 0.65), (trained.linear, 0.9)):
        record = read_record(folder)
        assert isinstance(record, MultiLabelRunRecord)
        assert record.metrics["test"].micro_f1 > least
        assert len(record.decision.thresholds) == 4 and record.decision.separator == ";"
        assert not record.failed_audits()
        assert len(read_rows(folder / "predictions" / "test.parquet")) == record.metrics["test"].rows


def test_thresholds_come_from_the_split_that_chose_the_weights(trained: Trained) -> None:
    record = read_record(trained.run)
    classifier = Classifier.open(trained.run)
    split = load_dataset(config_of(trained.data)).splits[record.data.selection_split]
    logits = classifier.logits(split.texts, clean=False)
    assert record.decision is not None
    expected = choose_thresholds(expit(logits.astype(float)), split.labels)
    assert record.decision.thresholds == pytest.approx(expected, abs=1e-5)


def test_evaluating_gives_what_the_record_says(trained: Trained, tmp_path: Path) -> None:
    output = tmp_path / "said.csv"
    shown = TASK.evaluate(trained.linear, {"split": "test", "output": output}, None)
    assert shown.plain["metrics"] == shown.plain["recorded"]
    assert set(shown.plain["thresholds"]) == set(NAMES)
    split = load_dataset(config_of(trained.data)).splits["test"]
    wanted = [";".join(name for name, label in zip(NAMES, row, strict=True) if label) for row in split.labels]
    assert [row["truth"] for row in read_rows(output)] == wanted
    again = TASK.evaluate(trained.linear, {"data": trained.data}, None)
    assert again.plain["metrics"]["rows"] == 240 and again.plain["recorded"] is None


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_predictions_of_a_file(ending: str, trained: Trained, tmp_path: Path) -> None:
    output = tmp_path / f"said.{ending}"
    assert main(["predict", str(trained.run), "--input", str(trained.data), "--output", str(output), "--quiet"]) == 0
    rows = [{**row, **row.get("probabilities", {})} for row in read_rows(output)]
    thresholds = read_record(trained.run).decision.thresholds  # type: ignore[union-attr]
    assert len(rows) == 240 and "probability" not in rows[0]
    prefix = "" if ending == "jsonl" else "probability_"
    for row in rows:
        values = [float(row[f"{prefix}{name}"]) for name in NAMES]
        close = any(abs(value - cut) < 1e-5 for value, cut in zip(values, thresholds, strict=True))
        given = [name for name, value, cut in zip(NAMES, values, thresholds, strict=True) if value >= cut]
        assert close or row["label_predicted"] == ";".join(given)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_each_label_is_told_by_its_own_words(ending: str, trained: Trained, tmp_path: Path) -> None:
    classifier = Classifier.open(trained.linear)
    known = [(row["text"], row["label"]) for row in read_rows(trained.data)]
    decided = classifier.decision.of_logits(classifier.logits([text for text, _ in known]))
    said = classifier.decision.texts(decided)
    right = [text for (text, label), found in zip(known, said, strict=True) if label == found and ";" in label][:20]
    (tmp_path / "in.csv").write_text("text\n" + "\n".join(right) + "\n")
    output = tmp_path / f"said.{ending}"
    asked = ["predict", str(trained.linear), "-i", str(tmp_path / "in.csv"), "-o", str(output), "--explain", "1", "-q"]
    assert main(asked) == 0
    rows = read_rows(output)
    assert list(rows[0])[:3] == ["text", "label", "words_by_label"] and "words" not in rows[0]
    probabilities, own = classifier.predict_proba(right), []
    explained = explain(classifier.predict_proba, right, probabilities, classifier.decision, len)
    for one, row in zip(explained, rows, strict=True):
        if ending == "jsonl":
            assert all(each["given"] and len(each["words"]) == 1 for each in row["words_by_label"])
            found = [(each["label"], each["words"][0]) for each in row["words_by_label"]]
            told = [(label, word["text"], word["effect"]) for label, word in found]
        else:
            parts = [part.replace(": ", " ").split(" ") for part in row["words_by_label"].split("; ")]
            told = [(label, word, float(effect.strip("()"))) for label, word, effect in parts]
        strongest = [(each.label, each.words[0]) for each in one.strongest(1).labels]
        assert told == [(label, word.text, pytest.approx(word.effect, abs=6e-4)) for label, word in strongest]
        assert [label for label, _, _ in told] == row["label"].split(";")
        own += [word in WORDS[label] for label, word, _ in told]
    assert len(own) > 30 and np.mean(own) > 0.95


def test_exit_rules_and_agreements_are_refused(trained: Trained, tmp_path: Path, refused: Callable[..., str]) -> None:
    asked = refused("predict", trained.run, "--exit-rule", "confidence", "a text", "--quiet")
    assert "any number; leave the rule out" in asked
    with pytest.raises(ConfigurationError, match="leave --agreement out"):
        export_run(trained.run, tmp_path / "export", ExportOptions(agreement=0.99))
    with pytest.raises(ConfigurationError, match="exit rules are for models that give one"):
        TASK.exit_subject(trained.run, None)


@pytest.mark.parametrize(("format", "precision"), [("safetensors", "fp16"), ("onnx", "int8")])
def test_exports_carry_the_thresholds(format: str, precision: str, trained: Trained, tmp_path: Path) -> None:
    options = ExportOptions(format=format, precision=precision)
    manifest = export_run(trained.run, tmp_path / "export", options)
    record = read_record(trained.run)
    assert manifest.decision == record.decision == read_manifest(tmp_path / "export").decision
    card = (tmp_path / "export" / "README.md").read_text()
    assert "| label | threshold |" in card and "micro F1" in card and "softmax" not in card
    split = load_dataset(config_of(trained.data)).splits["test"]
    run, export = Classifier.open(trained.run), Classifier.open(tmp_path / "export")
    same = run.predict(split.texts) == export.predict(split.texts)
    assert same.mean() > 0.95 and manifest.check.accuracy is not None
    assert np.allclose(run.predict_proba(split.texts), export.predict_proba(split.texts), atol=0.1)


def test_predict_gives_a_matrix_and_the_server_lists_labels(trained: Trained) -> None:
    linear = Classifier.open(trained.linear)
    assert linear.predict(["a lovely song", "number 7 film plot actor scene score pace"]).tolist() == [
        [0, 0, 1, 1],
        [0, 0, 0, 0],
    ]
    assert linear.predict([]).shape == (0, 4)
    classifier = Classifier.open(trained.run)
    probabilities = np.array([[0.99, 0.001, 0.999, 0.001], [0.0, 0.0, 0.0, 0.0]])
    first, second = predictions_of(Classified(probabilities), classifier.decision)
    assert first.labels == ["bad", "good"] and first.label == "bad;good"
    assert first.probabilities == dict(zip(NAMES, probabilities[0].tolist(), strict=True))
    assert (second.labels, second.label) == ([], "")
    traced = classifier.trace(["a lovely song"])
    assert traced.probabilities[0, -1] == pytest.approx(classifier.predict_proba(["a lovely song"])[0])


def test_smoothed_targets_are_moved_towards_one_half() -> None:
    logits, labels = torch.tensor([[2.0, -1.0]]), torch.tensor([[0.0, 1.0]])
    wanted = binary_cross_entropy_with_logits(logits, torch.tensor([[0.05, 0.95]]))
    assert RowLoss(label_smoothing=0.1).of_rows(logits, labels).item() == pytest.approx(wanted.item())


def test_what_more_labels_bring_is_drawn_as_it_was_measured(tmp_path: Path) -> None:
    (table,) = study(tmp_path, "first")[0].tables
    (chart,) = REPORTING.charts(table, "t")
    assert chart.heading == "What more labels bring"
    assert "Share of test rows that linear gets right" in chart.caption
