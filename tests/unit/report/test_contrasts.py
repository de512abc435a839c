"""Gaps between models, by rows, by seeds, by length and over data: the figures of SciPy, and no stronger words."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docs.site.results import study_page
from hypothesis import assume, given
from hypothesis import strategies as some
from scipy import stats

from committed import RESULTS
from factories import RunFactory, leakage
from language_records import language_record
from recurra.cli.main import main
from recurra.core.configuration import write_yaml
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.evaluation.predictions import read_predictions, row_key, write_predictions
from recurra.report.figures import draw
from recurra.report.render import render_report, terminal_tables, write_files
from recurra.report.statistics import ScoredModel, answer_contrasts, compare_models
from recurra.report.summary import load_runs, read_study, reporting_of, summarise, word_counts
from recurra.reported_study import report_records
from recurra.study.run import execute_run
from recurra.study.spec import StudySpec, expand
from recurra.tasks.language.reporting import LOSS
from recurra.tasks.loaded_runs import LoadedRun, TableKey
from recurra.tasks.questions import Contrast, PublishedReference, Questions
from recurra.tasks.study_data import Machine, StudyData
from recurra.tasks.summary import Comparison, TableSummary, plain
from rendered import summarise_folders, summarise_runs

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
    folders = [factory.run("recurrent", 0.7), factory.run("stacked-narrow", 0.9)]
    (line,) = answer(folders)
    assert (line["seeds"], line["half"], line["spread"]) == (1, None, None)
    assert "95 % over rows" in line["statement"]
    assert line["p_holm"] < 0.05 and line["verdict"] == "by rows only"
    assert line["statement"].endswith("there is one seed: another training may undo it.")
    fitted = []
    for run in load_runs(folders)[0]:
        model = run.record.model.model_copy(update={"kind": "linear"})
        fitted.append(replace(run, record=run.record.model_copy(update={"model": model})))
    (found,) = summarise(fitted, questions=Questions((SHARING,))).tables[0].contrasts
    assert found.statement.endswith("than other rows would explain, and neither model depends on the seed.")


def test_seeds_that_one_side_alone_has_say_nothing_unless_no_seed_changes_the_other(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path)
    shared = [factory.run("recurrent", value, seed=seed) for seed, value in enumerate((0.7, 0.8, 0.9))]
    stacked, linear = factory.run("stacked-narrow", 0.75), factory.run("linear", 0.75)
    against = Contrast(name="against a linear model", a="recurrent", b="linear")
    line, met = answer([*shared, stacked, linear], SHARING, against)
    assert (line["seeds"], line["half"]) == (1, None)
    # They do say what the seed moves, and keep the gap from being called a difference.
    accuracies = [right(run).mean() for run in shared]
    assert line["spread"] == pytest.approx(max(accuracies) - min(accuracies))
    assert line["verdict"] == "not distinguishable" and "the seeds overlap" in line["statement"]
    assert line["gap"] == pytest.approx(accuracies[0] - right(stacked).mean())
    assert line["low"] <= line["gap"] <= line["high"]
    assert "n = 3" not in line["statement"]
    assert (met["seeds"], met["gap"]) == (3, pytest.approx(np.mean(accuracies) - right(linear).mean()))
    other = factory.run("stacked-narrow", 0.9, seed=7)
    assert answer([*shared, other]) == []
    (table,) = summarise_runs([*shared, other])["tables"]
    assert table["tests"] == [] and "Not tested against it: recurrent" in table["conclusion"]


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
    folders = [factory.run("baseline", 0.85, seed=seed) for factory in (full, half) for seed in range(2)]
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
    whole = RunFactory(tmp_path / "whole", rows=rows)
    folders = [factory.run("recurrent", 0.745, seed=seed) for factory in (part, whole) for seed in range(2)]
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
        # Without a word they are those of the whole of SST-2.
        ({}, None, ["another split"] * 2),
        ({"data_config": {"fraction": 0.1}}, None, []),
        ({"data_config": {"length_tail": "longest"}}, None, []),
        ({"data": "reviews.csv"}, None, []),
        ({"protocol": "official"}, "6", ["another split"]),
        ({"data": "yelp_reviews", "protocol": "balanced"}, "11", ["other data"]),
        ({"data": "yelp_polarity", "protocol": "sst2-size", "training": "tuned"}, "11", ["another training"]),
        ({"protocol": "pooled", "precision": "bf16"}, "13 fp16", ["another precision"]),
        ({"protocol": "pooled", "precision": "fp16"}, "13 fp16", [""]),
        ({"protocol": "pooled", "precision": "fp32"}, "fp16 early", ["another precision"]),
    ],
)
def test_what_is_not_like_for_like_is_said(
    tmp_path: Path, values: dict[str, Any], table: str | None, differs: list[str]
) -> None:
    factory = RunFactory(tmp_path, rows={"train": 90, "validation": 30, "test": 40}, **values)
    questions = Questions(published=None if table is None else [PublishedReference(table=table)])
    runs = [factory.run(name) for name in ("recurrent", "stacked-narrow" if table is None else "recurrent-wide")]
    lines = summarise_runs(runs, questions=questions)["tables"][0]["published"]
    assert bool(lines) == bool(differs)
    assert [line["differs"] for line in lines[len(lines) - len(differs) :]] == differs
    assert table is not None or [line["accuracy"] for line in lines] == [0.9021, 0.7993][: len(differs)]


# Over the data of a study. By corpus, the accuracy of two models.
OVER_DATA = {"sst2": (0.80, 0.78), "yelp_reviews": (0.86, 0.85), "amazon_reviews": (0.75, 0.71), "domains": (0.9, 0.91)}
SEVERAL = Questions((SHARING, Contrast(name="the other way", a="stacked-narrow", b="recurrent")))


def runs_on(
    root: Path, corpora: Mapping[str, tuple[float, float]], seeds: int = 1, rows: int = 400, **values: Any
) -> list[LoadedRun]:
    folders = [
        RunFactory(root / name, data=name, rows={"train": 90, "validation": 60, "test": rows}, **values).run(
            model, accuracy, seed=seed
        )
        for name, accuracies in corpora.items()
        for model, accuracy in zip(("recurrent", "stacked-narrow"), accuracies, strict=True)
        for seed in range(seeds)
    ]
    return load_runs(folders)[0]


@pytest.fixture(scope="module")
def over_data(tmp_path_factory: pytest.TempPathFactory) -> list[LoadedRun]:
    return runs_on(tmp_path_factory.mktemp("over"), OVER_DATA, seeds=2)


def test_over_data_sets_each_counts_once_and_the_interval_is_over_them(
    over_data: list[LoadedRun], tmp_path: Path
) -> None:
    # A second part of the first corpus.
    part = runs_on(tmp_path, {"sst2": (0.7, 0.72)}, data_config={"fraction": 0.1})
    summary = summarise([*over_data, *part], questions=SEVERAL)
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


def test_two_data_sets_and_data_that_failed_an_audit_say_nothing_of_others(over_data: list[LoadedRun]) -> None:
    assert summarise([run for run in over_data if run.record.data.name < "e"], questions=SEVERAL).pooled == []
    leaks = [
        replace(run, record=run.record.model_copy(update={"audits": [leakage("test")]}))
        if run.record.data.name == "domains"
        else run
        for run in over_data
    ]
    assert set(summarise(leaks, questions=SEVERAL).pooled[0].gaps) == set(OVER_DATA) - {"domains"}


def test_files_of_one_name_are_as_many_data_sets_as_there_are_files(tmp_path: Path) -> None:
    gaps = {"x/t.csv": 0.02, "y/t.csv": 0.04, "/z/y/t.csv": 0.01, "sst2": 0.03}

    def runs(fraction: float) -> list[LoadedRun]:
        return [
            run
            for number, (path, gap) in enumerate(gaps.items())
            for run in runs_on(
                tmp_path / f"{number} {fraction}", {Path(path).name: (0.8, 0.8 - gap)}, seed=number,
                data_config={"name": path, "fraction": fraction},
            )
        ]  # fmt: skip

    # Parts of one file are one data set.
    whole = runs(1.0)
    summary = summarise(whole + runs(0.5), questions=Questions((SHARING,)))
    assert len(summary.tables) == 8
    (found,) = summary.pooled
    assert set(found.gaps) == {"x/t.csv", "y/t.csv", "z/y/t.csv", "sst2"}
    assert all(table.title.startswith(f"{table.data} · ") for table in summary.tables)
    (alone,) = {table.data for table in summarise(whole[:2]).tables}
    assert alone == "t.csv", "where nothing else has the name, it is enough"


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [((0.06, 0.07, 0.08, 0.07), "distinguishable"), ((0.1, -0.1, 0.1, -0.1), "not distinguishable")],
)
def test_a_difference_counts_if_it_is_much_the_same_on_all_data(
    gaps: tuple[float, ...], verdict: str, tmp_path: Path
) -> None:
    corpora = {name: (0.8 + gap, 0.8) for name, gap in zip(OVER_DATA, gaps, strict=True)}
    (found,) = summarise(runs_on(tmp_path, corpora, rows=2000), questions=Questions((SHARING,))).pooled
    assert found.verdict == verdict
    assert ("other data could reverse it" in found.statement) == (verdict != "distinguishable")


def test_every_place_shows_what_holds_over_all_data(over_data: list[LoadedRun], tmp_path: Path) -> None:
    summary = summarise(over_data, questions=SEVERAL)
    found = summary.pooled[0]
    gap = f"+{found.gap * 100:.1f} ± {found.half * 100:.1f}"
    (line,) = re.findall(r"^\| sharing at equal width.*$", study_page(summary, "results/x"), re.MULTILINE)
    assert gap in line.split("|")[-2]
    assert f"- {found.statement}" in [line for _, _, lines in terminal_tables(summary) for line in lines]
    page = render_report(summary, over_data, title="x")
    assert "What the study asked, over all data" in page and gap in page
    assert plain(summary)["pooled"][0]["statement"] == found.statement
    write_files(tmp_path, summary, draw(summary))
    with (tmp_path / "tables" / "pooled.csv").open(encoding="utf-8") as stream:
        assert [float(row["gap"]) for row in csv.DictReader(stream)] == [line.gap for line in summary.pooled]


# By seeds: of losses, which have no rows.
PAIRS = some.lists(some.tuples(some.floats(0.5, 9.0), some.floats(0.5, 9.0)), min_size=2, max_size=6)
Losses = Mapping[str, Mapping[int, float]]


def scored(losses: Losses) -> dict[str, ScoredModel]:
    return {
        label: ScoredModel(label, "test", tuple(of_seed), tuple(of_seed.values()), seeded=True)
        for label, of_seed in losses.items()
    }


def loss_differences(losses: Losses) -> dict[tuple[str, str], Comparison]:
    return {(pair.a, pair.b): pair for pair in compare_models(scored(losses), LOSS)}


@given(PAIRS)
def test_a_pair_is_scipys_paired_test(losses: list[tuple[float, float]]) -> None:
    gaps = [first - second for first, second in losses]
    assume(max(gaps) - min(gaps) > 1e-6)
    first, second = ([pair[place] for pair in losses] for place in (0, 1))
    found = loss_differences({"a": dict(enumerate(first)), "b": dict(enumerate(second))})["a", "b"]
    test = stats.ttest_rel(first, second)
    interval = test.confidence_interval(0.95)
    assert (found.seeds, found.gap) == (len(first), pytest.approx(sum(gaps) / len(gaps)))
    assert found.ahead("a") == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert found.p == pytest.approx(test.pvalue) == found.p_holm


def test_only_seeds_that_both_have_are_paired_and_all_pairs_are_corrected_together() -> None:
    losses: dict[str, dict[int, float]] = {
        "a": {0: 4.0, 1: 4.1, 2: 4.05},
        "b": {0: 4.2, 1: 4.31, 2: 4.24, 7: 9.0},
        "c": {1: 4.4},
        "d": {9: 4.0},
    }
    found = loss_differences(losses)
    # d shares no seed with anybody.
    assert set(found) == {("a", "b"), ("a", "c"), ("b", "c")}
    apart = found["a", "b"]
    assert apart.seeds == 3 and apart.gap == pytest.approx(-0.2) and apart.supported
    alone = found["a", "c"]
    assert (alone.seeds, alone.half, alone.p, alone.verdict) == (1, None, None, "untested")
    assert alone.gap == pytest.approx(-0.3)
    more = loss_differences({**losses, "e": {0: 4.0, 1: 4.12, 2: 4.06}})["a", "b"]
    assert more.p == pytest.approx(apart.p) and more.p_holm > apart.p_holm  # type: ignore[operator]
    # Seeds that all give the same difference prove nothing.
    same = loss_differences({"a": {0: 4.0, 1: 4.5}, "b": {0: 4.25, 1: 4.75}})["a", "b"]
    assert (same.gap, same.p, same.p_holm, same.verdict) == (-0.25, None, None, "untested")


def language_table(*contrasts: Contrast, **losses: float) -> TableSummary:
    """A table of models of one seed; a leaking one is called so."""
    records = [
        language_record(preset=name, loss=loss, leaks=name == "leaks", kind=name) for name, loss in losses.items()
    ]
    runs = [LoadedRun(Path(record.run_id), record) for record in records]
    return summarise(runs, questions=Questions(contrasts)).tables[0]


def test_one_seed_is_called_one_seed_and_what_leaks_is_held_against_nobody() -> None:
    found = language_table(best=4.0, other=4.5)
    assert "Not tested against it: other (+0.5000 nats a token)." in found.conclusion
    assert "another training could turn out differently" in found.conclusion
    (pair,) = found.tests
    assert (pair.verdict, pair.seeds, pair.gap) == ("untested", 1, pytest.approx(-0.5))
    found = language_table(Contrast(name="q", a="best", b="leaks"), best=4.0, leaks=4.0)
    assert found.tests == []
    assert found.contrasts[0].verdict == "untested" and "its figures leak" in found.contrasts[0].statement
    assert [model.fronts for model in found.models] == [["size"], []]


def contrast_by_seeds(losses: Losses) -> tuple[list[Comparison], Comparison]:
    models, key = scored(losses), TableKey("text", "packed", "f", "p", "tuned", "bf16")
    tests = compare_models(models, LOSS)
    questions = [Contrast(name="loops", a="b", b="a"), Contrast(name="absent", a="b", b="z")]
    (line,) = answer_contrasts(questions, key, {key: models}, LOSS, tests)
    return tests, line


def test_a_contrast_by_seeds_is_its_pair_and_claims_no_more() -> None:
    losses = {"a": {0: 4.0, 1: 4.1, 2: 4.05}, "b": {0: 4.2, 1: 4.31, 2: 4.24}, "c": {0: 4.1, 1: 4.0, 2: 4.2}}
    (pair, *_), line = contrast_by_seeds(losses)
    assert line.gap == pytest.approx(-pair.gap) and (pair.a, pair.b) == ("a", "b")
    assert line.p == pytest.approx(pair.p) and line.p_holm == pair.p_holm
    assert line.half is not None
    assert (line.gap - line.half, line.gap + line.half) == (*map(pytest.approx, pair.ahead("b") or ()),)
    assert (line.low, line.high, line.odds_ratio) == (None, None, None)
    assert (line.verdict == "distinguishable") == pair.supported is True
    assert line.statement.startswith("loops: b is 0.2000 ± 0.0248 nats a token above (worse than) a on test; ")


def test_a_gap_within_the_seeds_is_not_distinguishable() -> None:
    """Every seed puts a ahead by the same, and still seed 0 of b beats seed 1 of a."""
    (pair,), line = contrast_by_seeds({"a": {0: 5.8114, 1: 5.8437}, "b": {0: 5.8225, 1: 5.8542}})
    assert pair.p_holm is not None and pair.p_holm < 0.05
    assert not pair.supported and line.verdict == "not distinguishable"
    assert "not distinguishable at n = 2: the seeds overlap." in line.statement


# By length. Of eight rows, out of order: the quarters are rows 1 6, 4 0, 7 2 and 3 5.
WORDS = np.array([40, 10, 60, 70, 30, 80, 20, 50])
RIGHT = {"recurrent": [(1, 6, 4, 0, 7), (1, 6, 4, 0, 5)], "stacked-narrow": [(1, 4, 3, 5), (6, 0, 7, 2, 3, 5)]}
IDS = [f"row-{row}" for row in range(8)]
LABELS = np.array([0, 1] * 4)


def test_accuracies_and_gaps_of_quarters_are_those_by_hand(tmp_path: Path) -> None:
    factory, folders = RunFactory(tmp_path, rows={"train": 40, "test": 8}), []
    for model, seeds in RIGHT.items():
        for seed, rows in enumerate(seeds):
            folders.append(factory.run(model, seed=seed))
            predicted = np.where(np.isin(np.arange(8), rows), LABELS, 1 - LABELS)
            write_predictions(folders[-1], "test", IDS, LABELS, np.eye(2)[predicted])

    def lines(words: np.ndarray) -> dict[str, Any]:
        found = summarise_folders(folders, questions=Questions([SHARING], words={row_key(IDS, LABELS): words}))
        return {line.name: line for line in found.tables[0].by_length}

    found = lines(WORDS)
    assert found["recurrent"].values == {20: 1.0, 40: 1.0, 60: 0.25, 80: 0.25}
    assert found["stacked-narrow"].values == {20: 0.5, 40: 0.5, 60: 0.5, 80: 1.0}
    gap = found["recurrent − stacked-narrow"]
    assert gap.values == {20: 0.5, 40: 0.5, 60: -0.25, 80: -0.75}
    # Seed 0: −1 on the longest, +0.5 on the shortest; seed 1: −0.5 and +0.5.
    low, high = stats.t.interval(0.95, 1, loc=-1.25, scale=stats.sem([-1.5, -1.0]))
    assert (gap.change.gap, gap.change.half) == (pytest.approx(-1.25), pytest.approx((high - low) / 2))
    assert (gap.change.seeds, gap.change.rows, gap.change.verdict) == (2, 4, "not distinguishable")
    # Texts of one length stay together.
    together = lines(np.full(8, 7))
    assert {name: list(line.values) for name, line in together.items()} == {"stacked-narrow": [7], "recurrent": [7]}


def check_quarters(values: Mapping[int, float], lengths: np.ndarray, correct: np.ndarray) -> None:
    for low, high in itertools.pairwise([-1, *sorted(values)]):
        assert values[high] == pytest.approx(correct[(lengths > low) & (lengths <= high)].mean())


def test_the_command_reads_the_data_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["study", "report", str(RESULTS / "demo"), "--output", str(tmp_path), "--json"]
    assert main([*command, "--by-length"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    test = load_dataset(DataConfig(name="demo")).splits["test"]
    line = next(line for line in table["by_length"] if line["name"] == "linear-tuned")
    (run,) = next(model["runs"] for model in table["models"] if model["label"] == "linear-tuned")
    correct = read_predictions(RESULTS / "demo" / "runs" / run["run_id"], "test").correct
    lengths = np.array([len(text.split()) for text in test.texts])
    check_quarters({int(words): value for words, value in line["values"].items()}, lengths, correct)
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["tables"][0]["by_length"] == []
    assert main(["study", "report", str(RESULTS / "lm-exits"), "--output", str(tmp_path), "--by-length"]) == 2
    assert "'--by-length' is for classifiers" in capsys.readouterr().err


def test_the_rows_are_those_of_the_split_that_is_judged() -> None:
    (run,), _ = load_runs(read_study(RESULTS / "hops-whole")[:1])
    assert run.record.data.reported_splits[-1] != "test"
    words = word_counts([run], reporting_of("classification"), None)
    assert [*words] == [read_predictions(run.folder, "test").key]


def test_the_folds_of_a_file_are_one_table(tmp_path: Path) -> None:
    rows = [f"{'word ' * (number % 7 + 1)}{'good' if number % 2 else 'bad'},{number % 2}" for number in range(90)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows, ""]), encoding="utf-8")
    data = [{"name": str(tmp_path / "rows.csv"), "folds": 3}]
    spec = StudySpec.parse({"name": "folded", "data": data, "models": ["linear"]})
    (tmp_path / "study.yaml").write_text(write_yaml(spec.plain()), encoding="utf-8")
    for run in expand(spec):
        execute_run(StudyData(Machine(threads=1, latency=False)), tmp_path / "runs" / run.run_id, run)
    (table,) = report_records(tmp_path, command="", by_length=True).content.tables
    (line,) = table.by_length
    said = [read_predictions(run, "test") for run in (tmp_path / "runs").iterdir()]
    # Identities are lines of the file, behind its header.
    places = [int(row.rpartition("-")[2]) - 2 for of_fold in said for row in of_fold.ids]
    assert sorted(places) == list(range(90))
    check_quarters(line.values, np.array(places) % 7 + 2, np.concatenate([of_fold.correct for of_fold in said]))
