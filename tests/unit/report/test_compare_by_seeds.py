"""Differences of losses over seeds: as SciPy's paired test has them, and said in no stronger words than that."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from language_records import language_record
from recurra.report.statistics import ScoredModel, answer_contrasts, compare_models
from recurra.report.summary import summarise
from recurra.tasks.language.reporting import LOSS
from recurra.tasks.loaded_runs import LoadedRun, TableKey
from recurra.tasks.questions import Contrast, Questions
from recurra.tasks.summary import Comparison, TableSummary

PAIRS = st.lists(st.tuples(st.floats(0.5, 9.0), st.floats(0.5, 9.0)), min_size=2, max_size=6)


def scored(losses: dict[str, dict[int, float]]) -> dict[str, ScoredModel]:
    return {
        label: ScoredModel(label, "test", tuple(of_seed), tuple(of_seed.values()), seeded=True)
        for label, of_seed in losses.items()
    }


def loss_differences(losses: dict[str, dict[int, float]]) -> list[Comparison]:
    return compare_models(scored(losses), LOSS)


@given(PAIRS)
def test_a_pair_is_scipys_paired_test(losses: list[tuple[float, float]]) -> None:
    gaps = [first - second for first, second in losses]
    assume(max(gaps) - min(gaps) > 1e-6)
    first, second = ([pair[place] for pair in losses] for place in (0, 1))
    found = loss_differences({"a": dict(enumerate(first)), "b": dict(enumerate(second))})[0]
    test = stats.ttest_rel(first, second)
    interval = test.confidence_interval(0.95)
    assert (found.a, found.b, found.seeds, found.gap) == ("a", "b", len(first), pytest.approx(sum(gaps) / len(gaps)))
    assert found.ahead("a") == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert found.p == pytest.approx(test.pvalue) == found.p_holm


def test_only_seeds_that_both_have_are_paired_and_all_pairs_are_corrected_together() -> None:
    losses = {
        "a": {0: 4.0, 1: 4.1, 2: 4.05},
        "b": {0: 4.2, 1: 4.31, 2: 4.24, 7: 9.0},
        "c": {1: 4.4},
        "d": {9: 4.0},
    }
    found = {(pair.a, pair.b): pair for pair in loss_differences(losses)}
    # d shares no seed with anybody.
    assert set(found) == {("a", "b"), ("a", "c"), ("b", "c")}
    apart = found["a", "b"]
    assert apart.seeds == 3 and apart.gap == pytest.approx(-0.2) and apart.supported
    alone = found["a", "c"]
    assert (alone.seeds, alone.half, alone.p, alone.verdict) == (1, None, None, "untested")
    assert alone.gap == pytest.approx(-0.3)

    more = {(pair.a, pair.b): pair for pair in loss_differences({**losses, "e": {0: 4.0, 1: 4.12, 2: 4.06}})}
    assert more["a", "b"].p == pytest.approx(apart.p) and more["a", "b"].p_holm > apart.p_holm  # type: ignore[operator]


def test_seeds_that_all_give_the_same_difference_prove_nothing() -> None:
    found = loss_differences({"a": {0: 4.0, 1: 4.5}, "b": {0: 4.25, 1: 4.75}})[0]
    assert (found.gap, found.p, found.p_holm, found.verdict) == (-0.25, None, None, "untested")


def table(**losses: list[float]) -> TableSummary:
    """A table of models, each with losses for the seeds 0, 1 and so on; a leaking one is called so."""
    records = [
        language_record(preset=name, seed=seed, loss=loss, leaks=name == "leaky", kind=name)
        for name, values in losses.items()
        for seed, loss in enumerate(values)
    ]
    return summarise([LoadedRun(Path(record.run_id), record) for record in records]).tables[0]


def test_one_seed_is_called_one_seed() -> None:
    found = table(best=[4.0], other=[4.5])
    assert "Not tested against it: other (+0.5000 nats a token)." in found.conclusion
    assert "another training could turn out differently" in found.conclusion
    (pair,) = found.tests
    assert (pair.verdict, pair.seeds, pair.gap) == ("untested", 1, pytest.approx(-0.5))


def test_a_table_of_one_model_has_no_differences() -> None:
    found = table(alone=[4.0, 4.1])
    assert found.tests == [] and "another training" not in found.conclusion


def answer(losses: dict[str, dict[int, float]]) -> tuple[list[Comparison], list[dict]]:
    models = scored(losses)
    key = TableKey("text", "packed", "f", "p", "tuned", "bf16")
    tests = compare_models(models, LOSS)
    questions = [Contrast(name="loops", a="b", b="a"), Contrast(name="absent", a="b", b="z")]
    return tests, [vars(line) for line in answer_contrasts(questions, key, {key: models}, LOSS, tests)]


def test_a_contrast_by_seeds_is_its_pair_and_claims_no_more() -> None:
    losses = {"a": {0: 4.0, 1: 4.1, 2: 4.05}, "b": {0: 4.2, 1: 4.31, 2: 4.24}, "c": {0: 4.1, 1: 4.0, 2: 4.2}}
    tests, (line,) = answer(losses)
    pair = next(test for test in tests if {test.a, test.b} == {"a", "b"})
    assert line["gap"] == pytest.approx(-pair.gap) and (pair.a, pair.b) == ("a", "b")
    assert line["p"] == pytest.approx(pair.p) and line["p_holm"] == pair.p_holm
    assert (line["gap"] - line["half"], line["gap"] + line["half"]) == (*map(pytest.approx, pair.ahead("b") or ()),)
    assert (line["low"], line["high"], line["odds_ratio"]) == (None, None, None)
    assert (line["verdict"] == "distinguishable") == pair.supported is True
    assert line["statement"].startswith("loops: b is 0.2000 ± 0.0248 nats a token above (worse than) a on test; ")


def test_a_gap_within_the_seeds_is_not_distinguishable() -> None:
    """Every seed puts a ahead by the same, and still seed 0 of b beats seed 1 of a."""
    tests, (line,) = answer({"a": {0: 5.8114, 1: 5.8437}, "b": {0: 5.8225, 1: 5.8542}})
    assert tests[0].p_holm is not None and tests[0].p_holm < 0.05
    assert not tests[0].supported and line["verdict"] == "not distinguishable"
    assert "not distinguishable at n = 2: the seeds overlap." in line["statement"]


def test_what_leaks_is_held_against_nobody_and_the_contrast_says_why() -> None:
    records = [language_record(preset=name, leaks="leaks" in name, kind=name) for name in ("crt", "crt-leaks")]
    runs = [LoadedRun(Path(record.run_id), record) for record in records]
    (table,) = summarise(runs, questions=Questions([Contrast(name="q", a="crt", b="crt-leaks")])).tables
    assert table.tests == []
    assert table.contrasts[0].verdict == "untested" and "its figures leak" in table.contrasts[0].statement
    assert [model.fronts for model in table.models] == [["size"], []]
