"""The recommended model: where it goes wrong, against scikit-learn and the predictions, and what would change it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from factories import RunFactory
from recurra.core.record import read_record, write_record
from recurra.core.record_parts import EncoderRecord
from recurra.evaluation.predictions import read_predictions
from recurra.tasks.classification.conclusions import advise
from recurra.tasks.classification.reporting import MOST_PAIRS, confused_table, label_table
from recurra.tasks.labelling.reporting import LabellingTable
from recurra.tasks.questions import Limits, Questions
from rendered import summarise_folders

ROWS = {"train": 90, "validation": 60, "test": 400}


def table(folders: list[Path], **asked: object) -> LabellingTable:
    (found,) = summarise_folders(folders, questions=Questions(**asked)).tables  # type: ignore[arg-type]
    assert isinstance(found, LabellingTable)
    return found


@pytest.mark.parametrize("labels", [2, 12])
def test_figures_of_labels_are_those_of_scikit_learn(tmp_path: Path, labels: int) -> None:
    factory = RunFactory(tmp_path, rows=ROWS, label_names=tuple(f"label {n}" for n in range(labels)))
    folders = [factory.run("recurrent", 0.9), factory.run("linear", 0.5)]
    found, rows = table(folders), read_predictions(folders[0], "test")
    wanted = precision_recall_fscore_support(rows.labels, rows.predicted, zero_division=0)
    by_label = {row["Label"]: row for row in label_table(found).rows}
    for index, name in enumerate(found.label_names):
        figures = [float(by_label[name][heading]) for heading in ("Precision", "Recall", "F1", "Rows")]
        np.testing.assert_allclose(figures, [part[index] for part in wanted], atol=5.1e-4)
    figures = [float(row["F1"]) for row in label_table(found).rows]
    assert labels < 9 or figures == sorted(figures)


def test_pairs_are_those_with_the_most_errors_over_all_seeds(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS, label_names=("a", "b", "c", "d", "e"))
    folders = [*(factory.run("recurrent", 0.8, seed=seed) for seed in (0, 1)), factory.run("linear", 0.4)]
    found = confused_table(table(folders)).rows
    both = [read_predictions(folder, "test") for folder in folders[:2]]
    pairs = [pair for rows in both for pair in zip(rows.labels, rows.predicted, strict=True)]
    counts = Counter(("abcde"[true], "abcde"[said]) for true, said in pairs if true != said)
    assert [int(pair["Rows"]) for pair in found] == sorted(counts.values(), reverse=True)[:MOST_PAIRS]
    assert all(counts[pair["A text of"], pair["is taken for"]] == int(pair["Rows"]) for pair in found)
    two = RunFactory(tmp_path / "two", rows=ROWS)
    assert confused_table(table([two.run("recurrent", 0.8)])).rows == []


def test_the_surest_mistakes_are_told_with_their_texts_and_who_is_right(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS)
    folders = [factory.run("recurrent", 0.9, spoke="x"), factory.run("linear", 0.7)]
    own, other = (read_predictions(folder, "test") for folder in folders)
    texts = {"test": {identity: f"text  of\n{identity} {'x' * 900}" for identity in own.ids}}
    fingerprint = read_record(folders[0]).data.fingerprint
    found = table(folders, texts=texts, fingerprint=fingerprint).mistakes
    assert found and [row["probability"] for row in found] == sorted(
        (row["probability"] for row in found), reverse=True
    )
    wrong = {f"text of {identity} ": row for row, identity in enumerate(own.ids) if not own.correct[row]}
    odds = np.exp(own.logits - own.logits.max(axis=1, keepdims=True))
    surest = max(float(odds[row].max() / odds[row].sum()) for row in wrong.values())
    assert found[0]["probability"] == pytest.approx(surest, rel=1e-5)
    for mistake in found:
        (row,) = (row for start, row in wrong.items() if mistake["text"].startswith(start))
        assert len(mistake["text"]) < 400 and mistake["right"] == (["linear"] if other.correct[row] else [])
    # Other data, or none: nothing is shown.
    assert table(folders, texts=texts, fingerprint="other").mistakes == table(folders).mistakes == []
    assert table(folders, texts={"test": {"x": "y"}}, fingerprint=fingerprint).mistakes == []


def test_where_nothing_is_recommended_nothing_is_looked_at(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS)
    found = table([factory.run("recurrent", 0.9)], limits=Limits(max_mib=0.001))
    assert found.recommended is not None and found.recommended.choice is None
    assert label_table(found).rows == confused_table(found).rows == found.mistakes == []


def test_a_faster_model_is_named_although_its_name_is_part_of_a_smaller_ones(tmp_path: Path) -> None:
    scores = {"baseline": 0.95, "recurrent-wide": 0.8, "recurrent": 0.65}
    factory = RunFactory(tmp_path, rows=ROWS)
    found = table([factory.run(name, accuracy) for name, accuracy in scores.items()])
    models = [
        replace(model, latency={"1": model.latency["1"].model_copy(update={"median_ms": 1.0})})
        if model.label == "recurrent"
        else model
        for model in found.models
    ]
    recommended, _ = advise(replace(found, models=models), Limits())
    changes = dict(recommended.details)["What would change this"]
    assert recommended.choice == "baseline" and "If it must be smaller, take recurrent-wide" in changes
    assert "If it must be faster, take recurrent (1 ms a text)" in changes


@pytest.mark.parametrize("means", [(0.9, 0.905), (0.905, 0.9)])
def test_of_models_that_weigh_the_same_the_best_is_recommended(means: tuple[float, float], tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS)
    found = table([factory.run("recurrent", 0.9), factory.run("stacked-shallow", 0.9)])
    assert len({(model.file_size_mib, model.parameters) for model in found.models}) == 1
    models = []
    for model, mean in zip(found.models, means, strict=True):
        score = model.scores["test"]
        accuracy = replace(score.figures["accuracy"], mean=mean)
        scores = {"test": replace(score, figures={**score.figures, "accuracy": accuracy})}
        models.append(replace(model, scores=scores))
    recommended = advise(replace(found, models=models), Limits())[0]
    assert recommended.choice == models[means.index(max(means))].label
    assert "the best and the smallest" in recommended.why


def test_words_beside_an_encoder_are_no_linear_model_that_makes_a_transformer_needless(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS)
    folders = [factory.run("linear", 0.6), factory.run("recurrent-wide", 0.9), factory.run("recurrent", 0.75)]
    record = read_record(folders[1])
    encoder = EncoderRecord(name="minilm", sha256="0" * 64, plan="0-5", layers=6, licence="", trained_on="")
    joined = record.model.model_copy(update={"kind": "linear", "encoder": encoder})
    write_record(folders[1], record.model_copy(update={"model": joined}))
    _, needed = table(folders).advice
    assert needed.choice == "yes, for accuracy"
    assert needed.why.startswith("Better than linear: recurrent-wide by ")
