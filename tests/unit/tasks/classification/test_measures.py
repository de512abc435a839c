"""What a study may judge classifiers by: figures of scikit-learn, costs as a user writes them, and what follows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy.special import softmax
from sklearn.metrics import accuracy_score, average_precision_score, balanced_accuracy_score, f1_score

from factories import RunFactory
from recurra.core.errors import ConfigurationError, RunError
from recurra.core.progress import Reporter
from recurra.core.record import read_record
from recurra.deployment.decision import read_decision
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import read_predictions
from recurra.evaluation.significance import paired_bootstrap_by_class
from recurra.report.render import terminal_tables
from recurra.report.statistics import Rows, bootstrap_gap, scored_model
from recurra.study.spec import StudySpec
from recurra.study.status import check_measure, plan_with_cost
from recurra.tasks import questions
from recurra.tasks.classification.measures import (
    balanced_accuracy,
    bootstrap_matrix,
    by_class,
    by_cost,
    named_measure,
    usual_f1,
)
from recurra.tasks.classification.reporting import REPORTING
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.questions import Questions, check_costs, read_costs
from recurra.tasks.study_data import StudyData
from recurra.tasks.summary import TableSummary
from rendered import summarise_folders

NAMES = ("ham", "spam", "other")
COSTS = [[0.0, 1.0, 2.0], [5.0, 0.0, 0.5], [1.0, 3.0, 0.0]]
SMALL = {"train": 900, "validation": 300, "test": 400}
ALIKE = {"ham": {"ham": 0, "spam": 1}, "spam": {"ham": 1, "spam": 0}}


def expected(name: str, truth: np.ndarray, said: np.ndarray) -> float:
    kind, _, label = name.partition(":")
    if kind == "cost":
        return float(np.mean(np.array(COSTS)[truth, said]))
    if kind == "f1":
        return float(f1_score(truth, said, labels=[NAMES.index(label)], average="macro", zero_division=0))
    figures = {"accuracy": accuracy_score, "balanced_accuracy": balanced_accuracy_score}
    return float(figures[kind](truth, said) if kind in figures else f1_score(truth, said, average="macro"))


def confusion(truth: np.ndarray, said: np.ndarray) -> list[list[int]]:
    return np.bincount(truth * 3 + said, minlength=9).reshape(3, 3).tolist()


@pytest.mark.filterwarnings("ignore:y_pred contains classes:UserWarning", "ignore:A single label:UserWarning")
@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "macro_f1", "f1:spam", "cost"])
@given(rows=some.lists(some.tuples(some.integers(0, 2), some.integers(0, 2)), min_size=1, max_size=40))
def test_from_rows_and_from_the_matrix_it_is_the_figure_of_scikit_learn(name: str, rows: list[tuple[int, int]]) -> None:
    truth, said = (np.array(side) for side in zip(*rows, strict=True))
    measure = named_measure(name, NAMES, COSTS if name == "cost" else None)
    wanted = pytest.approx(expected(name, truth, said))
    assert Rows(b"", truth, said[None]).values(measure) == (wanted,)
    if name != "accuracy":
        metrics = type("Metrics", (), {"confusion_matrix": confusion(truth, said)})
        assert measure.read(metrics) == wanted


def test_intervals_and_tests_over_rows_are_those_of_resampled_rows() -> None:
    rng = np.random.default_rng(7)
    truth = rng.choice(3, 300, p=[0.7, 0.2, 0.1])
    good, bad = (np.where(rng.random(300) < share, truth, rng.integers(0, 3, 300)) for share in (0.8, 0.6))
    rows = [rng.integers(0, 300, 300) for _ in range(200)]
    for score, name in (
        (by_class(balanced_accuracy), "balanced_accuracy"),
        (by_class(usual_f1), "macro_f1"),
        (by_cost(COSTS), "cost"),
    ):
        drawn = [expected(name, truth[each], good[each]) for each in rows]
        found = bootstrap_matrix(confusion(truth, good), score)
        assert found == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.02)
        assert bootstrap_matrix([[0, 0], [0, 0]], score) is None
    of_good, of_bad = ([expected("balanced_accuracy", truth[r], side[r]) for r in rows] for side in (good, bad))
    gaps = np.subtract(of_good, of_bad)
    paired = paired_bootstrap_by_class(truth, good[None], bad[None], labels=3, score=balanced_accuracy)
    assert (paired.low, paired.high) == pytest.approx(tuple(np.quantile(gaps, [0.025, 0.975])), abs=0.02)


LOGITS = some.lists(
    some.tuples(some.integers(0, 2), *[some.integers(-8, 8)] * 3).map(lambda row: (row[0], np.array(row[1:]) / 4)),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("name", ["average_precision", "average_precision:spam"])
@given(rows=LOGITS)
def test_average_precision_of_rows_and_of_records_is_that_of_scikit_learn(
    name: str, rows: list[tuple[int, np.ndarray]]
) -> None:
    truth, logits = np.array([row[0] for row in rows]), np.stack([row[1] for row in rows]).astype(np.float32)
    shares = softmax(logits.astype(np.float64), axis=1)
    each = {label: average_precision_score(truth == label, shares[:, label]) for label in np.unique(truth)}
    wanted = float(np.mean(list(each.values()))) if name == "average_precision" else each.get(1, 0.0)
    measure = named_measure(name, NAMES)
    said = logits.argmax(axis=1)
    assert Rows(b"", truth, said[None], logits[None]).values(measure) == (pytest.approx(wanted),)
    assert measure.read(evaluate_logits(logits, truth)) == pytest.approx(wanted)


def test_intervals_of_average_precision_are_those_of_resampled_rows() -> None:
    rng = np.random.default_rng(3)
    truth = rng.choice(2, 400, p=[0.7, 0.3])
    sides = [np.stack([np.zeros(400), truth * gain + rng.normal(size=400)], axis=1) for gain in (2.0, 1.0)]
    good, bad = (Rows(b"", truth, truth[None], logits[None]) for logits in sides)
    measure = named_measure("average_precision:spam", ("ham", "spam"))
    samples = [rng.integers(0, 400, 400) for _ in range(400)]
    drawn = [[average_precision_score(truth[rows], logits[rows, 1]) for logits in sides] for rows in samples]
    gaps = np.subtract(*np.transpose(drawn))
    found = bootstrap_gap(good, bad, measure)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(gaps, [0.025, 0.975])), abs=0.02)
    alone = measure.over_rows(evaluate_logits(sides[0], truth))
    assert alone == pytest.approx(tuple(np.quantile(np.array(drawn)[:, 0], [0.025, 0.975])), abs=0.03)


@pytest.mark.parametrize("temperatures", [(2.5,), (0.3, 1.0, 4.0)])
def test_average_precision_of_a_run_and_of_folds_is_that_of_calibrated_probabilities(
    temperatures: tuple[float, ...], tmp_path: Path
) -> None:
    folds = [
        RunFactory(
            tmp_path / str(fold), rows={"train": 90, "test": 60}, seed=fold, label_names=NAMES, temperature=temperature,
            data_config={"folds": len(temperatures), "fold": fold},
        ).run("linear", 0.7)
        for fold, temperature in enumerate(temperatures)
    ]  # fmt: skip
    predictions = [read_predictions(folder, "test") for folder in folds]
    decisions = [read_decision(NAMES, read_record(folder).decision) for folder in folds]
    said = [decision.probabilities(part.logits) for decision, part in zip(decisions, predictions, strict=True)]
    raw = [softmax(part.logits.astype(np.float64), axis=1) for part in predictions]
    spam = np.concatenate([part.labels for part in predictions]) == 1
    wanted, other = (average_precision_score(spam, np.concatenate(scores)[:, 1]) for scores in (said, raw))
    assert wanted != pytest.approx(other, abs=0.001)
    (run,) = REPORTING.pooled([LoadedRun(folder, read_record(folder)) for folder in folds])
    measure = named_measure("average_precision:spam", NAMES)
    scored = scored_model("linear", [run], "test", REPORTING, measure=measure)
    assert scored.rows is not None
    assert scored.values == scored.rows.values(measure) == (pytest.approx(wanted),)


def one_table(folders: list[Path], **asked: Any) -> TableSummary:
    (found,) = summarise_folders(folders, questions=Questions(**asked)).tables
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    factory = RunFactory(tmp_path_factory.mktemp("runs"), rows={**SMALL, "test": 800}, label_names=("ham", "spam"))
    made = [factory.run("linear", 0.7), factory.run("recurrent", 0.72)]
    return [*made, *(factory.run("baseline", 0.85, seed=seed) for seed in (0, 1))]


def test_costs_of_one_a_mistake_say_what_accuracy_says(folders: list[Path]) -> None:
    by_accuracy, by_costs = one_table(folders), one_table(folders, measure="cost", costs=ALIKE)
    assert (by_accuracy.judged_by.key, by_costs.judged_by.key) == ("accuracy", "cost")
    for ours, theirs in zip(by_costs.tests, by_accuracy.tests, strict=True):
        assert (ours.a, ours.b, ours.verdict) == (theirs.a, theirs.b, theirs.verdict)
        assert ours.gap == pytest.approx(-theirs.gap)
        assert (ours.low, ours.high) == pytest.approx((-theirs.high, -theirs.low))
        assert ours.p_holm == pytest.approx(theirs.p_holm)
        assert ours.statement.split()[:2] == theirs.statement.split()[:2]
    assert any(test.supported for test in by_costs.tests)
    assert [model.fronts for model in by_costs.models] == [model.fronts for model in by_accuracy.models]
    assert by_costs.recommended.choice == by_accuracy.recommended.choice
    assert "baseline costs least" in by_costs.conclusion
    assert by_costs.conclusion.startswith("Models are judged by mean cost, as requested; always predicting '")


@pytest.mark.parametrize(
    ("kind", "heading"), [("f1", "F1 of 'ham'"), ("average_precision", "Average precision of 'ham'")]
)
def test_what_was_asked_for_has_a_column_and_decides(kind: str, heading: str, folders: list[Path]) -> None:
    summary = summarise_folders(folders, questions=Questions(measure=f"{kind}:ham"))
    (table,) = summary.tables
    found = read_predictions(folders[0], "test")
    wanted = f1_score(found.labels, found.predicted, pos_label=0)
    if kind == "average_precision":
        wanted = average_precision_score(found.labels == 0, softmax(found.logits.astype(np.float64), axis=1)[:, 0])
    linear = next(model for model in table.models if model.label == "linear")
    assert linear.scores["test"].figures[f"{kind}:ham"].mean == pytest.approx(wanted)
    named = heading if kind == "f1" else heading.lower()
    assert table.conclusion.startswith(f"Models are judged by {named}, as requested.")
    assert all(test.low < test.gap < test.high for test in table.tests)
    (_, first, _), *_ = terminal_tables(summary)
    assert heading in first.headings()


def test_records_without_a_measure_say_so(folders: list[Path]) -> None:
    metrics = read_record(folders[0]).metrics["test"].model_copy(update={"average_precision": None})
    with pytest.raises(RunError, match="has no mean average precision: an earlier version made it"):
        named_measure("average_precision", NAMES).of_run(metrics)


def test_who_costs_more_than_one_answer_for_all_is_no_classifier(tmp_path: Path) -> None:
    """At 90 % accuracy: spam that is missed costs fifty times what a false alarm does."""
    factory = RunFactory(tmp_path, rows=SMALL, label_names=("ham", "spam"), shares=(0.75, 0.25))
    folders = [factory.run("linear", 0.9), factory.run("recurrent", 0.9, only_says=[0])]
    costs = {"ham": {"ham": 0, "spam": 1}, "spam": {"ham": 50, "spam": 0}}
    table = one_table(folders, measure="cost", costs=costs)
    assert table.costs is not None
    matrix = np.asarray(read_record(folders[0]).metrics["test"].confusion_matrix)
    share = matrix.sum(axis=1)[0] / matrix.sum()
    linear = next(model for model in table.models if model.label == "linear")
    cost = linear.scores["test"].figures["cost"].mean
    assert cost == pytest.approx((matrix[0, 1] + 50 * matrix[1, 0]) / matrix.sum())
    assert f"{cost:.4f} a row, and always predicting 'spam' {share:.4f}" in table.conclusion
    assert table.recommended is None


def test_costs_are_read_from_csv_and_json_alike(tmp_path: Path) -> None:
    costs = {"a": {"a": 0.0, "b": 1.5}, "b": {"a": 20.0, "b": 0.0}}
    (tmp_path / "costs.json").write_text(json.dumps(costs), encoding="utf-8")
    (tmp_path / "costs.csv").write_text("true,b,a\na,1.5,0\nb, 0,20\n\n", encoding="utf-8")
    assert read_costs(tmp_path / "costs.json") == read_costs(tmp_path / "costs.csv") == costs
    # As spreadsheets write them.
    (tmp_path / "sheet.csv").write_text("\ntrue;b;a\na;1,5;0\nb; 0;20\n", encoding="utf-16")
    assert read_costs(tmp_path / "sheet.csv") == costs
    # A study keeps the costs themselves: the file may move.
    values = {"name": "x", "data": [{"name": "demo"}], "models": ["linear"]}
    spec = StudySpec.parse({**values, "measure": f"cost:{tmp_path / 'costs.csv'}"})
    (tmp_path / "costs.csv").unlink()
    again = StudySpec.parse(spec.plain()).questions
    assert (again.measure, again.costs) == ("cost", costs)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ("a,b", "have 0 true labels"),
        (";;", "have 0 true labels"),
        (",a,b\na,0,1\nb,2", "the row of 'b' has 1 costs for 2 labels"),
        (",a,b\na,0,1\na,1,0", "a label is given twice"),
        (",a,b\na,0,1\nc,1,0", "both must be the same"),
        (",a,b\na,0,-1\nb,1,0", "'a' predicted as 'b' costs '-1'; a number of at least 0"),
        ([1, 2], "'costs' are not a table of true by predicted labels"),
        ({"a": 1, "b": 2}, "not a table of true by predicted labels"),
        ({"a": {"a": False, "b": 1}, "b": {"a": 1, "b": 0}}, "'a' predicted as 'a' costs 'False'"),
        ({1: {1: 0, "1": 9, 2: 1}, 2: {1: 1, 2: 0}}, "give a label twice"),
    ],
)
def test_costs_that_cannot_be_used_are_refused_in_one_line(costs: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        if isinstance(costs, str):
            (tmp_path / "costs.csv").write_text(costs, encoding="utf-8")
            read_costs(tmp_path / "costs.csv")
        check_costs(costs, "'costs'")


def test_costs_are_read_up_to_a_limit_whatever_size_a_file_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "LARGEST_BYTES", 10)
    reading, writing = os.pipe()
    os.write(writing, b",a,b\na,0,1\nb,1,0\n")
    os.close(writing)
    with pytest.raises(ConfigurationError, match="more than 10 bytes"):
        read_costs(Path(f"/dev/fd/{reading}"))
    os.close(reading)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"measure": "f2"}, r"unknown measure 'f2'.*; allowed: accuracy, .*, average_precision:LABEL, cost:FILE"),
        ({"measure": "f1:neutral"}, "unknown label of the measure 'neutral'.*; allowed: 1790-1835, 1870-1910, 1945-"),
        ({"measure": "cost", "costs": ALIKE}, "are of the labels ham, spam, the data have 1790-1835, 1870-1910"),
        ({"measure": "cost"}, "the measure 'cost' needs the costs of mistakes; write cost:FILE"),
        ({"costs": ALIKE}, "'costs' is given without the measure that uses it"),
        ({"measure": "cost:no.csv"}, "cannot read the costs 'no.csv': No such file"),
    ],
)
def test_what_the_data_do_not_have_is_refused_before_anything_starts(
    values: dict, message: str, tmp_path: Path
) -> None:
    given = {"name": "x", "data": [{"name": "demo"}], "models": ["linear"], **values}
    with pytest.raises(ConfigurationError, match=message):
        check_measure(StudySpec.parse(given), StudyData())
    with pytest.raises(ConfigurationError, match=message):
        plan_with_cost(StudySpec.parse(given), tmp_path, StudyData(), reporter=Reporter(quiet=True))
