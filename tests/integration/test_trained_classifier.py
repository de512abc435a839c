"""A trained run in use: by our classifier, and by the stock tools of transformers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import torch

from recurra import Classifier
from recurra.cli.main import main
from recurra.core.record import RunRecord, read_record
from recurra.data.corpora import load_dataset, recorded_data
from recurra.evaluation.predictions import read_predictions
from recurra.report.summary import load_runs, summarise
from recurra.tasks.classification.reporting import REPORTING
from reviews import TINY_DATA, review_rows, write_csv, write_tiny_model
from tiny_runs import TrainedRun

TEXTS = [text for text, _ in review_rows(60, seed=9)]


def test_the_classifier_gives_the_recorded_predictions_again(trained: TrainedRun) -> None:
    dataset = load_dataset(trained.config.data, None)
    for split in dataset.reported_splits:
        recorded = read_predictions(trained.folder, split)
        logits = Classifier.from_run(trained.folder, batch_size=3).logits(dataset.splits[split].texts, clean=False)
        np.testing.assert_allclose(logits, recorded.logits, rtol=1e-4, atol=1e-4)


def test_a_model_that_halts_by_itself_records_what_it_takes(tmp_path: Path) -> None:
    # Of 14 tokens and of 16.
    rows = [(f"{text}{' again' * (number // 2 % 2 * 2)}", label) for number, (text, label) in enumerate(review_rows())]
    data, tiny = write_csv(tmp_path / "long.csv", rows), write_tiny_model(tmp_path / "tiny.yaml")
    folder = tmp_path / "run"
    arguments = ["train", "--model", str(tiny), "--data", str(data), "--output", str(folder), "--tokenizer", "trained"]
    keys = ["num_recurrences=4", "tokens_without_recurrence=13", "learned_halt=true", "halt_loss_weight=1"]
    training = ["max_epochs=12", "learning_rate=1e-2", "batch_size=8", "early_stopping_patience=20"]
    arguments += [*TINY_DATA, *(f"model.{key}" for key in keys), *training, "--no-latency", "--quiet"]
    assert main(arguments) in (0, 1)
    classifier = Classifier.from_run(folder)
    tokenizer, model = classifier.engine.tokenizer, classifier.engine.model
    record = read_record(folder)
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
