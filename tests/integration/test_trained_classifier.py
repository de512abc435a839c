"""A trained run in use: by our classifier, and by the stock tools of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import pipeline

from recurra import Classifier
from recurra.core.record import read_record
from recurra.data.cleaning import clean_texts
from recurra.deployment.engines.computation import softmax
from recurra.evaluation.predictions import read_predictions
from reviews import review_rows
from tiny_runs import TrainedRun

TEXTS = [text for text, _ in review_rows(60, seed=9)]


def test_a_run_is_read_with_its_own_labels_and_limits(trained: TrainedRun) -> None:
    classifier = Classifier.from_run(trained.folder)
    assert classifier.classes_.tolist() == read_record(trained.folder).data.label_names == ["negative", "positive"]
    rows = review_rows(60, seed=9)
    right = np.mean(classifier.predict([text for text, _ in rows]) == np.array([label for _, label in rows]))
    assert right > 0.8


def test_the_classifier_gives_the_recorded_predictions_again(trained: TrainedRun) -> None:
    from recurra.data.corpora import load_dataset

    dataset = load_dataset(trained.config.data, None)
    for split in dataset.reported_splits:
        recorded = read_predictions(trained.folder, split)
        logits = Classifier.from_run(trained.folder, batch_size=3).logits(dataset.splits[split].texts, clean=False)
        np.testing.assert_allclose(logits, recorded.logits, rtol=1e-4, atol=1e-4)


def test_the_stock_pipeline_gives_the_same_labels_and_scores(trained: TrainedRun) -> None:
    classifier = Classifier.from_run(trained.folder, precision="fp32")
    texts = clean_texts(TEXTS)
    stock = pipeline("text-classification", model=str(trained.folder / "model"), device="cpu")
    answers = stock(texts, batch_size=7)
    assert [answer["label"] for answer in answers] == classifier.predict(TEXTS).tolist()
    # It knows of no temperature.
    scores = softmax(classifier.logits(TEXTS)).max(axis=1)
    assert [answer["score"] for answer in answers] == pytest.approx(scores.tolist(), abs=1e-4)
