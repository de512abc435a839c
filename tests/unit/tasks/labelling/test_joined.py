"""Words beside a frozen encoder: the fit against scikit-learn, states that are kept, and a run from file to export."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import hstack
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from recurra.core.errors import ConfigurationError
from recurra.core.progress import Reporter
from recurra.core.record import read_record
from recurra.data.configuration import DataConfig
from recurra.data.encoding import read_arrays
from recurra.deployment.classifier import Classifier
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.evaluation import encoder_states
from recurra.evaluation.encoder_states import cached_states, mean_states
from recurra.models.adaptation.source import find_encoder
from recurra.models.controls import fitting
from recurra.models.controls.fitting import fit_joined, fit_tuned
from recurra.models.controls.linear import features_of
from recurra.models.exits.rules import FixedExit
from recurra.tasks.base import RunConfig
from recurra.tasks.classification.task import TASK
from recurra.tasks.labelling.controls import time_control
from recurra.tasks.run_folder import run_facts
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.protocols import load_protocol
from reviews import Command, review_rows, write_csv, write_reviews
from tiny_encoder import write_tiny_encoder

ROWS = 90
TEXTS, NAMES = (list(part) for part in zip(*review_rows(ROWS), strict=True))
TWO = np.array([name == "positive" for name in NAMES], dtype=np.int64)
THREE = np.where(np.arange(ROWS) % 3 == 2, 2, TWO)
SEVERAL = np.stack([TWO, THREE == 2, THREE == 1], axis=1).astype(np.int64)
# As far from the origin as those of encoders are, and one of them the same for all texts.
STATES = (np.random.default_rng(0).normal(size=(ROWS, 6)) + 3 + np.eye(6)[2] * TWO[:, None]).astype(np.float32)
STATES[:, 5] = 1.0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an encoder that knows the texts."""
    return str(write_tiny_encoder(tmp_path_factory.mktemp("encoder") / "tiny", TEXTS))


def margins(logits: Any) -> Any:
    return logits - logits.mean(axis=1, keepdims=True)


def chosen_c(fitted_by: str) -> list[float]:
    return [float(found) for found in re.findall(r"C = ([0-9.]+)", fitted_by)]


def scaled_states() -> Any:
    return (STATES - STATES.mean(axis=0)) / np.where(STATES.std(axis=0) > 0, STATES.std(axis=0), 1)


@pytest.mark.parametrize(("targets", "labels"), [(TWO, 2), (THREE, 3), (SEVERAL, 3)])
def test_it_is_the_mean_of_two_models_log_probabilities(
    targets: Any, labels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_MOST_ROWS_TOGETHER", 0)
    fit = fit_joined(TEXTS, targets, STATES, encoder="tiny", num_labels=labels)
    words = fit_tuned(TEXTS, targets, num_labels=labels).logits(TEXTS)
    scaled = scaled_states()
    c = chosen_c(fit.words.fitted_by)[1]
    balanced = "balanced" if "balanced, log-probabilities" in fit.words.fitted_by else None

    def scores(truth: Any) -> Any:
        fitted = LogisticRegression(C=c, tol=1e-6, max_iter=5000, class_weight=balanced).fit(scaled, truth)
        found = fitted.decision_function(scaled)
        return np.stack([-found / 2, found / 2], axis=1) if found.ndim == 1 else found

    found = fit.logits(TEXTS, STATES)
    if targets.ndim == 2:
        states = np.stack([scores(column)[:, 1] * 2 for column in targets.T], axis=1)
    else:
        # A softmax takes no notice of what is added to all labels.
        found, words, states = margins(found), margins(words), margins(scores(targets))
    # Each part was calibrated, and so was the mean: by factors of all logits.
    parts = np.stack([words.ravel(), states.ravel()], axis=1)
    shares, *_ = np.linalg.lstsq(parts, found.ravel(), rcond=None)
    np.testing.assert_allclose(parts @ shares, found.ravel(), atol=2e-3 * np.abs(found).max())
    assert (shares > 0).all()


def test_or_one_svm_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = fitting.choose
    monkeypatch.setattr(fitting, "choose", lambda *given: replace(choose(*given), score=2.0))
    fit = fit_joined(TEXTS, TWO, STATES, encoder="tiny")
    (c,) = chosen_c(fit.words.fitted_by)
    scaled = scaled_states()
    features = hstack([features_of(fit.words.vectorizers, TEXTS), scaled / np.sqrt(6)]).tocsr()
    expected = LinearSVC(C=c, random_state=0).fit(features, TWO).decision_function(features)
    found = np.diff(fit.logits(TEXTS, STATES), axis=1)[:, 0]
    factor = found @ expected / (expected @ expected)
    np.testing.assert_allclose(found, factor * expected, atol=1e-4 * np.abs(found).max())
    assert factor > 0 and "linear SVM" in fit.words.description and "mean token states of tiny" in fit.words.description


def test_a_handful_of_rows_and_texts_that_the_encoder_cannot_read() -> None:
    few = fit_joined(TEXTS[:4], [0, 1, 0, 1], STATES[:4], encoder="tiny")
    assert np.isfinite(few.logits(TEXTS, STATES)).all()
    # Of a language without pieces every text is the same to the encoder: words decide.
    texts = [f"{word} {number}" for number in range(20) for word in ("καλό", "κακό")]
    same = np.ones((40, 6), dtype=np.float32)
    fit = fit_joined(texts, [1, 0] * 20, same, encoder="tiny")
    assert (fit.logits(texts, same).argmax(axis=1) == [1, 0] * 20).all()


def ask_states(source: Any, texts: list[str], folder: Path, **options: Any) -> Any:
    given = {"data": "corpus", "precision": "fp32", "cache_dir": folder, **options}
    return cached_states(source, texts, Reporter(quiet=True), **given)


def test_states_are_computed_once_whoever_asks(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find_encoder(tiny)
    read: list[int] = []

    def counted(source: Any, texts: Any, reporter: Any, **options: Any) -> Any:
        read.append(len(texts))
        return mean_states(source, texts, reporter, **options)

    monkeypatch.setattr(encoder_states, "mean_states", counted)
    expected = mean_states(source, TEXTS, Reporter(quiet=True))
    for texts, wanted in ((TEXTS[:50], expected[:50]), (TEXTS, expected), (TEXTS[::-1], expected[::-1])):
        np.testing.assert_allclose(ask_states(source, texts, tmp_path), wanted, atol=1e-6)
    assert read == [50, ROWS - 50]
    ask_states(source, TEXTS[:3], tmp_path, precision="bf16")
    for _ in range(2):
        ask_states(source, TEXTS[:3], tmp_path, data="in-memory")
    assert read[2:] == [3, 3, 3]


def test_a_cache_file_forgets_the_texts_of_old_versions(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = find_encoder(tiny)
    monkeypatch.setattr(encoder_states, "MOST_CACHED_TEXTS", 8)
    for version in range(4):
        texts = [f"{TEXTS[number]} {number} {version}" for number in range(5)]
        expected = mean_states(source, texts, Reporter(quiet=True))
        np.testing.assert_allclose(ask_states(source, texts, tmp_path), expected, atol=1e-6)
    (path,) = tmp_path.glob("states-*")
    arrays = read_arrays(path, ["texts", "states"])
    assert arrays is not None and len(arrays["texts"]) == len(arrays["states"]) == 8
    # The oldest text that is left stays if it is asked for, and the next call computes nothing.
    texts = [f"{TEXTS[2]} 2 2", "a new text"]
    states = ask_states(source, texts, tmp_path)
    monkeypatch.delattr(encoder_states, "mean_states")
    np.testing.assert_array_equal(ask_states(source, texts, tmp_path), states)


def frozen_run(encoder: str, data: DataConfig, **keys: Any) -> RunConfig:
    model: Any = {"name": "frozen", "preset": "words-and-encoder", "encoder": encoder, **keys}
    return make_run(model, data, load_protocol("paper"), seed=3, precision="bf16", teachers=[])


@pytest.mark.parametrize("several", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_from_a_file_to_exports_that_say_the_same(
    several: bool, tiny: str, tmp_path: Path, command: Command
) -> None:
    rows = [(text, f"{name};short" if several and n % 3 else name) for n, (text, name) in enumerate(review_rows(120))]
    file, model, run = write_csv(tmp_path / "rows.csv", rows), tmp_path / "frozen.yaml", tmp_path / "run"
    model.write_text(f"preset: words-and-encoder\nencoder: {tiny}\n")
    options = ["--no-latency", "--cache-dir", tmp_path / "cache", *(["--label-separator", ";"] if several else [])]
    command("train", "--model", model, "--data", file, "--output", run, *options)
    record = read_record(run)
    assert (record.model.kind, record.model.preset, record.training.epochs) == ("linear", "frozen", 0)
    assert record.model.encoder is not None and "mean token states" in record.model.description
    assert {path.name for path in (run / "model").iterdir()} >= {"linear.safetensors", "model.safetensors"}
    command("audit", "model", run)
    texts = [*TEXTS[:20], "", "film " * 400, "καλό 😀"]
    trained = Classifier.from_run(run)
    expected = trained.logits(texts)
    np.testing.assert_allclose(np.concatenate([trained.logits([text]) for text in texts]), expected, atol=1e-5)
    for kind, precision, tolerance in (("onnx", "fp32", 1e-4), ("onnx", "int8", 0.05), ("safetensors", "fp32", 1e-5)):
        target = tmp_path / f"{kind}-{precision}"
        export_run(run, target, ExportOptions(kind, precision))
        card = (target / "README.md").read_text(encoding="utf-8")
        assert "bag of n-grams" in card and "at once, without epochs" in card and "0 epochs" not in card
        exported = Classifier.from_export(target)
        np.testing.assert_allclose(exported.logits(texts), expected, atol=tolerance * max(1, np.abs(expected).max()))
    if not several:
        # Words count too where a depth is named.
        early = trained.classify(texts, rule=FixedExit(1))
        np.testing.assert_allclose(early.probabilities, trained.predict_proba(texts), atol=1e-6)
        assert early.exited_after is not None and (early.exited_after == 1).all()


def test_it_is_computed_on_an_accelerator_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recurra.tasks.run_folder.accelerator_name", lambda: "a GPU")
    for model, accelerator in (("linear", None), ("recurra-small-and-words", "a GPU")):
        config = make_run(model, DataConfig(name="demo"), load_protocol("tuned"), seed=0, precision="fp32")
        assert run_facts(config, 0.0, 1)["environment"].accelerator == accelerator


@pytest.mark.parametrize(("words", "windows", "told"), [(3, 2, False), (400, 1, True), (400, 2, True)])
def test_windows_and_texts_that_the_encoder_does_not_read_are_told(
    words: int, windows: int, told: bool, tiny: str, tmp_path: Path
) -> None:
    texts = [f"good film {number}" + " film" * words * (number % 2) for number in range(80)]
    file = write_csv(tmp_path / "rows.csv", [(text, "ab"[number // 40]) for number, text in enumerate(texts)])
    run = frozen_run(tiny, DataConfig(name=str(file), windows=windows))
    said = [line for line in TASK.preflight(run, StudyData()) if "first 256 tokens" in line]
    assert len(said) == told and not any("cuts 0.0%" in line for line in said)


def test_its_time_is_estimated_and_nobody_teaches_it(tiny: str, tmp_path: Path) -> None:
    data = DataConfig(name=str(write_reviews(tmp_path / "rows.csv", ROWS)))
    run = frozen_run(tiny, data)
    assert (run.seed, run.precision, run.is_control, run.is_repeated) == (0, "bf16", True, False)
    assert time_control(run, StudyData(Machine(cache_dir=tmp_path / "cache"))) > 0
    assert not (tmp_path / "cache").exists()
    with pytest.raises(ConfigurationError, match="'words-and-encoder' cannot be taught"):
        frozen_run(tiny, data, teacher="x")
