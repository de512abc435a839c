"""Contrasts that a study names: gaps against the predictions themselves, and verdicts that claim no more."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docs.site.results import study_page
from scipy import stats

from factories import RunFactory, leakage
from recurra.evaluation.predictions import read_predictions
from recurra.report.figures import draw
from recurra.report.render import render_report, terminal_tables, write_files
from recurra.report.summary import load_runs, summarise
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.questions import Contrast, PublishedReference, Questions
from recurra.tasks.summary import plain
from rendered import summarise_runs

SHARING = Contrast(name="sharing at equal width", a="recurrent", b="stacked-narrow")


def answer(folders: list[Path], *contrasts: Contrast) -> list[dict[str, Any]]:
    summary = summarise_runs(folders, questions=Questions(contrasts or (SHARING,)))
    return [line for table in summary["tables"] for line in table["contrasts"]]


def right(folder: Path) -> np.ndarray:
    predictions = read_predictions(folder, "test")
    return predictions.logits.argmax(axis=1) == predictions.labels


def test_the_gap_and_its_interval_are_those_of_the_seeds_in_pairs(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path)
    shared = [factory.run("recurrent", 0.80, seed=seed) for seed in range(3)]
    stacked = [factory.run("stacked-narrow", 0.81, seed=seed) for seed in range(3)]
    (line,) = answer([*shared, *stacked])
    gaps = [right(a).mean() - right(b).mean() for a, b in zip(shared, stacked, strict=True)]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(gaps), scale=stats.sem(gaps))
    assert line["seeds"] == 3
    assert line["gap"] == pytest.approx(np.mean(gaps))
    assert (line["gap"] - line["half"], line["gap"] + line["half"]) == (pytest.approx(low), pytest.approx(high))
    only_a = sum(np.sum(right(a) & ~right(b)) for a, b in zip(shared, stacked, strict=True))
    only_b = sum(np.sum(~right(a) & right(b)) for a, b in zip(shared, stacked, strict=True))
    assert line["odds_ratio"] == pytest.approx((only_a + 0.5) / (only_b + 0.5))
    spreads = [max(values) - min(values) for values in ([right(f).mean() for f in fs] for fs in (shared, stacked))]
    assert line["spread"] == pytest.approx(max(spreads))


@pytest.mark.parametrize(
    ("shared", "stacked", "against"),
    [
        ((0.74, 0.86, 0.80), (0.77, 0.79, 0.75), "the interval over seeds contains 0"),
        # In pairs the gap is steady, but the worst seed of one lies below the best of the other.
        ((0.60, 0.70, 0.80, 0.90), (0.65, 0.75, 0.85, 0.95), "the seeds overlap"),
    ],
)
def test_seeds_keep_a_gap_from_being_distinguishable(
    shared: tuple[float, ...], stacked: tuple[float, ...], against: str, tmp_path: Path
) -> None:
    factory, sides = RunFactory(tmp_path), {"recurrent": shared, "stacked-narrow": stacked}
    (line,) = answer([factory.run(name, value, seed=seed) for name in sides for seed, value in enumerate(sides[name])])
    assert line["verdict"] == "not distinguishable" and against in line["statement"]
    assert f"smaller than the change from the seed alone ({line['spread'] * 100:.1f} points)" in line["statement"]


def test_one_seed_has_the_interval_over_rows_and_admits_what_is_unknown(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path)
    (line,) = answer([factory.run("recurrent", 0.7), factory.run("stacked-narrow", 0.9)])
    assert (line["seeds"], line["half"], line["spread"]) == (1, None, None)
    assert "95 % over rows" in line["statement"]
    assert line["p_holm"] < 0.05 and line["verdict"] == "by rows only"
    assert line["statement"].endswith("there is one seed: another training may undo it.")
    fitted = [
        replace(run, record=run.record.model_copy(update={"model": run.record.model.model_copy(update=linear)}))
        for linear in [{"kind": "linear"}]
        for run in load_runs(sorted(tmp_path.iterdir()))[0]
    ]
    (table,) = summarise(fitted, questions=Questions((SHARING,))).tables
    assert table.contrasts[0].statement.endswith(
        "than other rows would explain, and neither model depends on the seed."
    )


def test_seeds_that_one_side_alone_has_say_nothing(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path)
    shared = [factory.run("recurrent", value, seed=seed) for seed, value in enumerate((0.7, 0.8, 0.9))]
    stacked = factory.run("stacked-narrow", 0.75)
    (line,) = answer([*shared, stacked])
    assert (line["seeds"], line["half"]) == (1, None)
    # They do say what the seed moves, and keep the gap from being called a difference.
    accuracies = [right(run).mean() for run in shared]
    assert line["spread"] == pytest.approx(max(accuracies) - min(accuracies))
    assert line["verdict"] == "not distinguishable" and "the seeds overlap" in line["statement"]
    assert line["gap"] == pytest.approx(right(shared[0]).mean() - right(stacked).mean())
    assert line["low"] <= line["gap"] <= line["high"]
    assert "n = 3" not in line["statement"]


def test_models_without_a_seed_in_common_are_not_tested(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path)
    folders = [factory.run("recurrent", 0.7, seed=1), factory.run("stacked-narrow", 0.9, seed=2)]
    assert answer(folders) == []
    (table,) = summarise_runs(folders)["tables"]
    assert table["tests"] == [] and "Not tested against it: recurrent" in table["conclusion"]


def test_what_no_seed_changes_meets_every_seed(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path)
    shared = [factory.run("recurrent", value, seed=seed) for seed, value in enumerate((0.7, 0.8, 0.9))]
    linear = factory.run("linear", 0.75)
    (line,) = answer([*shared, linear], Contrast(name="against a linear model", a="recurrent", b="linear"))
    assert line["seeds"] == 3
    assert line["gap"] == pytest.approx(np.mean([right(run).mean() for run in shared]) - right(linear).mean())


def test_holm_is_over_the_contrasts_of_the_table_alone(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path)
    names = ("linear", "baseline", "recurrent", "stacked-narrow")
    folders = [factory.run(name, 0.8 + 0.005 * index) for index, name in enumerate(names)]
    other = Contrast(name="width", a="baseline", b="stacked-narrow")
    missing = Contrast(name="not there", a="recurrent-wide", b="baseline")
    first, second = answer(folders, SHARING, other, missing)
    smaller, larger = sorted((first, second), key=lambda line: line["p"])
    assert smaller["p_holm"] == pytest.approx(min(1.0, 2 * smaller["p"]))
    assert larger["p_holm"] == pytest.approx(max(larger["p"], smaller["p_holm"]))
    (alone,) = answer(folders, SHARING)
    assert alone["p_holm"] == alone["p"]


def test_precisions_are_held_against_each_other_across_tables(tmp_path: Path) -> None:
    full, half = (RunFactory(tmp_path / name, precision=name) for name in ("fp32", "bf16"))
    folders = [factory.run("baseline", 0.85, seed=seed) for factory in (full, half) for seed in range(3)]
    question = Contrast(name="bf16 for FP32", a="baseline@bf16", b="baseline@fp32")
    summary = summarise_runs(folders, questions=Questions((question,)))
    found = {table["precision"]: table["contrasts"] for table in summary["tables"]}
    assert found["fp32"] == []
    (line,) = found["bf16"]
    # The factory's predictions do not depend on the precision.
    assert (line["gap"], line["p"], line["verdict"]) == (0.0, 1.0, "not distinguishable")
    assert "baseline@bf16 is level with baseline@fp32" in line["statement"]


def test_published_figures_stand_where_the_study_says_and_know_their_distance(tmp_path: Path) -> None:
    rows = {"train": 90, "validation": 300, "test": 400}
    part = RunFactory(tmp_path / "part", rows=rows, protocol="pooled", data_config={"fraction": 0.1})
    whole = RunFactory(tmp_path / "whole", rows=rows, protocol="official")
    folders = [factory.run("recurrent", 0.745, seed=seed) for factory in (part, whole) for seed in range(3)]
    references = [
        PublishedReference(table="7", data={"fraction": 0.1}),
        PublishedReference(table="13 fp16", precision="fp16"),
    ]
    summary = summarise_runs(folders, questions=Questions(published=references))
    by_protocol = {table["protocol"]: table for table in summary["tables"]}
    assert by_protocol["official"]["published"] == []
    (line,) = by_protocol["pooled"]["published"]
    accuracy = by_protocol["pooled"]["models"][0]["scores"]["test"]["accuracy"]
    assert (line["source"], line["accuracy"], line["differs"]) == ("table 7", 0.7453, "")
    assert line["difference"] == pytest.approx(accuracy["mean"] - 0.7453)
    assert line["inside"] == (accuracy["low"] <= 0.7453 <= accuracy["high"])
    assert line["basis"] == "seeds"


@pytest.mark.parametrize(
    ("values", "table", "differs"),
    [
        ({"protocol": "official"}, "6", "another split"),
        ({"data": "yelp_reviews", "protocol": "balanced"}, "11", "other data"),
        ({"data": "domains", "protocol": "pooled"}, "12", "other data"),
        ({"data": "yelp_polarity", "protocol": "sst2-size", "training": "tuned"}, "11", "another training"),
        ({"protocol": "pooled", "precision": "bf16"}, "13 fp16", "another precision"),
        ({"protocol": "pooled", "precision": "fp16"}, "13 fp16", ""),
        ({"protocol": "pooled", "precision": "fp32"}, "fp16 early", "another precision"),
    ],
)
def test_what_is_not_like_for_like_is_said(tmp_path: Path, values: dict[str, str], table: str, differs: str) -> None:
    factory = RunFactory(tmp_path, rows={"train": 90, "validation": 30, "test": 40}, **values)
    questions = Questions(published=[PublishedReference(table=table)])
    runs = [factory.run(name) for name in ("recurrent", "recurrent-wide")]
    line = summarise_runs(runs, questions=questions)["tables"][0]["published"][-1]
    assert line["differs"] == differs


# By corpus, the accuracy of two models.
OVER_DATA = {"sst2": (0.80, 0.78), "yelp_reviews": (0.86, 0.85), "amazon_reviews": (0.75, 0.71), "domains": (0.9, 0.91)}
SEVERAL = Questions((SHARING, Contrast(name="the other way", a="stacked-narrow", b="recurrent")))


def runs_on(root: Path, corpora: Mapping[str, tuple[float, float]], seeds: int = 2, rows: int = 400) -> list[LoadedRun]:
    folders = [
        RunFactory(root / name, data=name, rows={"train": 90, "validation": 60, "test": rows}).run(
            model, accuracy, seed=seed
        )
        for name, accuracies in corpora.items()
        for model, accuracy in zip(("recurrent", "stacked-narrow"), accuracies, strict=True)
        for seed in range(seeds)
    ]
    return load_runs(folders)[0]


def test_over_data_sets_each_counts_once_and_the_interval_is_over_them(tmp_path: Path) -> None:
    runs = runs_on(tmp_path, OVER_DATA)
    # A second part of the first corpus.
    part = RunFactory(
        tmp_path / "part", rows={"train": 9, "validation": 60, "test": 400}, data_config={"fraction": 0.1}
    )
    runs += load_runs([part.run("recurrent", 0.7), part.run("stacked-narrow", 0.72)])[0]
    summary = summarise(runs, questions=SEVERAL)
    assert len(summary.tables) == 5
    gaps = [
        float(np.mean([table.contrasts[0].gap for table in summary.tables if table.data == name])) for name in OVER_DATA
    ]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(gaps), scale=stats.sem(gaps))
    p = stats.ttest_1samp(gaps, 0.0).pvalue
    found, turned = summary.pooled
    assert found.gaps == pytest.approx(dict(zip(OVER_DATA, gaps, strict=True)))
    assert (found.gap, found.half) == (pytest.approx(np.mean(gaps)), pytest.approx((high - low) / 2))
    # Two questions, of which neither is surer than the other.
    assert (found.p, found.p_holm) == (pytest.approx(p), pytest.approx(min(1.0, 2 * p)))
    assert found.ahead == sum(gap > 0 for gap in gaps) == 4 - turned.ahead
    assert (turned.gap, turned.half) == (pytest.approx(-found.gap), pytest.approx(found.half))
    size = f"{found.gap * 100:.1f} ± {found.half * 100:.1f} points above stacked-narrow, better on {found.ahead}"
    assert found.statement.startswith(f"sharing at equal width: over 4 data sets recurrent is {size}; {found.verdict}")


def test_files_of_one_name_are_as_many_data_sets_as_there_are_files(tmp_path: Path) -> None:
    gaps = {"x/t.csv": 0.02, "y/t.csv": 0.04, "/z/y/t.csv": 0.01, "sst2": 0.03}

    def runs(fraction: float) -> list[LoadedRun]:
        folders = []
        for number, (path, gap) in enumerate(gaps.items()):
            where = {"name": path, "fraction": fraction}
            factory = RunFactory(
                tmp_path / f"{number} {fraction}", data=Path(path).name, data_config=where, seed=number,
                rows={"train": 90, "validation": 60, "test": 400},
            )  # fmt: skip
            folders += [factory.run("recurrent", 0.8), factory.run("stacked-narrow", 0.8 - gap)]
        return load_runs(folders)[0]

    # Parts of one file are one data set.
    summary = summarise(runs(1.0) + runs(0.5), questions=Questions((SHARING,)))
    assert len(summary.tables) == 8
    (found,) = summary.pooled
    assert set(found.gaps) == {"x/t.csv", "y/t.csv", "z/y/t.csv", "sst2"}
    assert all(table.title.startswith(f"{table.data} · ") for table in summary.tables)
    (alone,) = {table.data for table in summarise(runs(1.0)[:2]).tables}
    assert alone == "t.csv", "where nothing else has the name, it is enough"


def test_two_data_sets_say_nothing_of_others(tmp_path: Path) -> None:
    summary = summarise(runs_on(tmp_path, {"sst2": (0.8, 0.7), "domains": (0.9, 0.8)}), questions=SEVERAL)
    assert len(summary.tables) == 2 and summary.pooled == []


def test_data_that_failed_an_audit_say_nothing_of_others(tmp_path: Path) -> None:
    runs = runs_on(tmp_path, OVER_DATA)
    leaks = [
        replace(run, record=run.record.model_copy(update={"audits": [leakage("test")]}))
        if run.record.data.name == "domains"
        else run
        for run in runs
    ]
    assert set(summarise(runs, questions=SEVERAL).pooled[0].gaps) == set(OVER_DATA)
    assert set(summarise(leaks, questions=SEVERAL).pooled[0].gaps) == set(OVER_DATA) - {"domains"}


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [((0.06, 0.07, 0.08, 0.07), "distinguishable"), ((0.1, -0.1, 0.1, -0.1), "not distinguishable")],
)
def test_a_difference_counts_if_it_is_much_the_same_on_all_data(
    gaps: tuple[float, ...], verdict: str, tmp_path: Path
) -> None:
    corpora = {name: (0.8 + gap, 0.8) for name, gap in zip(OVER_DATA, gaps, strict=True)}
    summary = summarise(runs_on(tmp_path, corpora, seeds=1, rows=2000), questions=Questions((SHARING,)))
    (found,) = summary.pooled
    assert found.verdict == verdict
    assert ("other data could reverse it" in found.statement) == (verdict != "distinguishable")


def test_every_place_shows_what_holds_over_all_data(tmp_path: Path) -> None:
    runs = runs_on(tmp_path / "runs", OVER_DATA)
    summary = summarise(runs, questions=SEVERAL)
    found = summary.pooled[0]
    gap = f"+{found.gap * 100:.1f} ± {found.half * 100:.1f}"
    (line,) = re.findall(r"^\| sharing at equal width.*$", study_page(summary, "results/x"), re.MULTILINE)
    assert gap in line.split("|")[-2]
    assert f"- {found.statement}" in [line for _, _, lines in terminal_tables(summary) for line in lines]
    page = render_report(summary, runs, title="x")
    assert "What the study asked, over all data" in page and gap in page
    assert plain(summary)["pooled"][0]["statement"] == found.statement
    write_files(tmp_path, summary, draw(summary, runs))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables" / "pooled.csv").read_text(encoding="utf-8"))))
    assert [float(row["gap"]) for row in rows] == [line.gap for line in summary.pooled]
