"""Grouping, intervals and tests of runs, against figures computed here from the predictions themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docs.site.results import study_page
from hypothesis import given
from hypothesis import strategies as some
from scipy import stats
from sklearn.metrics import f1_score

from factories import RunFactory, invariance, leakage, seen, skipped, study_latency
from recurra.cli.main import main
from recurra.core.record import AuditResult, read_record, write_record
from recurra.evaluation.audits.grading import grade, keep_rows
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import read_predictions, write_predictions
from recurra.report.summary import load_runs, pareto_front, read_latency_file, reporting_of, summarise
from recurra.study.spec import StudySpec
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.measures import StudyLatency
from recurra.tasks.questions import Limits, Questions
from recurra.tasks.summary import AuditLine, TableSummary
from rendered import summarise_folders, summarise_runs
from reviews import Command

SMALL = {"train": 900, "validation": 300, "test": 400}


@pytest.fixture
def factory(tmp_path: Path) -> RunFactory:
    return RunFactory(tmp_path, rows=SMALL)


def one_table(folders: Sequence[Path], latency: StudyLatency | None = None, **asked: Any) -> dict[str, Any]:
    (table,) = summarise_runs(folders, latency, **asked)["tables"]
    return dict(table)


def model(table: dict[str, Any], label: str) -> dict[str, Any]:
    return next(item for item in table["models"] if item["label"] == label)


def pair(table: dict[str, Any], first: str, second: str) -> dict[str, Any]:
    return next(item for item in table["tests"] if {item["a"], item["b"]} == {first, second})


def test_accuracy_over_seeds_has_the_t_interval(factory: RunFactory) -> None:
    folders = {seed: factory.run("recurrent", 0.8, seed=seed) for seed in (4, 0, 7)}
    values = [read_predictions(folders[seed], "test").correct.mean() for seed in (0, 4, 7)]
    found = model(one_table([*folders.values()]), "recurrent")
    accuracy = found["scores"]["test"]["accuracy"]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert found["seeds"] == [0, 4, 7]
    assert accuracy["values"] == pytest.approx(values)
    assert accuracy["mean"] == pytest.approx(np.mean(values))
    assert accuracy["sd"] == pytest.approx(np.std(values, ddof=1))
    assert (accuracy["low"], accuracy["high"]) == (pytest.approx(low), pytest.approx(high))
    assert accuracy["basis"] == "seeds"


def test_one_seed_and_seeds_that_change_nothing_have_the_interval_over_examples(factory: RunFactory) -> None:
    table = one_table([factory.run("recurrent", 0.8), *(factory.run("linear", 0.8, seed=seed) for seed in range(3))])
    accuracy = model(table, "recurrent")["scores"]["test"]["accuracy"]
    wilson = stats.binomtest(round(accuracy["mean"] * 400), 400).proportion_ci(0.95, method="wilson")
    assert (accuracy["basis"], accuracy["sd"]) == ("examples", None)
    assert (accuracy["low"], accuracy["high"]) == (pytest.approx(wilson.low), pytest.approx(wilson.high))
    assert "With one seed" in table["conclusion"]
    for figure in ("accuracy", "f1"):
        estimate = model(table, "linear")["scores"]["test"][figure]
        assert estimate["basis"] == "examples" and estimate["high"] - estimate["low"] > 0.02


def test_only_like_is_compared_with_like(tmp_path: Path) -> None:
    tail = {"length_tail": "longest", "tail_fraction": 0.1}
    parts: list[dict[str, Any]] = [{"fraction": 0.1}, {**tail, "tail_fraction": 0.3}, tail]
    parts += [{**tail, "whole_test": True}, {"split_seed": 2}]
    others: list[dict[str, Any]] = [{}, {"protocol": "pooled"}, {"training": "tuned"}, {"precision": "bf16"}]
    for place, part in enumerate(parts, start=1):
        others.append({"rows": {**SMALL, "train": 900 + place}, "data_config": part, "seed": place})
    factories = [RunFactory(tmp_path / str(place), **{"rows": SMALL, **values}) for place, values in enumerate(others)]
    tables = summarise_runs([factory.run("recurrent", 0.8) for factory in factories])["tables"]
    assert len(tables) == len({table["title"] for table in tables}) == len(others)
    assert [len(table["models"]) for table in tables] == [1] * len(others)
    assert not any("· data " in table["title"] for table in tables)
    assert any("0.1 of train" in table["title"] for table in tables)


def test_a_linear_model_stands_in_every_table_of_its_data_alone(tmp_path: Path) -> None:
    paper, tuned = RunFactory(tmp_path / "1", rows=SMALL), RunFactory(tmp_path / "2", rows=SMALL, training="tuned")
    other = RunFactory(tmp_path / "3", rows=SMALL, protocol="pooled")
    folders = [paper.run("linear"), paper.run("recurrent"), tuned.run("recurrent"), other.run("recurrent")]
    tables = {(table["protocol"], table["training"]): table for table in summarise_runs(folders)["tables"]}
    assert {key: [item["label"] for item in table["models"]] for key, table in tables.items()} == {
        ("official", "paper"): ["linear", "recurrent"],
        ("official", "tuned"): ["linear", "recurrent"],
        ("pooled", "paper"): ["recurrent"],
    }


def test_other_settings_are_another_model_a_seed_is_not_and_of_one_run_twice_the_latest_counts(
    factory: RunFactory,
) -> None:
    folders = [factory.run("recurrent", seed=seed, run_id=str(seed)) for seed in (0, 1)]
    other = factory.run("recurrent", seed=0, run_id="c", settings={"alpha": 0.25})
    table = one_table([*folders, other])
    assert sorted(item["seeds"] for item in table["models"]) == [[0], [0, 1]]
    assert len({item["label"] for item in table["models"]}) == 2
    assert "more than one set of settings" in " ".join(table["warnings"])
    early = factory.run("recurrent", 0.6, run_id="early", created="2026-11-19T00:00:00+00:00")
    for order in ([folders[0], early], [early, folders[0]]):
        table = one_table(order)
        assert [run["run_id"] for run in table["models"][0]["runs"]] == ["0"]
        assert "more than once" in table["warnings"][0]


def test_models_that_no_processor_trained_both_are_told(factory: RunFactory) -> None:
    runs, _ = load_runs(
        [factory.run(name, seed=seed) for name in ("baseline", "recurrent", "linear") for seed in (0, 1)]
    )

    def told(places: str) -> str:
        of_runs = []
        for run, place in zip(runs, places, strict=True):
            environment = run.record.environment.model_copy(update={"cpu": place})
            of_runs.append(replace(run, record=run.record.model_copy(update={"environment": environment})))
        return " ".join(summarise(of_runs).tables[0].warnings)

    assert "baseline on A; recurrent on B" in told("AABBAA")
    # One seed on either is enough, and a linear model is the same everywhere.
    assert "processors" not in told("ABBBCC")


def test_a_clear_difference_is_supported_and_a_small_one_is_not(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path)
    folders = [
        factory.run(name, accuracy, seed=seed)
        for name, accuracy in (("linear", 0.80), ("baseline", 0.905), ("recurrent", 0.90))
        for seed in range(3)
    ]
    table = one_table(folders)
    clear, small = pair(table, "linear", "baseline"), pair(table, "baseline", "recurrent")
    assert clear["verdict"] == "distinguishable" and clear["high"] < 0 and clear["seeds_apart"] is True
    assert "points below baseline on test" in clear["statement"]
    assert small["verdict"] == "not distinguishable"
    assert "Behind it, beyond chance: linear" in table["conclusion"]
    assert "No difference from it is supported" in table["conclusion"]
    assert [item["choice"] for item in table["advice"][:2]] == ["recurrent", "yes, for accuracy"]
    assert "within a point of the best, certain at 95 %" in table["advice"][0]["why"]


def test_nothing_is_certain_that_another_seed_may_undo(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows={**SMALL, "test": 8000})
    reached = {"baseline": (0.897, 0.907, 0.912), "recurrent": (0.910, 0.896, 0.906)}
    table = one_table(
        [factory.run(name, value, seed=seed) for name in reached for seed, value in enumerate(reached[name])]
    )
    (test,) = table["tests"]
    assert -0.01 < min(test["low"], -test["high"]) < 0 and test["half"] > 0.01
    assert "within a point of the best, not certain at 95 %" in table["advice"][0]["why"]


def test_models_without_predictions_or_with_other_rows_are_not_tested(factory: RunFactory, tmp_path: Path) -> None:
    def reason(*folders: Path) -> str:
        (test,) = one_table(folders)["tests"]
        assert (test["p"], test["verdict"]) == (None, "untested")
        return str(test["reason"])

    first, second = factory.run("baseline", 0.9), factory.run("recurrent", 0.7, predictions=["validation"])
    assert "not on disk" in reason(first, second)
    other = RunFactory(tmp_path / "other", rows=SMALL, seed=9).run("recurrent")
    (second / "predictions" / "test.parquet").write_bytes((other / "predictions" / "test.parquet").read_bytes())
    assert "same rows" in reason(first, second)
    (second / "predictions" / "test.parquet").write_bytes(b"PAR1 no")
    assert "not on disk" in reason(first, second)
    again = factory.run("baseline", seed=1)
    rows = read_predictions(again, "test")
    write_predictions(again, "test", rows.ids[::-1], rows.labels, rows.logits)
    said = reason(first, second, again, factory.run("recurrent", seed=1))
    assert said == "the seeds of baseline were not evaluated on the same rows of the test split"


@pytest.mark.parametrize("third", [["baseline"], ["baseline", "recurrent"]])
def test_a_seed_without_predictions_keeps_no_other_seed_from_being_tested(
    third: list[str], factory: RunFactory
) -> None:
    whole = [factory.run(name, seed=seed) for name in ("baseline", "recurrent") for seed in (0, 1)]
    (expected,) = one_table(whole)["tests"]
    lost = {"baseline": ["validation"]}
    more = [factory.run(name, seed=2, predictions=lost.get(name)) for name in third]
    (test,) = one_table([*whole, *more])["tests"]
    assert test["seeds"] == 2 and test["p"] is not None
    for part in ("gap", "low", "high", "p", "odds_ratio"):
        assert test[part] == expected[part]


def test_study_latency_is_preferred_and_mixtures_are_named(factory: RunFactory) -> None:
    folders = [factory.run("baseline"), factory.run("recurrent")]
    latency = study_latency(folders, factor=2.0)
    table = one_table(folders, latency)
    assert model(table, "recurrent")["latency"]["1"]["median_ms"] == pytest.approx(14.0)
    assert model(table, "recurrent")["timed"] == "side by side"
    assert table["warnings"] == []
    del latency.runs[folders[0].name]  # type: ignore[attr-defined]
    assert "do not compare" in " ".join(one_table(folders, latency)["warnings"])
    before = study_latency(folders).model_copy(update={"earlier": [folders[0].name]})
    mixed = one_table(folders, before)
    assert [model(mixed, name)["timed"] for name in ("baseline", "recurrent")] == ["earlier", "side by side"]
    assert "some before their records were packed: do not compare" in " ".join(mixed["warnings"])
    own = one_table(folders)
    assert model(own, "recurrent")["latency"]["1"]["median_ms"] == pytest.approx(7.0)
    assert "own run" in " ".join(own["warnings"])


def test_timings_are_to_be_deleted_only_where_they_lie(factory: RunFactory, tmp_path: Path) -> None:
    folders = [factory.run("baseline")]
    latency = study_latency(folders).model_copy(update={"waited": 0.5})
    (packed,) = summarise_folders(folders, latency, base=tmp_path).warnings
    assert packed.startswith("Other programs used the processors 50%") and packed.endswith("milliseconds are too high.")
    (tmp_path / "latency.json").write_text(latency.model_dump_json(), encoding="utf-8")
    (here,) = summarise_folders(folders, latency, base=tmp_path).warnings
    assert here.startswith(f"{packed} Delete latency.json and start the same command again")


def test_a_damaged_latency_file_counts_as_none(tmp_path: Path) -> None:
    assert read_latency_file(tmp_path) is None
    for content in ("{", '{"runs": {"x": {"batch_1": {"median_ms": 1}}}}', '{"waited": "x"}'):
        (tmp_path / "latency.json").write_text(content, encoding="utf-8")
        assert read_latency_file(tmp_path) is None
    (tmp_path / "latency.json").write_text('{"runs": {"x": {}}}', encoding="utf-8")
    assert read_latency_file(tmp_path) == StudyLatency(runs={"x": {}})


def test_audits_are_told_once_failed_first_with_whom_they_concern(factory: RunFactory) -> None:
    data = [leakage("test"), skipped()]
    folders = [
        factory.run("linear", audits=data),
        factory.run("baseline", audits=[*data, invariance()]),
        factory.run("recurrent", seed=0, audits=[*data, invariance()]),
        factory.run("recurrent", seed=1, audits=[*data, invariance(failed=True)]),
    ]
    table = one_table(folders)
    assert [(line["name"], line["status"], line["concerns"]) for line in table["audits"]] == [
        ("leakage.contained.test", "failed", "every run"),
        ("invariance.padding", "failed", "recurrent (seed 1)"),
        ("leakage.source.test", "skipped", "every run"),
        ("invariance.padding", "passed", "baseline; recurrent (seed 0)"),
    ]
    assert table["audits"][0]["group"] == "leakage on test" and "the film" in table["audits"][0]["example"]
    assert all(bool(line["meaning"]) == (line["status"] == "failed") for line in table["audits"])
    assert "too good for every model" in table["conclusion"]
    assert model(table, "recurrent")["failed_groups"] == ["leakage on test", "invariance padding"]
    elsewhere = one_table([factory.run("recurrent", seed=2, audits=[leakage("validation")])])["conclusion"]
    assert "failed on validation, not on test" in elsewhere and "too good" not in elsewhere


def test_a_better_and_cheaper_linear_model_is_recommended(factory: RunFactory) -> None:
    folders = [factory.run("linear", 0.92), factory.run("baseline", 0.80), factory.run("recurrent", 0.79)]
    recommended, needed = one_table(folders)["advice"]
    assert recommended["choice"] == "linear" and "the best and the smallest" in recommended["why"]
    assert needed["choice"] == "no: take linear" and "is better than every Transformer here" in needed["why"]


def test_what_is_recommended_stays_within_the_limits(factory: RunFactory) -> None:
    folders = [factory.run("linear", 0.70), factory.run("baseline", 0.92), factory.run("recurrent", 0.88)]

    def recommended(**limits: float) -> dict[str, Any]:
        found = one_table(folders, questions=Questions(limits=Limits(**limits)))["advice"][0]
        assert found["priority"] == "Recommended"
        return dict(found)

    assert recommended()["choice"] == "baseline"
    small = recommended(max_mib=60)
    assert small["choice"] == "recurrent"
    assert small["why"].startswith("within 60 MiB (2 of 3 models): the best: ")
    assert "The best model beyond them is baseline: +" in small["why"]
    assert recommended(max_ms=0.5, max_mib=60)["choice"] == "linear"
    nothing = recommended(max_mib=0.01)
    assert nothing["choice"] is None
    assert "no model here stays within 0.01 MiB; the nearest is linear with" in nothing["why"]


def test_unequal_classes_are_judged_by_macro_f1_and_one_answer_never_wins(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows={**SMALL, "test": 800}, label_names=("ham", "spam"), shares=(0.9, 0.1))
    folders = [factory.run("linear", 0.88), factory.run("recurrent", 0.90)]
    folders += [factory.run("baseline", 0.99, seed=seed, only_says=[0]) for seed in (0, 1)]
    summary = summarise_folders(folders)
    table, (plain_table,) = one_table(folders), summary.tables
    assert table["judged_by"] == "macro_f1"
    assert "| Accuracy | Macro F1 |" in study_page(summary, "results/x")
    silent = model(table, "baseline")
    assert silent["scores"]["test"]["accuracy"]["mean"] == pytest.approx(0.9, abs=0.03)
    assert silent["barred"] == "it predicts 'ham' for every text of test"
    assert "baseline does not work as a classifier: it predicts 'ham' for every text of test." in table["conclusion"]
    assert "judged by macro F1, not by accuracy" in table["conclusion"]
    assert "baseline" not in {item["choice"] for item in table["advice"]}
    assert dict(table["advice"][0]["details"])["What you give up"] == "No macro F1."
    assert "both cheaper and better by macro F1" in reporting_of("classification").tables(plain_table)[0].note
    expected = []
    for folder in folders[:2]:
        found = read_predictions(folder, "test")
        expected.append(f1_score(found.labels, found.logits.argmax(axis=1), average="macro"))
    assert [model(table, name)["scores"]["test"]["macro_f1"]["mean"] for name in ("linear", "recurrent")] == expected
    (test,) = table["tests"]
    assert {test["a"], test["b"]} == {"linear", "recurrent"}
    assert test["gap"] == pytest.approx(expected[0] - expected[1])
    assert test["low"] < test["gap"] < test["high"]


def test_what_nobody_needs_to_read_for_stands_in_every_conclusion(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL, label_names=("a", "b"), shares=(0.6, 0.4))
    form = AuditResult(name="shortcuts.format.test", status="passed", summary="", details={"accuracy": 0.6171})
    folders = [factory.run("linear", 0.8, audits=[form]), factory.run("recurrent", 0.95, audits=[form])]
    table = one_table(folders)
    counts = np.sum(read_record(folders[0]).metrics["test"].confusion_matrix, axis=1)
    wanted = f"always giving the most frequent label is right on {100 * max(counts) / sum(counts):.1f} %"
    both = f"{wanted}, length and punctuation alone on 61.7 %."
    assert f"For comparison, without reading the texts: {both}" in table["conclusion"]
    assert dict(table["advice"][0]["details"])["How good"].endswith(both)
    alone = one_table([factory.run("linear", 0.8, seed=5)])
    assert f"For comparison, without reading the texts: {wanted}." in alone["conclusion"]


def test_who_ignores_a_class_or_gains_nothing_is_named_and_not_recommended_unless_it_ranks(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL, label_names=("a", "b", "c"))
    folders = [factory.run("linear", 0.7), factory.run("recurrent", 0.95, only_says=[0, 1])]
    folders.append(factory.run("baseline", 0.2))
    table = one_table(folders)
    assert table["judged_by"] == "accuracy"
    assert "recurrent does not work as a classifier: it never predicts 'c'." in table["conclusion"]
    assert "and always giving one answer on" in table["conclusion"]
    assert "linear scores highest" in table["conclusion"]
    assert [item["choice"] for item in table["advice"]] == ["linear"]
    silent = [factory.run("linear", 0.7, seed=1, only_says=[0]), folders[1]]
    by_answers, by_rank = (
        one_table(silent, questions=Questions(measure=name)) for name in ("accuracy", "average_precision")
    )
    assert "linear does not work" in by_answers["conclusion"] and by_answers["tests"] == []
    assert "does not work" not in by_rank["conclusion"] and len(by_rank["tests"]) == 1
    assert by_rank["advice"][0]["choice"]


def test_of_many_labels_a_few_that_are_never_said_bar_nobody(tmp_path: Path) -> None:
    names = tuple(f"label {number:02}" for number in range(40))
    factory = RunFactory(tmp_path, rows=dict.fromkeys(SMALL, 400), label_names=names)
    folders = [factory.run("linear", 0.5), factory.run("recurrent", 0.9, only_says=range(38))]
    folders.append(factory.run("baseline", 0.9, only_says=range(34)))
    table = one_table(folders)
    assert "recurrent scores highest" in table["conclusion"]
    assert "recurrent never predicts 'label 38' and 'label 39'." in table["conclusion"]
    assert (
        "baseline does not work as a classifier: it never predicts "
        "'label 34', 'label 35' and 'label 36' and 3 more classes." in table["conclusion"]
    )
    assert table["advice"][0]["choice"] == "recurrent"


def test_a_class_is_ignored_by_the_rows_of_all_folds_together(tmp_path: Path) -> None:
    folders = []
    for fold in range(3):
        factory = RunFactory(
            tmp_path / str(fold), rows={"train": 90, "test": 12}, seed=fold, label_names=("a", "b", "c"),
            data_config={"folds": 3, "fold": fold},
        )  # fmt: skip
        folders += [factory.run("linear", 0.9), factory.run("recurrent", 0.9, only_says=[0, 1])]
    table = one_table(folders)
    assert 5 <= sum(model(table, "recurrent")["scores"]["test"]["confusion_matrix"][2]) < 15
    assert "recurrent does not work as a classifier: it never predicts 'c'." in table["conclusion"]


@pytest.mark.parametrize(
    ("rows", "said"), [(20, "20 test rows are too few to choose a model: one row is worth 5"), (50, "")]
)
def test_a_handful_of_test_rows_is_called_that(tmp_path: Path, rows: int, said: str) -> None:
    factory = RunFactory(tmp_path, rows={"train": 400, "validation": 300, "test": rows})
    conclusion = one_table([factory.run("linear", 0.7), factory.run("recurrent", 0.95)])["conclusion"]
    assert ("too few to choose a model" in conclusion) == bool(said) and said in conclusion


def test_one_model_that_was_not_tested_hides_no_difference(factory: RunFactory) -> None:
    folders = [factory.run("linear", 0.7), factory.run("recurrent", 0.95), factory.run("baseline", 0.8, predictions=[])]
    needed = one_table(folders)["advice"][1]
    assert needed["choice"] == "yes, for accuracy" and "Better than linear: recurrent by" in needed["why"]
    folders[1] = factory.run("recurrent", 0.7, seed=1)
    needed = one_table(folders)["advice"][1]
    assert needed["choice"] == "untested" and needed["why"].endswith("; not tested: baseline.")


def test_headline_is_a_split_that_chose_no_checkpoint(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows={"train": 900, "held_out": 200, "validation": 300})
    assert one_table([factory.run("recurrent")])["headline_split"] == "validation"


def test_runs_without_a_record_are_listed_and_nothing_else_breaks(factory: RunFactory, tmp_path: Path) -> None:
    good = factory.run("recurrent")
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    for folder in (empty, broken):
        folder.mkdir()
    (broken / "record.json").write_text("{", encoding="utf-8")
    summary = summarise_runs([empty, good, broken], failures={"gone": "the worker\ndied"}, base=tmp_path)
    reasons = {item["run_id"]: item["reason"] for item in summary["failed_runs"]}
    assert set(reasons) == {"empty", "broken", "gone"}
    assert "not a finished run" in reasons["empty"] and reasons["gone"] == "the worker died"
    (table,) = summary["tables"]
    # Folders inside the output are told relative to it.
    assert table["models"][0]["runs"][0]["folder"] == good.name


def test_summary_is_plain_json_and_does_not_depend_on_the_order_of_runs(factory: RunFactory) -> None:
    folders = [factory.run(name, seed=seed) for name in ("linear", "recurrent", "baseline") for seed in (0, 1)]
    summary = summarise_runs(folders)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summarise_runs(folders[::-1])["tables"] == summary["tables"]
    sizes = [item["parameters"] for item in summary["tables"][0]["models"][1:]]
    assert all(first >= second for first, second in pairwise(sizes))


def test_a_figure_that_is_only_measured_is_a_line_a_model_with_its_mean_over_seeds(factory: RunFactory) -> None:
    folders = [factory.run("linear", audits=[seen(0.2)])]
    folders += [factory.run("recurrent", seed=seed, audits=[seen(0.1 * seed)]) for seed in (1, 3)]
    table = one_table(folders)
    lines = {line["concerns"]: line for line in table["audits"]}
    assert {(line["status"], line["meaning"]) for line in table["audits"]} == {("measured", "")}
    assert set(lines) == {"linear", "recurrent"} and lines["linear"]["summary"] == seen(0.2).summary
    assert lines["recurrent"]["value"] == pytest.approx(0.2)
    assert "mean +0.200 (+0.100 to +0.300); at equal length +0.100" in lines["recurrent"]["summary"]
    assert "accuracy 0.800 on the 40 rows" in lines["recurrent"]["summary"]
    assert not table["models"][0]["failed_audits"]


def with_neutral(folders: list[Path]) -> list[LoadedRun]:
    """Runs with a third label, which no test row has."""
    runs, _ = load_runs(folders)
    for run in runs:
        metrics = run.record.metrics["test"]
        matrix = [[*row, 0] for row in metrics.confusion_matrix] + [[0, 0, 0]]
        run.record.metrics["test"] = metrics.model_copy(update={"confusion_matrix": matrix})
        run.record.data.label_names.append("neutral")
    return runs


def test_a_class_without_a_test_row_is_untested_and_no_measure_of_verdicts(factory: RunFactory) -> None:
    runs = with_neutral([factory.run(name, accuracy) for name, accuracy in (("linear", 0.8), ("recurrent", 0.9))])
    assert "Labels without a test row: neutral." in summarise(runs).tables[0].conclusion
    (table,) = summarise(runs, questions=Questions(measure="f1:neutral")).tables
    assert table.conclusion.startswith("No test row has the label 'neutral': ")
    assert "there is no verdict" in table.conclusion
    assert table.recommended is None and "scores highest" not in table.conclusion


def test_rows_of_one_class_give_no_verdict_on_any_model(factory: RunFactory) -> None:
    folders = [factory.run(name, accuracy) for name, accuracy in (("linear", 0.8), ("recurrent", 0.9))]
    runs, _ = load_runs(folders)
    for run in runs:
        metrics = run.record.metrics["test"]
        right = sum(metrics.confusion_matrix[1])
        of_one = metrics.model_copy(update={"confusion_matrix": [[0, 0], [0, right]], "rows": right, "accuracy": 1.0})
        run.record.metrics["test"] = of_one
    (table,) = summarise(runs).tables
    assert "they cannot show whether a model knows the other classes, so there is no verdict" in table.conclusion
    assert "does not work" not in table.conclusion and "scores highest" not in table.conclusion
    assert table.tests == [] and table.recommended is None
    assert all(model.fronts == [] for model in table.models)


# Few different values, so that ties are common.
VALUES = some.lists(some.tuples(some.integers(0, 4), some.integers(0, 4)), max_size=9)


@given(VALUES)
def test_the_front_holds_exactly_what_nothing_dominates(values: list[tuple[int, int]]) -> None:
    merit, cost = ({f"m{index}": float(value[part]) for index, value in enumerate(values)} for part in (0, 1))

    def dominated(name: str) -> bool:
        return any(
            merit[other] >= merit[name]
            and cost[other] <= cost[name]
            and (merit[other] > merit[name] or cost[other] < cost[name])
            for other in merit
        )

    front = pareto_front(merit, cost)
    assert sorted(front) == sorted(name for name in merit if not dominated(name))
    assert [cost[name] for name in front] == sorted(cost[name] for name in front)


# Whether rows that also stand in the training rows decide a comparison.

COPIES = np.arange(600) < 40
# What the leakage audit says before it is graded.
FINDING = AuditResult(
    name="leakage.exact.test",
    status="failed",
    summary="6.67% of rows (40 of 600): the text is a training text; allowed: 1%",
    value=40 / 600,
    threshold=0.01,
    details={"examples": [{"id": "0", "text": "a film", "train_text": "a film"}], **keep_rows(COPIES)},
)


@pytest.fixture
def larger(tmp_path: Path) -> RunFactory:
    return RunFactory(tmp_path / "runs", rows={"train": 900, "validation": 300, "test": 600})


def run(factory: RunFactory, model: str, rest: float, on_copies: float, *, sure: int | None = None) -> Path:
    """A run that is right on a share of the fresh rows and on a share of the copies, graded by that.

    Rows of the label ``sure`` are right whatever the shares.
    """
    folder = factory.run(model)
    kept = read_predictions(folder, "test")
    # The easiest rows of all models are the same.
    right = np.concatenate([np.arange(40) < 40 * on_copies, np.arange(560) < 560 * rest]) | (kept.labels == sure)
    said = np.where(right, kept.labels, 1 - kept.labels)
    logits = np.eye(2, dtype=np.float32)[said] * 3
    write_predictions(folder, "test", kept.ids, kept.labels, logits)
    record = read_record(folder)
    metrics = {**record.metrics, "test": evaluate_logits(logits, kept.labels)}
    audits = grade([FINDING], {"test": right}, model)
    write_record(folder, record.model_copy(update={"metrics": metrics, "audits": audits}))
    return folder


def judged(folders: list[Path], **asked: Any) -> tuple[TableSummary, AuditLine]:
    (table,) = summarise_folders(folders, **asked).tables
    (line,) = [each for each in table.audits if each.status in ("note", "failed")]
    return table, line


def test_copies_that_change_no_verdict_are_a_note(larger: RunFactory, tmp_path: Path) -> None:
    table, found = judged([run(larger, "linear", 0.7, 0.8), run(larger, "recurrent", 0.8, 0.9)])
    assert (found.status, found.concerns) == ("note", "every run")
    assert "without these rows the verdict is the same" in found.summary and "inside the interval" in found.summary
    assert not table.failed_groups and all(not model.failed_audits for model in table.models)
    assert "Notes of the audits, not failures: leakage on test." in table.conclusion
    assert main(["audit", "study", str(tmp_path)]) == 0


def test_copies_that_make_the_difference_fail_for_every_model(
    larger: RunFactory, tmp_path: Path, command: Command
) -> None:
    # Ahead on the copies alone; neither figure leaves its own interval without them.
    folders = [run(larger, "linear", 0.8, 0.55), run(larger, "recurrent", 0.8, 1.0)]
    records = [read_record(folder) for folder in folders]
    assert {audit.status for record in records for audit in record.audits} == {"note"}
    table, found = judged(folders)
    assert found.status == "failed" and "recurrent is no longer shown to be better" in found.summary
    assert found.meaning.startswith("Rows of this split are also")
    assert all(model.failed_groups == ["leakage on test"] for model in table.models)
    audits = command("audit", "study", tmp_path, "--json", code=3).json["audits"]
    assert [(each["status"], each["concerns"]) for each in audits] == [("failed", "every run")]
    # Rows that a teacher knew fail for its student alone.
    known = [records[1].audits[0].model_copy(update={"name": "teacher.exact.test"})]
    for folder, record, own in zip(folders, records, ([], known), strict=True):
        write_record(folder, record.model_copy(update={"audits": own}))
    table, _ = judged(folders)
    failed = {model.label: model.failed_audits for model in table.models}
    assert failed == {"linear": [], "recurrent": ["teacher.exact.test"]}
    assert table.recommended is not None and table.recommended.choice == "linear"


def test_a_leak_is_judged_by_what_the_study_is_judged_by(larger: RunFactory, tmp_path: Path) -> None:
    # Ahead on the copies alone, in rows whose mistakes cost nothing.
    folders = [run(larger, "linear", 0.6, 0.0, sure=1), run(larger, "recurrent", 0.6, 1.0, sure=1)]
    assert judged(folders)[1].status == "failed" and main(["audit", "study", str(tmp_path)]) == 3
    study: dict[str, Any] = {"name": "cheap", "data": [{"name": "sst2"}], "models": ["linear", "recurrent"]}
    study["costs"] = {"negative": {"negative": 0, "positive": 0}, "positive": {"negative": 1, "positive": 0}}
    study["measure"] = "cost"
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    assert judged(folders, questions=StudySpec.parse(study).questions)[1].status == "note"
    assert main(["audit", "study", str(tmp_path)]) == 0


def test_the_first_place_among_equals_one_model_and_lost_predictions_are_no_verdict(larger: RunFactory) -> None:
    folders = [run(larger, "linear", 0.8, 0.9)]
    assert "verdict" not in judged(folders)[1].summary
    folders.append(run(larger, "recurrent", 0.802, 0.85))
    found = judged(folders)[1]
    assert found.status == "note" and "recurrent instead of linear scores highest" in found.summary
    folders = [run(larger, "linear", 0.8, 0.55), run(larger, "recurrent", 0.8, 1.0)]
    (folders[0] / "predictions" / "test.parquet").unlink()
    found = judged(folders)[1]
    assert found.status == "note" and "verdict" not in found.summary
