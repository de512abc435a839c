"""A model that reads long texts in windows: trained, measured, exported, predicted, served, from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from recurra import Classifier
from recurra.core.record import RunRecord, read_record
from recurra.data.corpora import load_dataset, recorded_data
from recurra.data.encoding import encode_windows
from recurra.deployment.export.manifest import read_manifest
from recurra.deployment.serving.models import open_models
from recurra.evaluation.predictions import read_predictions
from reviews import Command, review_rows, train_tiny

# Rows have 13 words, of a piece or more each.
READING = ("data.max_length=7", "data.windows=3")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with an exit, trained on texts of which each is read in windows."""
    return train_tiny(tmp_path_factory.mktemp("windows"), *READING, "model.exits=[1]", "max_epochs=2")


def test_the_run_says_how_it_reads_and_is_measured_by_whole_texts(run: Path) -> None:
    record = read_record(run)
    assert isinstance(record, RunRecord)
    assert record.config["data"]["windows"] == 3 and "3-windows" in record.run_id
    classifier = Classifier.open(run)
    rows = load_dataset(recorded_data(record)).splits["test"]
    stored = read_predictions(run, "test")
    np.testing.assert_allclose(classifier.logits(rows.texts, clean=False), stored.logits, rtol=1e-4, atol=1e-5)
    assert record.metrics["test"].rows == len(rows) == len(stored.labels)
    (audit,) = [each for each in record.audits if each.name == "long-texts.train"]
    assert audit.details["windows"] == 3 and "in at most 3 windows" in audit.summary
    tokenizer = classifier.engine.tokenizer  # type: ignore[attr-defined]
    train = load_dataset(recorded_data(record)).splits["train"]
    _, _, counts = encode_windows(train.texts, tokenizer, 7, 3)
    assert counts is not None and counts.max() == 3
    assert record.training.steps == 2 * -(-int(counts.sum()) // record.config["protocol"]["batch_size"])


def test_exports_read_as_the_run_does(run: Path, tmp_path: Path, command: Command) -> None:
    texts = [text for text, _ in review_rows(9, seed=4)] + ["great " * 50, ""]
    wanted = Classifier.open(run).logits(texts)
    for name in ("safetensors", "onnx"):
        said = command("export", run, "--format", name, "--output", tmp_path / name).err
        assert "exit rules are for models that read a text in one window" in said
        manifest = read_manifest(tmp_path / name)
        assert manifest.windows == 3 and manifest.exits is None and manifest.check.label_agreement == 1
        np.testing.assert_allclose(Classifier.open(tmp_path / name).logits(texts), wanted, rtol=1e-4, atol=1e-4)
        card = (tmp_path / name / "README.md").read_text(encoding="utf-8")
        assert "are read in up to 3 windows of that length, and the logits are averaged" in card
        assert "Longer texts were read in up to 3 windows of 7 tokens." in card and "Texts are cut at" not in card
    threads = torch.get_num_threads()
    try:
        models = open_models({"run": run, "export": tmp_path / "onnx"}, threads=threads + 1)
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    described = [model.description for model in models]
    assert [(each.max_length_tokens, each.windows) for each in described] == [(7, 3)] * 2
    # It has an exit, and no text of several windows leaves by it.
    assert [each.exits for each in described] == [None, None]


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "RUN", "a text", "--exit-rule", "confidence", "--threshold", "0.9"],
        ["exits", "RUN"],
        ["export", "RUN", "--format", "onnx", "--output", "OUT", "--agreement", "0.9", "--quiet"],
        ["train", "--model", "linear", "--data", "demo", "--output", "OUT", "--windows", "65"],
    ],
)
def test_what_windows_do_not_do_is_refused_in_one_line(
    arguments: list[str], run: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    places = {"RUN": run, "OUT": tmp_path / "out"}
    assert "window" in refused(*[places.get(argument, argument) for argument in arguments])
