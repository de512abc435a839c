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

from recurra.cli.main import main
from recurra.core.errors import ConfigurationError
from recurra.core.progress import Reporter
from recurra.core.record import read_record
from recurra.data.configuration import DataConfig
from recurra.data.encoding import read_arrays
from recurra.deployment.classifier import Classifier
from recurra.evaluation import encoder_states
from recurra.evaluation.encoder_states import cached_states, mean_states
from recurra.models.adaptation.source import find_encoder
from recurra.models.controls import fitting
from recurra.models.controls.fitting import fit_joined, fit_tuned
from recurra.models.controls.linear import features_of
from recurra.models.exits.rules import FixedExit
from recurra.tasks.classification.task import TASK
from recurra.tasks.labelling.controls import time_control
from recurra.tasks.run_folder import run_facts
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.protocols import load_protocol
from reviews import review_rows, write_csv
from tiny_encoder import write_tiny_encoder

TEXTS, NAMES = (list(part) for part in zip(*review_rows(90), strict=True))
TWO = np.array([name == "positive" for name in NAMES], dtype=np.int64)
THREE = np.where(np.arange(90) % 3 == 2, 2, TWO)
SEVERAL = np.stack([TWO, THREE == 2, THREE == 1], axis=1).astype(np.int64)
# As far from the origin as those of encoders are, and one of them the same for all texts.
STATES = (np.random.default_rng(0).normal(size=(90, 6)) + 3 + np.eye(6)[2] * TWO[:, None]).astype(np.float32)
STATES[:, 5] = 1.0


def margins(logits: Any) -> Any:
    return logits - logits.mean(axis=1, keepdims=True)


def chosen_c(fitted_by: str) -> list[float]:
    return [float(found) for found in re.findall(r"C = ([0-9.]+)", fitted_by)]


@pytest.mark.parametrize(("targets", "labels"), [(TWO, 2), (THREE, 3), (SEVERAL, 3)])
def test_it_is_the_mean_of_two_models_log_probabilities(
    targets: Any, labels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_MOST_ROWS_TOGETHER", 0)
    fit = fit_joined(TEXTS, targets, STATES, encoder="tiny", num_labels=labels)
    words = fit_tuned(TEXTS, targets, num_labels=labels).logits(TEXTS)
    scaled = (STATES - STATES.mean(axis=0)) / np.where(STATES.std(axis=0) > 0, STATES.std(axis=0), 1)
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
    scaled = (STATES - STATES.mean(axis=0)) / np.where(STATES.std(axis=0) > 0, STATES.std(axis=0), 1)
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
    texts = [f"{word} {number}" for number in range(30) for word in ("καλό", "κακό")]
    same = np.ones((60, 6), dtype=np.float32)
    fit = fit_joined(texts, [1, 0] * 30, same, encoder="tiny")
    assert (fit.logits(texts, same).argmax(axis=1) == [1, 0] * 30).all()


def test_states_are_computed_once_whoever_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find_encoder(str(write_tiny_encoder(tmp_path / "tiny", TEXTS)))
    read: list[int] = []

    def counted(source: Any, texts: Any, reporter: Any, **options: Any) -> Any:
        read.append(len(texts))
        return mean_states(source, texts, reporter, **options)

    monkeypatch.setattr(encoder_states, "mean_states", counted)

    def ask(texts: list[str], **options: Any) -> Any:
        given = {"data": "corpus", "precision": "fp32", "cache_dir": tmp_path, **options}
        return cached_states(source, texts, Reporter(quiet=True), **given)

    expected = mean_states(source, TEXTS, Reporter(quiet=True))
    distinct = len({*TEXTS[:50]})
    np.testing.assert_allclose(ask(TEXTS[:50]), expected[:50], atol=1e-6)
    np.testing.assert_allclose(ask(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(ask(TEXTS[::-1]), expected[::-1], atol=1e-6)
    assert read == [distinct, len({*TEXTS}) - distinct]
    ask(TEXTS[:3], precision="bf16")
    ask(TEXTS[:3], data="in-memory")
    ask(TEXTS[:3], data="in-memory")
    assert read[2:] == [3, 3, 3]


def test_a_cache_file_forgets_the_texts_of_old_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, quiet = find_encoder(str(write_tiny_encoder(tmp_path / "tiny", TEXTS))), Reporter(quiet=True)
    monkeypatch.setattr(encoder_states, "MOST_CACHED_TEXTS", 8)
    for version in range(4):
        texts = [f"{TEXTS[number]} {number} {version}" for number in range(5)]
        states = cached_states(source, texts, quiet, data="corpus", precision="fp32", cache_dir=tmp_path)
        np.testing.assert_allclose(states, mean_states(source, texts, quiet), atol=1e-6)
    (path,) = tmp_path.glob("states-*")
    arrays = read_arrays(path, ["texts", "states"])
    assert arrays is not None and len(arrays["texts"]) == len(arrays["states"]) == 8
    # The oldest text that is left stays if it is asked for, and the next call computes nothing.
    texts = [f"{TEXTS[2]} 2 2", "a new text"]
    states = cached_states(source, texts, quiet, data="corpus", precision="fp32", cache_dir=tmp_path)
    monkeypatch.delattr(encoder_states, "mean_states")
    again = cached_states(source, texts, quiet, data="corpus", precision="fp32", cache_dir=tmp_path)
    np.testing.assert_array_equal(again, states)


def write_rows(path: Path, *, several: bool) -> Path:
    rows = enumerate(review_rows(160))
    return write_csv(path, [(text, f"{name};short" if several and place % 3 else name) for place, (text, name) in rows])


@pytest.mark.parametrize("several", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_from_a_file_to_exports_that_say_the_same(several: bool, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.csv", several=several)
    model, run = tmp_path / "frozen.yaml", tmp_path / "run"
    model.write_text(f"preset: words-and-encoder\nencoder: {write_tiny_encoder(tmp_path / 'tiny', TEXTS)}\n")
    options = ["--label-separator", ";"] if several else []
    command = ["train", "--model", str(model), "--data", str(file), "--output", str(run), "--quiet", *options]
    assert main([*command, "--cache-dir", str(tmp_path / "cache")]) == 0
    record = read_record(run)
    assert (record.model.kind, record.model.preset, record.training.epochs) == ("linear", "frozen", 0)
    assert record.model.encoder is not None and "mean token states" in record.model.description
    assert {path.name for path in (run / "model").iterdir()} >= {"linear.safetensors", "model.safetensors"}
    assert main(["audit", "model", str(run)]) == 0
    texts = [*TEXTS[:20], "", "film " * 400, "καλό 😀"]
    trained = Classifier.from_run(run)
    expected = trained.logits(texts)
    np.testing.assert_allclose(np.concatenate([trained.logits([text]) for text in texts]), expected, atol=1e-5)
    for kind, precision, tolerance in (("onnx", "fp32", 1e-4), ("onnx", "int8", 0.05), ("safetensors", "fp32", 1e-5)):
        target = tmp_path / f"{kind}-{precision}"
        arguments = ["export", str(run), "--output", str(target), "--format", kind, "--precision", precision]
        assert main(arguments) == 0
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
    how: dict[str, Any] = {"seed": 0, "precision": "fp32"}
    for model, accelerator in (("linear", None), ("recurra-small-and-words", "a GPU")):
        config = make_run(model, DataConfig(name="demo"), load_protocol("tuned"), **how)
        assert run_facts(config, 0.0, 1)["environment"].accelerator == accelerator


@pytest.mark.parametrize(("words", "windows", "told"), [(3, 1, False), (3, 2, False), (400, 1, True), (400, 2, True)])
def test_windows_and_texts_that_the_encoder_does_not_read_are_told(
    words: int, windows: int, told: bool, tmp_path: Path
) -> None:
    texts = [f"good film {number}" + " film" * words * (number % 2) for number in range(80)]
    file = write_csv(tmp_path / "rows.csv", [(text, "ab"[number // 40]) for number, text in enumerate(texts)])
    keys = {"preset": "words-and-encoder", "encoder": str(write_tiny_encoder(tmp_path / "tiny", TEXTS))}
    data = DataConfig(name=str(file), windows=windows)
    run = make_run({"name": "frozen", **keys}, data, load_protocol("paper"), seed=0, precision="fp32")  # type: ignore[arg-type]
    said = [line for line in TASK.preflight(run, StudyData()) if "first 256 tokens" in line]
    assert len(said) == told and not any("cuts 0.0%" in line for line in said)


def test_its_time_is_estimated_and_nobody_teaches_it(tmp_path: Path) -> None:
    data = DataConfig(name=str(write_rows(tmp_path / "rows.csv", several=False)))
    keys = {"preset": "words-and-encoder", "encoder": str(write_tiny_encoder(tmp_path / "tiny", TEXTS))}
    protocol = load_protocol("paper")
    run = make_run({"name": "frozen", **keys}, data, protocol, seed=3, precision="bf16")  # type: ignore[arg-type]
    assert (run.seed, run.precision, run.is_control, run.is_repeated) == (0, "bf16", True, False)
    assert time_control(run, StudyData(Machine(cache_dir=tmp_path / "cache"))) > 0
    assert not (tmp_path / "cache").exists()
    with pytest.raises(ConfigurationError, match="'words-and-encoder' cannot be taught"):
        make_run({"name": "frozen", **keys, "teacher": "x"}, data, protocol, seed=0, precision="fp32", teachers=[])  # type: ignore[arg-type]
