"""A finished run, evaluated again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import average_precision_score

from recurra import Classifier
from recurra.cli.main import main
from recurra.core.errors import ConfigurationError, DataError, StorageError
from recurra.core.record import read_record
from recurra.data.configuration import DataConfig, MultiLabelData
from recurra.data.corpora import load_dataset
from recurra.deployment.decision import OneLabel
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.evaluation.predictions import read_predictions
from recurra.tasks.classification.task import TASK
from reviews import Command, read_rows, review_rows, train_linear, write_csv, write_reviews


def evaluated(run: Path, **options: Any) -> dict[str, Any]:
    return TASK.evaluate(run, options, None).plain


@pytest.mark.parametrize("split", [None, "test", "validation", "train"])
def test_a_split_gives_what_the_record_says(linear_run: Path, split: str | None) -> None:
    result = evaluated(linear_run, split=split)
    # Test is the default; of train the record has no figure.
    assert result["source"] == split or (split, result["source"]) == (None, "test")
    recorded = read_record(linear_run).metrics.get(result["source"])
    assert result["recorded"] == (None if recorded is None else recorded.model_dump(mode="json"))
    assert result["metrics"] == result["recorded"] or (split, result["metrics"]["rows"]) == ("train", 192)
    assert (result["computation"]["engine"], result["computation"]["compute_precision"]) == ("scikit-learn", "fp64")


def test_average_precision_is_that_of_the_probabilities_that_predict_gives(tmp_path: Path, command: Command) -> None:
    rng = np.random.default_rng(0)
    topics, shape = rng.integers(0, 4, 1_000), (1_000, 12)
    words = np.where(rng.random(shape) < 0.4, topics[:, None], rng.integers(0, 4, shape)) * 200
    rows = [" ".join(f"word{word}" for word in row) for row in words + rng.integers(0, 200, shape)]
    path = write_csv(tmp_path / "topics.csv", [(text, f"topic {n}") for text, n in zip(rows, topics, strict=True)])
    command("train", "--model", "linear", "--data", path, "--output", tmp_path / "run", "--no-latency", "--quiet")
    classifier, split = Classifier.from_run(tmp_path / "run"), load_dataset(DataConfig(name=str(path))).splits["test"]
    assert isinstance(classifier.decision, OneLabel) and classifier.decision.temperature != 1
    said, raw = classifier.predict_proba(split.texts), softmax(classifier.logits(split.texts), axis=1)
    wanted, other = (
        [average_precision_score(split.labels == label, scores[:, label]) for label in range(4)]
        for scores in (said, raw)
    )
    assert read_record(tmp_path / "run").metrics["test"].average_precision == pytest.approx(wanted)
    assert wanted != pytest.approx(other)


def test_predictions_of_a_split_are_those_of_the_run(linear_run: Path, tmp_path: Path) -> None:
    evaluated(linear_run, output=tmp_path / "p.parquet")
    stored, names = read_predictions(linear_run, "test"), read_record(linear_run).data.label_names
    rows = [(row["id"], row["truth"], row["label"]) for row in read_rows(tmp_path / "p.parquet")]
    labels = zip(stored.ids, stored.labels, stored.predicted, strict=True)
    assert rows == [(row_id, names[truth], names[said]) for row_id, truth, said in labels]


def test_a_file_is_evaluated_with_the_labels_of_the_run(linear_run: Path, tmp_path: Path) -> None:
    rows = review_rows(30, seed=7)
    path = write_csv(tmp_path / "more.csv", [(label, text) for text, label in rows], ("mood", "body"))
    output = tmp_path / "p.csv"
    result = evaluated(linear_run, data=path, text_column="body", label_column="mood", output=output)
    assert result["metrics"]["rows"] == 30 and result["recorded"] is None
    written = read_rows(output)
    right = sum(row["truth"] == row["label"] for row in written) / 30
    assert result["metrics"]["accuracy"] == pytest.approx(right)
    assert [row["truth"] for row in written] == [label for _, label in rows]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_rows_that_get_no_label_from_predict_get_none_here_and_their_share_is_told(
    linear_run: Path, tmp_path: Path, suffix: str
) -> None:
    rows = review_rows(30, seed=7)
    path = write_csv(tmp_path / "more.csv", rows)
    highest = Classifier.open(linear_run).predict_proba([text for text, _ in rows]).max(axis=1)
    export, written = tmp_path / "export", [tmp_path / f"{name}{suffix}" for name in ("evaluated", "predicted")]
    export_run(linear_run, export, ExportOptions(abstain_below=[float(np.median(highest))] * 2))
    result = TASK.evaluate(export, {"data": path, "output": written[0]}, None)
    assert main(["predict", str(export), "-i", str(path), "-o", str(written[1]), "--no-keep-columns", "-q"]) == 0
    found, expected = map(read_rows, written)
    assert [(row["label"], row["abstained"]) for row in found] == [(row["label"], row["abstained"]) for row in expected]
    given = [row for row in found if row["label"]]
    assert result.plain["abstained"] == 30 - len(given) == 15 and result.plain["metrics"]["rows"] == 30
    right = sum(row["label"] == row["truth"] for row in given) / len(given)
    (said,) = [line for part in result.parts if isinstance(part, list) for line in part if "no label" in line]
    assert said.startswith("15 of 30 rows (50.0%) have no label: ")
    assert (
        f"The figures count all rows, each with the label that it would have; {right:.1%} of the labels given" in said
    )


def test_what_cannot_be_evaluated_is_refused(linear_run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'positive'"):
        evaluated(linear_run, data=write_csv(tmp_path / "t.csv", [("fine", "positiv")]))
    with pytest.raises(ConfigurationError, match="did you mean 'test'"):
        evaluated(linear_run, split="tset")
    path = write_reviews(tmp_path / "r.csv", 10)
    with pytest.raises(ConfigurationError, match="give one of the two"):
        evaluated(linear_run, split="test", data=path)
    with pytest.raises(ConfigurationError, match="--encoding is 'cp1252' but no file is given; add --data"):
        evaluated(linear_run, encoding="cp1252")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConfigurationError, match="from the columns late, rude"):
        several = MultiLabelData(name=str(path), label_columns=("late", "rude"))
        patch.setattr("recurra.tasks.labelling.evaluation.recorded_data", lambda record: several)
        evaluated(linear_run, data=path, label_column="mood")
    before = path.read_bytes()
    with pytest.raises(StorageError, match="the input itself"):
        evaluated(linear_run, data=path, output=path)
    assert path.read_bytes() == before
    # The data of a run have changed.
    changed = train_linear(tmp_path)
    write_reviews(tmp_path / "reviews.csv", 240, seed=1)
    with pytest.raises(DataError, match="the data have changed"):
        evaluated(changed)
