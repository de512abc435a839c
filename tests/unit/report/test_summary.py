"""Grouping, intervals and tests of runs, against figures computed here from the predictions themselves."""

from __future__ import annotations

import json
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
from recurra.core.record import AuditResult, read_record
from recurra.evaluation.predictions import read_predictions, write_predictions
from recurra.report.summary import load_runs, pareto_front, read_latency_file, reporting_of, summarise
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.measures import StudyLatency
from recurra.tasks.questions import Limits, Questions
from rendered import summarise_folders, summarise_runs

SMALL = {"train": 900, "validation": 300, "test": 400}
PARTS: list[dict[str, Any]] = [
    {"length_tail": "longest", "tail_fraction": 0.3},
    {"length_tail": "longest", "tail_fraction": 0.1},
    {"length_tail": "longest", "tail_fraction": 0.1, "whole_test": True},
    {"split_seed": 2},
]


def model(table: dict, label: str) -> dict:
    return next(item for item in table["models"] if item["label"] == label)


def pair(table: dict, first: str, second: str) -> dict:
    return next(item for item in table["tests"] if {item["a"], item["b"]} == {first, second})


def test_accuracy_over_seeds_has_the_t_interval(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    folders = [factory.run("recurrent", 0.8, seed=seed) for seed in (4, 0, 7)]
    values = []
    for folder in sorted(folders, key=lambda folder: read_record(folder).seed):
        predictions = read_predictions(folder, "test")
        values.append(np.mean(predictions.logits.argmax(axis=1) == predictions.labels))
    found = model(summarise_runs(folders)["tables"][0], "recurrent")
    accuracy = found["scores"]["test"]["accuracy"]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert found["seeds"] == [0, 4, 7]
    assert accuracy["values"] == pytest.approx(values)
    assert accuracy["mean"] == pytest.approx(np.mean(values))
    assert accuracy["sd"] == pytest.approx(np.std(values, ddof=1))
    assert (accuracy["low"], accuracy["high"]) == (pytest.approx(low), pytest.approx(high))
    assert accuracy["basis"] == "seeds"


def test_one_seed_has_the_interval_over_examples_and_says_so(tmp_path: Path) -> None:
    folder = RunFactory(tmp_path, rows=SMALL).run("recurrent", 0.8)
    summary = summarise_runs([folder])
    accuracy = model(summary["tables"][0], "recurrent")["scores"]["test"]["accuracy"]
    right = round(accuracy["mean"] * 400)
    wilson = stats.binomtest(right, 400).proportion_ci(0.95, method="wilson")
    assert accuracy["basis"] == "examples"
    assert accuracy["sd"] is None
    assert (accuracy["low"], accuracy["high"]) == (pytest.approx(wilson.low), pytest.approx(wilson.high))
    assert "With one seed" in summary["tables"][0]["conclusion"]


def test_seeds_that_change_nothing_do_not_pretend_to_certainty(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    found = model(summarise_runs([factory.run("linear", 0.8, seed=seed) for seed in range(3)])["tables"][0], "linear")
    for figure in ("accuracy", "f1"):
        estimate = found["scores"]["test"][figure]
        assert estimate["basis"] == "examples"
        assert estimate["high"] - estimate["low"] > 0.02


def test_only_like_is_compared_with_like(tmp_path: Path) -> None:
    factories = [
        RunFactory(tmp_path / "1", rows=SMALL),
        RunFactory(tmp_path / "2", rows=SMALL, protocol="pooled"),
        RunFactory(tmp_path / "3", rows=SMALL, training="tuned"),
        RunFactory(tmp_path / "4", rows=SMALL, precision="bf16"),
        RunFactory(tmp_path / "5", rows={**SMALL, "train": 90}, data_config={"fraction": 0.1}),
        *(
            RunFactory(tmp_path / f"part {seed}", rows={**SMALL, "train": 900 + seed}, data_config=part, seed=seed)
            for seed, part in enumerate(PARTS, start=1)
        ),
    ]
    folders = [factory.run("recurrent", 0.8) for factory in factories]
    tables = summarise_runs(folders)["tables"]
    assert len(tables) == len({table["title"] for table in tables}) == len(factories)
    assert [len(table["models"]) for table in tables] == [1] * len(factories)
    assert not any("· data " in table["title"] for table in tables)
    assert any("0.1 of train" in table["title"] for table in tables)


def test_a_linear_model_stands_in_every_table_of_its_data_alone(tmp_path: Path) -> None:
    paper, tuned = RunFactory(tmp_path / "1", rows=SMALL), RunFactory(tmp_path / "2", rows=SMALL, training="tuned")
    other = RunFactory(tmp_path / "3", rows=SMALL, protocol="pooled")
    folders = [paper.run("linear"), paper.run("recurrent"), tuned.run("recurrent"), other.run("recurrent")]
    tables = {(table["protocol"], table["training"]): table for table in summarise_runs(folders)["tables"]}
    labels = {key: [item["label"] for item in table["models"]] for key, table in tables.items()}
    assert labels == {
        ("official", "paper"): ["linear", "recurrent"],
        ("official", "tuned"): ["linear", "recurrent"],
        ("pooled", "paper"): ["recurrent"],
    }


def test_other_settings_are_another_model_and_a_seed_is_not(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    folders = [
        factory.run("recurrent", seed=0, run_id="a"),
        factory.run("recurrent", seed=1, run_id="b"),
        factory.run("recurrent", seed=0, run_id="c", settings={"alpha": 0.25}),
    ]
    (table,) = summarise_runs(folders)["tables"]
    assert sorted(item["seeds"] for item in table["models"]) == [[0], [0, 1]]
    assert len({item["label"] for item in table["models"]}) == 2
    assert "more than one set of settings" in " ".join(table["warnings"])


def test_models_that_no_processor_trained_both_are_told(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    runs, _ = load_runs(
        [factory.run(name, seed=seed) for name in ("baseline", "recurrent", "linear") for seed in (0, 1)]
    )

    def told(*places: str) -> str:
        of_runs = [
            replace(run, record=run.record.model_copy(update={"environment": environment}))
            for run, place in zip(runs, places, strict=True)
            for environment in [run.record.environment.model_copy(update={"cpu": place})]
        ]
        return " ".join(summarise(of_runs).tables[0].warnings)

    assert "baseline on A; recurrent on B" in told("A", "A", "B", "B", "A", "A")
    # One seed on either is enough, and a linear model is the same everywhere.
    assert "processors" not in told("A", "B", "B", "B", "C", "C")


def test_of_one_seed_run_twice_the_latest_counts(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    late = factory.run("recurrent", 0.9, run_id="a-late", created="2026-11-21T00:00:00+00:00")
    early = factory.run("recurrent", 0.6, run_id="b-early", created="2026-11-20T00:00:00+00:00")
    for order in ([late, early], [early, late]):
        (table,) = summarise_runs(order)["tables"]
        assert [run["run_id"] for run in table["models"][0]["runs"]] == ["a-late"]
        assert "more than once" in table["warnings"][0]


def test_a_clear_difference_is_supported_and_a_small_one_is_not(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path)
    folders = [
        factory.run(name, accuracy, seed=seed)
        for name, accuracy in (("linear", 0.80), ("baseline", 0.905), ("recurrent", 0.90))
        for seed in range(3)
    ]
    (table,) = summarise_runs(folders)["tables"]
    clear, small = pair(table, "linear", "baseline"), pair(table, "baseline", "recurrent")
    assert clear["verdict"] == "distinguishable"
    assert clear["high"] < 0
    assert clear["seeds_apart"] is True
    assert "points below baseline on test" in clear["statement"]
    assert small["verdict"] == "not distinguishable"
    assert "Behind it, beyond chance: linear" in table["conclusion"]
    assert "No difference from it is supported" in table["conclusion"]
    assert [item["choice"] for item in table["advice"][:2]] == ["recurrent", "yes, for accuracy"]
    assert "within a point of the best, certain at 95 %" in table["advice"][0]["why"]


def test_nothing_is_certain_that_another_seed_may_undo(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows={**SMALL, "test": 8000})
    reached = {"baseline": (0.897, 0.907, 0.912), "recurrent": (0.910, 0.896, 0.906)}
    folders = [factory.run(name, value, seed=seed) for name in reached for seed, value in enumerate(reached[name])]
    (table,) = summarise_runs(folders)["tables"]
    (test,) = table["tests"]
    assert -0.01 < min(test["low"], -test["high"]) < 0 and test["half"] > 0.01
    assert "within a point of the best, not certain at 95 %" in table["advice"][0]["why"]


def test_models_without_predictions_or_with_other_rows_are_not_tested(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path / "1", rows=SMALL)
    missing = [factory.run("baseline", 0.9), factory.run("recurrent", 0.7, predictions=["validation"])]
    (test,) = summarise_runs(missing)["tables"][0]["tests"]
    assert test["p"] is None
    assert "not on disk" in test["reason"]
    assert test["verdict"] == "untested"

    moved = [
        RunFactory(tmp_path / "2", rows=SMALL).run("baseline"),
        RunFactory(tmp_path / "2", rows=SMALL).run("recurrent"),
    ]
    other = RunFactory(tmp_path / "3", rows=SMALL, seed=9).run("recurrent")
    (moved[1] / "predictions" / "test.parquet").write_bytes((other / "predictions" / "test.parquet").read_bytes())
    (test,) = summarise_runs(moved)["tables"][0]["tests"]
    assert test["p"] is None
    assert "same rows" in test["reason"]
    (moved[0] / "predictions" / "test.parquet").write_bytes(b"PAR1 no")
    (test,) = summarise_runs(moved)["tables"][0]["tests"]
    assert "not on disk" in test["reason"]

    folders = [*missing, factory.run("baseline", seed=1), factory.run("recurrent", seed=1)]
    rows = read_predictions(folders[2], "test")
    write_predictions(folders[2], "test", rows.ids[::-1], rows.labels, rows.logits)
    (test,) = summarise_runs(folders)["tables"][0]["tests"]
    assert test["reason"] == "the seeds of baseline were not evaluated on the same rows of the test split"


@pytest.mark.parametrize("third", [["baseline"], ["baseline", "recurrent"]])
def test_a_seed_without_predictions_keeps_no_other_seed_from_being_tested(third: list[str], tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    whole = [factory.run(name, seed=seed) for name in ("baseline", "recurrent") for seed in (0, 1)]
    (expected,) = summarise_runs(whole)["tables"][0]["tests"]
    lost = {"baseline": ["validation"]}
    more = [factory.run(name, seed=2, predictions=lost.get(name)) for name in third]
    (test,) = summarise_runs([*whole, *more])["tables"][0]["tests"]
    assert test["seeds"] == 2 and test["p"] is not None
    for part in ("gap", "low", "high", "p", "odds_ratio"):
        assert test[part] == expected[part]


def test_study_latency_is_preferred_and_mixtures_are_named(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    folders = [factory.run("baseline"), factory.run("recurrent")]
    latency = study_latency(folders, factor=2.0)
    (table,) = summarise_runs(folders, latency)["tables"]
    assert model(table, "recurrent")["latency"]["1"]["median_ms"] == pytest.approx(14.0)
    assert model(table, "recurrent")["timed"] == "side by side"
    assert table["warnings"] == []
    del latency.runs[folders[0].name]  # type: ignore[attr-defined]
    assert "do not compare" in " ".join(summarise_runs(folders, latency)["tables"][0]["warnings"])
    before = study_latency(folders).model_copy(update={"earlier": [folders[0].name]})
    mixed = summarise_runs(folders, before)["tables"][0]
    assert [model(mixed, name)["timed"] for name in ("baseline", "recurrent")] == ["earlier", "side by side"]
    assert "some before their records were packed: do not compare" in " ".join(mixed["warnings"])
    own = summarise_runs(folders)["tables"][0]
    assert model(own, "recurrent")["latency"]["1"]["median_ms"] == pytest.approx(7.0)
    assert "own run" in " ".join(own["warnings"])


def test_timings_are_to_be_deleted_only_where_they_lie(tmp_path: Path) -> None:
    folders = [RunFactory(tmp_path / "runs", rows=SMALL).run("baseline")]
    latency = study_latency(folders).model_copy(update={"waited": 0.5})
    (packed,) = summarise_folders(folders, latency, base=tmp_path).warnings
    assert packed.startswith("Other programs used the processors 50%") and packed.endswith("milliseconds are too high.")
    (tmp_path / "latency.json").write_text(latency.model_dump_json(), encoding="utf-8")
    (here,) = summarise_folders(folders, latency, base=tmp_path).warnings
    assert here.startswith(f"{packed} Delete latency.json and start the same command again")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"runs": {"x": {"batch_1": {"median_ms": 1}}}}',
        '{"exports": {"a/safetensors-fp16": {"batch_1": {"median_ms": "soon"}}}}',
        '{"waited": "x"}',
    ],
)
def test_a_damaged_latency_file_counts_as_none(tmp_path: Path, content: str) -> None:
    assert read_latency_file(tmp_path) is None
    (tmp_path / "latency.json").write_text(content, encoding="utf-8")
    assert read_latency_file(tmp_path) is None
    (tmp_path / "latency.json").write_text('{"runs": {"x": {}}}', encoding="utf-8")
    assert read_latency_file(tmp_path) == StudyLatency(runs={"x": {}})


def test_published_figures_are_for_the_whole_of_sst2_alone(tmp_path: Path) -> None:
    whole = RunFactory(tmp_path / "1", rows=SMALL)
    part = RunFactory(tmp_path / "2", rows=SMALL, data_config={"fraction": 0.1})
    tail = RunFactory(tmp_path / "3", rows=SMALL, data_config={"length_tail": "longest"})
    other = RunFactory(tmp_path / "4", rows=SMALL, data="reviews.csv")
    published = [
        summarise_runs([factory.run("recurrent"), factory.run("stacked-narrow")])["tables"][0]["published"]
        for factory in (whole, part, tail, other)
    ]
    assert [line["accuracy"] for line in published[0]] == [0.9021, 0.7993]
    assert {line["protocol"] for line in published[0]} == {"pooled"}
    assert published[1:] == [[], [], []]


def test_audits_are_told_once_failed_first_with_whom_they_concern(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    data = [leakage("test"), skipped()]
    folders = [
        factory.run("linear", audits=data),
        factory.run("baseline", audits=[*data, invariance()]),
        factory.run("recurrent", seed=0, audits=[*data, invariance()]),
        factory.run("recurrent", seed=1, audits=[*data, invariance(failed=True)]),
    ]
    (table,) = summarise_runs(folders)["tables"]
    told = [(line["name"], line["status"], line["concerns"]) for line in table["audits"]]
    assert told == [
        ("leakage.contained.test", "failed", "every run"),
        ("invariance.padding", "failed", "recurrent (seed 1)"),
        ("leakage.source.test", "skipped", "every run"),
        ("invariance.padding", "passed", "baseline; recurrent (seed 0)"),
    ]
    assert table["audits"][0]["group"] == "leakage on test"
    assert "the film" in table["audits"][0]["example"]
    assert all(bool(line["meaning"]) == (line["status"] == "failed") for line in table["audits"])
    assert "too good for every model" in table["conclusion"]
    (elsewhere,) = summarise_runs([factory.run("recurrent", seed=2, audits=[leakage("validation")])])["tables"]
    assert "failed on validation, not on test" in elsewhere["conclusion"] and "too good" not in elsewhere["conclusion"]
    assert model(table, "recurrent")["failed_groups"] == ["leakage on test", "invariance padding"]


def test_a_better_and_cheaper_linear_model_is_recommended(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path)
    folders = [factory.run("linear", 0.92), factory.run("baseline", 0.80), factory.run("recurrent", 0.79)]
    (table,) = summarise_runs(folders)["tables"]
    recommended, needed = table["advice"]
    assert recommended["choice"] == "linear" and "the best and the smallest" in recommended["why"]
    assert needed["choice"] == "no: take linear"
    assert "is better than every Transformer here" in needed["why"]


def test_what_is_recommended_stays_within_the_limits(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path)
    folders = [factory.run("linear", 0.80), factory.run("baseline", 0.92), factory.run("recurrent", 0.90)]

    def recommended(**limits: float) -> dict[str, Any]:
        found = summarise_runs(folders, questions=Questions(limits=Limits(**limits)))["tables"][0]["advice"][0]
        assert found["priority"] == "Recommended"
        return found

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
    (table,) = summarise_runs(folders)["tables"]
    assert table["judged_by"] == "macro_f1"
    assert "| Accuracy | Macro F1 |" in study_page(summarise_folders(folders), "results/x")
    silent = model(table, "baseline")
    assert silent["scores"]["test"]["accuracy"]["mean"] == pytest.approx(0.9, abs=0.03)
    assert silent["barred"] == "it predicts 'ham' for every text of test"
    assert "baseline does not work as a classifier: it predicts 'ham' for every text of test." in table["conclusion"]
    assert "judged by macro F1, not by accuracy" in table["conclusion"]
    assert "baseline" not in {item["choice"] for item in table["advice"]}
    assert [{test["a"], test["b"]} for test in table["tests"]] == [{"linear", "recurrent"}]
    assert dict(table["advice"][0]["details"])["What you give up"] == "No macro F1."
    results, *_ = reporting_of("classification").tables(summarise_folders(folders).tables[0])
    assert "both cheaper and better by macro F1" in results.note
    expected = []
    for folder in folders[:2]:
        found = read_predictions(folder, "test")
        expected.append(f1_score(found.labels, found.logits.argmax(axis=1), average="macro"))
    assert [model(table, name)["scores"]["test"]["macro_f1"]["mean"] for name in ("linear", "recurrent")] == expected
    (test,) = table["tests"]
    assert test["gap"] == pytest.approx(expected[0] - expected[1])
    assert test["low"] < test["gap"] < test["high"]


def test_what_nobody_needs_to_read_for_stands_in_every_conclusion(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL, label_names=("a", "b"), shares=(0.6, 0.4))
    form = AuditResult(name="shortcuts.format.test", status="passed", summary="", details={"accuracy": 0.6171})
    folders = [factory.run("linear", 0.8, audits=[form]), factory.run("recurrent", 0.95, audits=[form])]
    (table,) = summarise_runs(folders)["tables"]
    counts = np.sum(read_record(folders[0]).metrics["test"].confusion_matrix, axis=1)
    wanted = f"always giving the most frequent label is right on {100 * max(counts) / sum(counts):.1f} %"
    both = f"{wanted}, length and punctuation alone on 61.7 %."
    assert f"For comparison, without reading the texts: {both}" in table["conclusion"]
    assert dict(table["advice"][0]["details"])["How good"].endswith(both)
    (alone,) = summarise_runs([factory.run("linear", 0.8, seed=5)])["tables"]
    assert f"For comparison, without reading the texts: {wanted}." in alone["conclusion"]


def test_a_model_that_ignores_a_class_or_gains_nothing_is_named_and_not_recommended(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL, label_names=("a", "b", "c"))
    folders = [factory.run("linear", 0.7), factory.run("recurrent", 0.95, only_says=[0, 1])]
    folders.append(factory.run("baseline", 0.2))
    (table,) = summarise_runs(folders)["tables"]
    assert table["judged_by"] == "accuracy"
    assert "recurrent does not work as a classifier: it never predicts 'c'." in table["conclusion"]
    assert "and always giving one answer on" in table["conclusion"]
    assert "linear scores highest" in table["conclusion"]
    assert [item["choice"] for item in table["advice"]] == ["linear"]


@pytest.mark.parametrize(
    ("rows", "said"), [(20, "20 test rows are too few to choose a model: one row is worth 5"), (50, "")]
)
def test_a_handful_of_test_rows_is_called_that(tmp_path: Path, rows: int, said: str) -> None:
    factory = RunFactory(tmp_path, rows={"train": 400, "validation": 300, "test": rows})
    (table,) = summarise_runs([factory.run("linear", 0.7), factory.run("recurrent", 0.95)])["tables"]
    assert ("too few to choose a model" in table["conclusion"]) == bool(said) and said in table["conclusion"]


def test_a_class_is_ignored_by_the_rows_of_all_folds_together(tmp_path: Path) -> None:
    folds = [
        RunFactory(
            tmp_path / str(fold), rows={"train": 90, "test": 12}, seed=fold, label_names=("a", "b", "c"),
            data_config={"folds": 3, "fold": fold},
        )
        for fold in range(3)
    ]  # fmt: skip
    folders = [
        fold.run(name, 0.9, only_says=says)
        for fold in folds
        for name, says in (("linear", None), ("recurrent", [0, 1]))
    ]
    (table,) = summarise_runs(folders)["tables"]
    assert 5 <= sum(model(table, "recurrent")["scores"]["test"]["confusion_matrix"][2]) < 15
    assert "recurrent does not work as a classifier: it never predicts 'c'." in table["conclusion"]


def test_one_model_that_was_not_tested_hides_no_difference(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    folders = [factory.run("linear", 0.7), factory.run("recurrent", 0.95), factory.run("baseline", 0.8, predictions=[])]
    needed = summarise_runs(folders)["tables"][0]["advice"][1]
    assert needed["choice"] == "yes, for accuracy" and "Better than linear: recurrent by" in needed["why"]
    folders[1] = factory.run("recurrent", 0.7, seed=1)
    needed = summarise_runs(folders)["tables"][0]["advice"][1]
    assert needed["choice"] == "untested" and needed["why"].endswith("; not tested: baseline.")


def test_of_many_labels_a_few_that_are_never_said_bar_nobody(tmp_path: Path) -> None:
    names = tuple(f"label {number:02}" for number in range(40))
    factory = RunFactory(tmp_path, rows={"train": 400, "validation": 400, "test": 400}, label_names=names)
    folders = [
        factory.run("linear", 0.5),
        factory.run("recurrent", 0.9, only_says=list(range(38))),
        factory.run("baseline", 0.9, only_says=list(range(34))),
    ]
    (table,) = summarise_runs(folders)["tables"]
    assert "recurrent scores highest" in table["conclusion"]
    assert "recurrent never predicts 'label 38' and 'label 39'." in table["conclusion"]
    assert (
        "baseline does not work as a classifier: it never predicts "
        "'label 34', 'label 35' and 'label 36' and 3 more classes." in table["conclusion"]
    )
    assert table["advice"][0]["choice"] == "recurrent"


def test_who_ranks_texts_is_not_held_to_answers(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL, label_names=("a", "b", "c"))
    folders = [factory.run("linear", 0.7, only_says=[0]), factory.run("recurrent", 0.95, only_says=[0, 1])]
    by_answers, by_rank = (
        summarise_runs(folders, questions=Questions(measure=name))["tables"][0]
        for name in ("accuracy", "average_precision")
    )
    assert "linear does not work" in by_answers["conclusion"] and by_answers["tests"] == []
    assert "does not work" not in by_rank["conclusion"] and len(by_rank["tests"]) == 1
    assert by_rank["advice"][0]["choice"]


def test_headline_is_a_split_that_chose_no_checkpoint(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows={"train": 900, "held_out": 200, "validation": 300})
    (table,) = summarise_runs([factory.run("recurrent")])["tables"]
    assert table["headline_split"] == "validation"


def test_runs_without_a_record_are_listed_and_nothing_else_breaks(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    good = factory.run("recurrent")
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    empty.mkdir()
    broken.mkdir()
    (broken / "record.json").write_text("{", encoding="utf-8")
    summary = summarise_runs([empty, good, broken], failures={"gone": "the worker\ndied"})
    reasons = {item["run_id"]: item["reason"] for item in summary["failed_runs"]}
    assert set(reasons) == {"empty", "broken", "gone"}
    assert "not a finished run" in reasons["empty"]
    assert reasons["gone"] == "the worker died"
    assert len(summary["tables"]) == 1


def test_summary_is_plain_json_and_does_not_depend_on_the_order_of_runs(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    folders = [factory.run(name, seed=seed) for name in ("linear", "recurrent", "baseline") for seed in (0, 1)]
    summary = summarise_runs(folders)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summarise_runs(folders[::-1])["tables"] == summary["tables"]
    sizes = [item["parameters"] for item in summary["tables"][0]["models"][1:]]
    assert all(first >= second for first, second in pairwise(sizes))


def test_folders_inside_the_output_are_told_relative_to_it(tmp_path: Path) -> None:
    folder = RunFactory(tmp_path / "runs", rows=SMALL).run("recurrent")
    runs, failed = load_runs([folder])
    summary = summarise(runs, failed=failed, base=tmp_path)
    assert summary.tables[0].models[0].runs[0].folder == f"runs/{folder.name}"


def test_a_figure_that_is_only_measured_is_a_line_a_model_with_its_mean_over_seeds(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path / "runs", rows=SMALL)
    folders = [factory.run("linear", audits=[seen(0.2)])]
    folders += [factory.run("recurrent", seed=seed, audits=[seen(0.1 * seed)]) for seed in (1, 3)]
    (table,) = summarise_runs(folders)["tables"]
    lines = {line["concerns"]: line for line in table["audits"]}
    assert {line["status"] for line in table["audits"]} == {"measured"} and set(lines) == {"linear", "recurrent"}
    assert lines["linear"]["summary"] == seen(0.2).summary
    assert lines["recurrent"]["value"] == pytest.approx(0.2)
    assert "mean +0.200 (+0.100 to +0.300); at equal length +0.100" in lines["recurrent"]["summary"]
    assert "accuracy 0.800 on the 40 rows" in lines["recurrent"]["summary"]
    assert all(line["meaning"] == "" for line in table["audits"])
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


def test_a_class_without_a_test_row_is_said_to_be_untested(tmp_path: Path) -> None:
    (table,) = summarise(with_neutral([RunFactory(tmp_path, rows=SMALL).run("linear", 0.8)])).tables
    assert "Labels without a test row: neutral." in table.conclusion


def test_rows_of_one_class_give_no_verdict_on_any_model(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
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


def test_a_measure_of_a_label_that_no_row_has_gives_no_verdict(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    runs = with_neutral([factory.run(name, accuracy) for name, accuracy in (("linear", 0.8), ("recurrent", 0.9))])
    (table,) = summarise(runs, questions=Questions(measure="f1:neutral")).tables
    assert table.conclusion.startswith("No test row has the label 'neutral': ")
    assert "there is no verdict" in table.conclusion
    assert table.recommended is None and "scores highest" not in table.conclusion


# Few different values, so that ties are common.
VALUES = some.lists(some.tuples(some.integers(0, 4), some.integers(0, 4)), max_size=9)


@given(VALUES)
def test_the_front_holds_exactly_what_nothing_dominates(values: list[tuple[int, int]]) -> None:
    accuracy = {f"m{index}": float(value[0]) for index, value in enumerate(values)}
    cost = {f"m{index}": float(value[1]) for index, value in enumerate(values)}

    def dominated(name: str) -> bool:
        return any(
            accuracy[other] >= accuracy[name]
            and cost[other] <= cost[name]
            and (accuracy[other] > accuracy[name] or cost[other] < cost[name])
            for other in accuracy
        )

    front = pareto_front(accuracy, cost)
    assert sorted(front) == sorted(name for name in accuracy if not dominated(name))
    assert [cost[name] for name in front] == sorted(cost[name] for name in front)
