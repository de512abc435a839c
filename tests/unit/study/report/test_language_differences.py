"""Differences of losses over seeds: as SciPy's paired test has them, and said in no stronger words than that."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from language_records import language_record
from recurra.study.report.language_aggregate import summarise_language
from recurra.study.report.language_differences import loss_differences
from recurra.study.report.language_summary import LanguageRun, LanguageTable
from recurra.study.report.language_tables import difference_rows, language_markdown

PAIRS = st.lists(st.tuples(st.floats(0.5, 9.0), st.floats(0.5, 9.0)), min_size=2, max_size=6)


@given(PAIRS)
def test_a_pair_is_scipys_paired_test(losses: list[tuple[float, float]]) -> None:
    gaps = [second - first for first, second in losses]
    assume(max(gaps) - min(gaps) > 1e-6)
    first, second = ([pair[place] for pair in losses] for place in (0, 1))
    found = loss_differences({"a": dict(enumerate(first)), "b": dict(enumerate(second))})[0]
    test = stats.ttest_rel(*((first, second) if found.first == "b" else (second, first)))
    interval = test.confidence_interval(0.95)
    assert found.mean >= 0 and found.seeds == tuple(range(len(first)))
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert found.p == pytest.approx(test.pvalue) == found.p_holm


def test_only_seeds_that_both_have_are_paired_and_all_pairs_are_corrected_together() -> None:
    losses = {
        "a": {0: 4.0, 1: 4.1, 2: 4.05},
        "b": {0: 4.2, 1: 4.31, 2: 4.24, 7: 1.0},
        "c": {1: 4.4},
        "d": {9: 4.0},
    }
    found = {(pair.first, pair.second): pair for pair in loss_differences(losses)}
    # d shares no seed with anybody.
    assert set(found) == {("a", "b"), ("a", "c"), ("b", "c")}
    apart = found["a", "b"]
    assert apart.seeds == (0, 1, 2) and apart.mean == pytest.approx(0.2) and apart.supported
    alone = found["a", "c"]
    assert (alone.seeds, alone.low, alone.p, alone.supported) == ((1,), None, None, False)
    assert alone.mean == pytest.approx(0.3)

    more = {(pair.first, pair.second): pair for pair in loss_differences({**losses, "e": {0: 4.0, 1: 4.12, 2: 4.06}})}
    assert more["a", "b"].p == pytest.approx(apart.p) and more["a", "b"].p_holm > apart.p_holm  # type: ignore[operator]


def test_seeds_that_all_give_the_same_difference_prove_nothing() -> None:
    found = loss_differences({"a": {0: 4.0, 1: 4.5}, "b": {0: 4.25, 1: 4.75}})[0]
    assert (found.mean, found.p, found.p_holm, found.supported) == (0.25, None, None, False)


def table(**losses: list[float]) -> LanguageTable:
    """A table of models, each with losses for the seeds 0, 1 and so on; a leaking one is called so."""
    records = [
        language_record(preset=name, seed=seed, loss=loss, leaks=name == "leaky", kind=name)
        for name, values in losses.items()
        for seed, loss in enumerate(values)
    ]
    return summarise_language([LanguageRun(Path(record.run_id), record) for record in records]).tables[0]


def test_the_conclusion_says_what_the_seeds_support() -> None:
    found = table(near=[4.01, 4.13, 4.02], best=[4.0, 4.1, 4.05], far=[5.0, 5.11, 5.04], leaky=[0.05])
    assert found.conclusion.startswith("Best on test: best, perplexity ")
    assert "Behind it by more than the seeds explain: far (+1.000 nats a token, 95 % +0." in found.conclusion
    assert "Not distinguishable from best by their seeds, corrected for 3 pairs: near (+0.0" in found.conclusion
    assert "One seed" not in found.conclusion and "leaks" in found.conclusion
    assert all("leaky" not in (pair.first, pair.second) for pair in found.differences)


def test_one_seed_is_called_one_seed() -> None:
    found = table(best=[4.0], other=[4.5])
    assert "Behind it with one seed: other (+0.500 nats a token)." in found.conclusion
    assert "another training could turn out differently" in found.conclusion
    headings, rows = difference_rows({"differences": [vars(pair) for pair in found.differences]})
    assert rows == [["best, other", "1", "+0.5000", "–", "–", "nothing: one seed"]]
    assert len(headings) == len(rows[0])


def test_a_model_that_is_ahead_on_the_seeds_that_both_have_is_said_to_be() -> None:
    # Best by its mean, thanks to a seed that the other one lacks.
    found = table(many=[4.2, 3.0], one=[4.1])
    assert found.models[0].label == "many"
    assert "Ahead of it on the seeds that both have: one (-0.100 nats a token)." in found.conclusion


def test_a_table_of_one_model_has_no_differences() -> None:
    found = table(alone=[4.0, 4.1])
    assert found.differences == [] and "another training" not in found.conclusion
    summary = summarise_language([LanguageRun(Path("r"), language_record())]).plain()
    assert language_markdown(summary, part="differences") == "No finished run.\n"
