"""Cross-validation: what a report says of the folds of a file is what their predictions say together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, log_loss

import recurra
from factories import leakage
from recurra.comparison import cross_validated
from recurra.core.best_run import find_run
from recurra.core.record import AuditResult, MultiLabelRunRecord
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset, recorded_data
from recurra.evaluation.audits.grading import keep_rows, kept_rows
from recurra.evaluation.metrics import log_softmax
from recurra.evaluation.predictions import Predictions, read_predictions
from recurra.report.summary import load_runs, summarise
from recurra.reported_study import StudyResult
from recurra.tasks.classification.reporting import REPORTING
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.study_data import StudyData
from reviews import review_rows, write_csv, write_reviews, write_tiny_model

ROWS, FOLDS = 240, 5


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reviews of which every seventh has the other label, so that every model is wrong somewhere."""
    rows = [
        (text, label if number % 7 else {"negative": "positive", "positive": "negative"}[label])
        for number, (text, label) in enumerate(review_rows(ROWS))
    ]
    return write_csv(tmp_path_factory.mktemp("rows") / "reviews.csv", rows)


@pytest.fixture(scope="module")
def found(file: Path) -> StudyResult:
    return recurra.compare(file, models=["linear", "linear-tuned"], output=file.parent / "compared", quiet=True)


@pytest.fixture(scope="module")
def runs(found: StudyResult) -> list[LoadedRun]:
    loaded, failed = load_runs([outcome.folder for outcome in found.outcomes])
    assert not failed and len(loaded) == 2 * FOLDS
    return loaded


@pytest.fixture(scope="module")
def linear(runs: list[LoadedRun]) -> list[LoadedRun]:
    return [run for run in runs if run.record.model.preset == "linear"]


def of_folds(runs: Sequence[LoadedRun], model: str) -> list[Predictions]:
    return [read_predictions(run.folder, "test") for run in runs if run.record.model.preset == model]


def changed(run: LoadedRun, **values: Any) -> LoadedRun:
    return replace(run, record=run.record.model_copy(update=values))


def test_every_row_is_judged_by_a_model_that_was_not_shown_it(runs: list[LoadedRun], file: Path) -> None:
    every = Counter(row for part in of_folds(runs, "linear") for row in part.ids)
    assert len(every) == ROWS and set(every.values()) == {1}
    texts: dict[str, str] = {}
    for run in runs:
        splits = load_dataset(recorded_data(run.record)).splits  # type: ignore[arg-type]
        assert not set(splits["test"].texts) & set(splits["train"].texts)
        assert not set(splits["test"].texts) & set(splits["validation"].texts)
        texts |= dict(zip(splits["test"].ids, splits["test"].texts, strict=True))
    assert len(texts) == ROWS


@pytest.mark.parametrize("model", ["linear", "linear-tuned"])
def test_figures_are_those_of_all_folds_together(found: StudyResult, runs: list[LoadedRun], model: str) -> None:
    (table,) = found.content.tables
    score = next(each for each in table.models if each.label == model).scores["test"]
    parts = of_folds(runs, model)
    labels, said = (np.concatenate([getattr(part, name) for part in parts]) for name in ("labels", "predicted"))
    assert score.rows == len(labels) == ROWS
    assert score.figures["accuracy"].mean == pytest.approx(accuracy_score(labels, said))
    assert score.figures["f1"].mean == pytest.approx(f1_score(labels, said))
    assert score.confusion_matrix == confusion_matrix(labels, said).tolist()
    probabilities = np.concatenate([np.exp(log_softmax(part.logits.astype(np.float64))) for part in parts])
    assert score.figures["loss"].mean == pytest.approx(log_loss(labels, probabilities), rel=1e-6)


def test_models_are_held_against_each_other_on_all_rows(found: StudyResult, runs: list[LoadedRun]) -> None:
    (table,) = found.content.tables
    (test,) = table.tests
    right = {
        model: {row: ok for part in of_folds(runs, model) for row, ok in zip(part.ids, part.correct, strict=True)}
        for model in (test.a, test.b)
    }
    assert test.rows == ROWS and test.verdict != "untested"
    only = [right[test.a][row] and not right[test.b][row] for row in right[test.a]]
    other = [right[test.b][row] and not right[test.a][row] for row in right[test.a]]
    assert test.odds_ratio == pytest.approx((sum(only) + 0.5) / (sum(other) + 0.5))
    assert found.ships.startswith(
        "The same model, trained once more on 216 rows, including test rows; those judged here, one of each of 5 "
        "folds, had 168."
    )
    assert "5-fold cross-validation" in table.title and any("Cross-validation: 5 of 5" in note for note in table.notes)
    assert all(len(model.runs) == FOLDS and model.seeds == [0] for model in table.models)
    # The test texts of every fold are read again for the mistakes that are shown.
    assert table.recommended is not None and table.mistakes
    assert find_run(found.output).folder == found.best.folder


def test_what_more_labels_bring_is_the_mean_of_the_folds(found: StudyResult, runs: list[LoadedRun]) -> None:
    (table,) = found.content.tables
    curves = [run.record.learning_curve for run in runs if run.record.model.preset == "linear-tuned"]  # type: ignore[union-attr]
    assert table.learning_curve.rows == curves[0].rows
    # Folds of 48 rows each weigh alike.
    np.testing.assert_allclose(table.learning_curve.right, np.mean([curve.right for curve in curves], axis=0))
    low, high = table.learning_curve.last_gain
    widths = [curve.last_gain[1] - curve.last_gain[0] for curve in curves]
    assert high - low == pytest.approx(np.sqrt(np.square(widths).sum()) / FOLDS)
    assert (low + high) / 2 == pytest.approx(np.mean([curve.right[-1] - curve.right[-2] for curve in curves]))


@pytest.mark.slow
def test_a_second_seed_deals_the_rows_anew_and_judges_the_same_rows(file: Path) -> None:
    models = ["linear", str(write_tiny_model(file.parent / "tiny.yaml"))]
    output = file.parent / "repeated"
    found = recurra.compare(file, models=models, seeds=2, folds=2, protocol={"base": "tuned", "max_epochs": 1},
                            tokenizer="trained", output=output, quiet=True, final=False)  # fmt: skip
    assert found.ships.startswith("The model of one of 2 folds (the figures are of all folds), trained on ")
    (table,) = found.content.tables
    assert [(model.label, model.seeds, len(model.runs)) for model in table.models] == [
        ("linear", [0], 2),
        ("tiny", [0, 1], 4),
    ]
    (test,) = table.tests
    assert test.rows == ROWS and not test.reason
    dealt = [set(read_predictions(output / run.folder, "test").ids) for run in table.models[1].runs]
    assert dealt[0].isdisjoint(dealt[1]) and dealt[2].isdisjoint(dealt[3]) and dealt[0] not in (dealt[2], dealt[3])


def test_another_split_seed_is_another_cross_validation_and_lacking_folds_are_said(
    runs: list[LoadedRun], linear: list[LoadedRun]
) -> None:
    def dealt(run: LoadedRun, seed: int) -> LoadedRun:
        config = {**run.record.config, "data": {**run.record.config["data"], "split_seed": seed}}
        return changed(run, config=config)

    pooled = REPORTING.pooled([dealt(run, seed) for seed in (0, 1) for run in linear])
    assert [len(run.folds) for run in pooled] == [FOLDS, FOLDS]
    assert len({run.record.data.fingerprint for run in pooled}) == 2
    (table,) = summarise([run for run in runs if run is not linear[2]]).tables
    (test,) = table.tests
    assert "not evaluated on the same rows" in test.reason and any("4 of 5" in note for note in table.notes)


def test_an_audit_is_that_of_the_worst_fold_with_the_rows_of_all(linear: list[LoadedRun]) -> None:
    masks = [np.arange(len(read_predictions(run.folder, "test"))) < fold for fold, run in enumerate(linear)]

    def audited(fold: int, run: LoadedRun) -> LoadedRun:
        details = keep_rows(masks[fold])
        audit = leakage().model_copy(update={"value": 0.2 + fold / 100, "summary": str(fold), "details": details})
        passed = AuditResult(name="teacher", status="passed", summary="as it should be")
        return changed(run, audits=[audit, passed])

    (pooled,) = REPORTING.pooled([audited(fold, run) for fold, run in enumerate(linear)])
    leak, teacher = pooled.record.audits
    assert leak.value == pytest.approx(0.24) and leak.summary == "4 (fold 5, the worst of 5)"
    assert teacher.summary == "as it should be"
    (lacking,) = REPORTING.pooled([audited(fold, run) for fold, run in enumerate(linear) if fold != 2])
    assert lacking.record.audits[0].summary == "4 (fold 5, the worst of 4)"
    mask = kept_rows(leak, ROWS)
    assert mask is not None
    wanted = {row for fold, run in enumerate(linear) for row in read_predictions(run.folder, "test").ids[:fold]}
    assert {row for row, kept in zip(pooled.predictions("test").ids, mask, strict=True) if kept} == wanted


def test_what_the_form_alone_is_worth_is_that_of_all_folds(linear: list[LoadedRun]) -> None:
    def worth(*details: dict[str, float]) -> Any:
        audits = [
            AuditResult(name="shortcuts.format.test", status="passed", summary="", details=one) for one in details
        ]
        runs = [changed(run, audits=[audit]) for run, audit in zip(linear, audits, strict=True)]
        return summarise(runs).tables[0].form_accuracy

    assert worth(*({"accuracy": 0.5 + fold / 10} for fold in range(FOLDS))) == pytest.approx(0.7)
    assert worth({"accuracy": 0.5, "folds": 5}, *[{"accuracy": 0.5}] * (FOLDS - 1)) is None


def test_what_folds_measured_by_depth_is_that_of_all_rows(linear: list[LoadedRun]) -> None:
    taken = [{1: 40, 2: 8}, {1: 48}, {2: 48}, {1: 20, 3: 28}, {3: 48}]

    def measured(fold: int, run: LoadedRun) -> LoadedRun:
        metrics = run.record.metrics["test"]
        assert metrics.rows == ROWS / FOLDS
        metrics = metrics.model_copy(update={"exit_accuracy": {1: fold / 10, 2: 0.5}, "recurrences": taken[fold]})
        return changed(run, metrics={"test": metrics})

    by_depth = [measured(fold, run) for fold, run in enumerate(linear)]
    (pooled,) = REPORTING.pooled(by_depth)
    assert pooled.record.metrics["test"].exit_accuracy == pytest.approx({1: 0.2, 2: 0.5})
    assert pooled.record.metrics["test"].recurrences == {1: 108, 2: 56, 3: 76}
    (table,) = summarise(by_depth).tables
    tables = {each.key: each for each in REPORTING.tables(table)}
    assert tables["results"].rows[0]["Recurrences"] == f"{(108 + 2 * 56 + 3 * 76) / ROWS:.2f}"
    (exits,) = tables["exits"].rows
    assert (exits["After 1"], exits["After 2"]) == ("0.2000", "0.5000")
    # A record of an earlier version has neither: what some folds measured is nothing of all.
    (partly,) = REPORTING.pooled([*by_depth[1:], linear[0]])
    assert partly.record.metrics["test"].exit_accuracy is None and partly.record.metrics["test"].recurrences is None


def test_one_split_stays_where_it_was_asked_for_or_rows_are_many(tmp_path: Path) -> None:
    tiny, few, some, many = (str(write_reviews(tmp_path / f"{rows}.csv", rows=rows)) for rows in (6, 60, 300, 2_000))
    group = [(text, label, "one" if row < 40 else f"g{row}") for row, (text, label) in enumerate(review_rows(60))]
    grouped = str(write_csv(tmp_path / "grouped.csv", group, header=("text", "label", "author")))
    folded, longer = "60 rows are few", "300 rows of up to 512 tokens would take long"
    for keys, folds, *why in (
        ({"name": few}, FOLDS, folded, "--folds 1"),
        ({"name": few, "max_length": 512}, FOLDS, folded),
        ({"name": few, "fraction": 0.1}, FOLDS, folded),
        ({"name": few, "rows_per_label": 8}, FOLDS, folded),
        ({"name": some, "max_length": 512}, 1, longer, "--folds 5"),
        ({"name": some, "max_length": 128, "windows": 4}, 1, longer),
        ({"name": tiny}, 1, "one split, because these 6 rows cannot be split into 5 folds"),
        ({"name": grouped, "group_column": "author"}, 1, "one split, because a large group would leave a fold"),
        ({"name": many}, 1),
        ({"name": many, "fraction": 0.1}, 1),
        ({"name": many, "rows_per_label": 8}, 1),
        ({"name": few, "folds": 1}, 1),
        ({"name": few, "test": many}, 1),
        ({"name": "demo"}, 1),
    ):
        config = DataConfig.parse(keys)
        dealt, said = cross_validated(config, StudyData())
        assert all(part in said for part in why) and bool(said) == bool(why), keys
        assert len(dealt.every_fold) == folds and (folds > 1 or dealt == config), keys
    dealt, _ = cross_validated(DataConfig(name=few), StudyData())
    assert [each.part for each in dealt.every_fold] == [f"fold-{fold}-of-5" for fold in range(1, 6)]
    fitted, _ = cross_validated(DataConfig(name=some, max_length=512), StudyData(), trained=False)
    assert fitted.every_fold != [fitted]


def test_rows_with_several_labels_are_judged_once_each_by_the_thresholds_of_their_fold(tmp_path: Path) -> None:
    # Two labels that words tell, and a third by chance, so that no model is always right.
    rows = [
        (text, ";".join([label, *(["film"] if "film" in text else []), *(["odd"] if number % 7 == 0 else [])]))
        for number, (text, label) in enumerate(review_rows(120))
    ]
    file = write_csv(tmp_path / "tags.csv", rows)
    found = recurra.compare(file, models=["linear"], label_separator=";", output=tmp_path / "out", quiet=True)
    loaded, failed = load_runs([outcome.folder for outcome in found.outcomes])
    assert not failed and len(loaded) == FOLDS
    (table,) = found.content.tables
    (model,) = table.models
    assert table.title.endswith("5-fold cross-validation") and len(model.runs) == FOLDS
    said, truth, ids = [], [], []
    for run in loaded:
        record = run.record
        assert isinstance(record, MultiLabelRunRecord)
        part = read_predictions(run.folder, "test")
        scores = 1 / (1 + np.exp(-part.logits.astype(np.float64) / record.decision.temperature))
        said.append(scores >= np.array(record.decision.thresholds))
        truth.append(part.labels)
        ids += part.ids
    assert len(set(ids)) == len(ids) == len(rows)
    score = model.scores["test"]
    assert score.rows == len(rows)
    given, true = np.concatenate(said), np.concatenate(truth)
    assert score.figures["micro_f1"].mean == pytest.approx(f1_score(true, given, average="micro"))
    assert score.figures["macro_f1"].mean == pytest.approx(f1_score(true, given, average="macro", zero_division=0))
    assert score.figures["subset_accuracy"].mean == pytest.approx(accuracy_score(true, given))
    assert find_run(tmp_path / "out").folder == found.best.folder == tmp_path / "out" / "final"
