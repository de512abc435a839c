"""Paired tests between the models of one table, on the same rows, and what the seeds alone would move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from recurra.evaluation.significance import BootstrapDifference, holm, mcnemar, paired_bootstrap
from recurra.study.report.formatting import points
from recurra.study.report.runs import Correctness, LoadedRun, load_correctness
from recurra.study.report.summary import PairTest, SeedTest

SIGNIFICANCE_LEVEL = 0.05
BOOTSTRAP_SAMPLES = 10_000
BOOTSTRAP_SEED = 6


def compare_models(groups: Mapping[str, Sequence[LoadedRun]], split: str) -> list[PairTest]:
    """Tests every pair of models of a table on one split.

    * Bootstrap over rows of the difference in correctness, each row's correctness averaged over a model's seeds.
      Corrected by Holm over the pairs.
    * McNemar's test for each seed that both models have; a model with a single run meets every seed of the other
      with it. Corrected by Holm over all seeds and pairs.

    Args:
        groups: The runs of each model, by label.
        split: The split to test on.
    """
    loaded = {label: [load_correctness(run, split) for run in runs] for label, runs in groups.items()}
    seeds = {label: [run.record.seed for run in runs] for label, runs in groups.items()}
    accuracies = {
        label: [run.record.metrics[split].accuracy for run in runs if split in run.record.metrics]
        for label, runs in groups.items()
    }
    pairs = [pair for pair in combinations(groups, 2) if all(accuracies[label] for label in pair)]
    reasons = {pair: _obstacle(loaded[pair[0]], loaded[pair[1]], split) for pair in pairs}
    tested = [pair for pair in pairs if not reasons[pair]]
    bootstraps = {pair: _bootstrap(loaded[pair[0]], loaded[pair[1]]) for pair in tested}
    corrected = dict(zip(tested, holm([bootstraps[pair].p for pair in tested]) if tested else [], strict=True))
    seed_tests = _seed_tests(tested, loaded, seeds)
    return [
        _pair_test(
            pair,
            split,
            rows=0 if reasons[pair] else len(_first(loaded[pair[0]]).correct),
            values=(accuracies[pair[0]], accuracies[pair[1]]),
            bootstrap=bootstraps.get(pair),
            p_holm=corrected.get(pair),
            mcnemar_tests=seed_tests.get(pair, []),
            reason=reasons[pair],
        )
        for pair in pairs
    ]


def _first(items: Sequence[Correctness | None]) -> Correctness:
    found = items[0]
    assert found is not None
    return found


def _obstacle(first: Sequence[Correctness | None], second: Sequence[Correctness | None], split: str) -> str:
    """Why two models cannot be tested against each other; empty if they can."""
    everything = [*first, *second]
    if any(item is None for item in everything):
        return f"the predictions on the {split} split are not on disk"
    reference = _first(everything)
    if not all(item is not None and item.same_rows(reference) for item in everything):
        return f"the models were not evaluated on the same rows of the {split} split"
    return "" if len(reference.correct) else f"the {split} split has no rows"


def _mean_correct(items: Sequence[Correctness | None]) -> NDArray[np.float64]:
    return np.mean([item.correct for item in items if item is not None], axis=0, dtype=np.float64)


def _bootstrap(first: Sequence[Correctness | None], second: Sequence[Correctness | None]) -> BootstrapDifference:
    return paired_bootstrap(_mean_correct(first), _mean_correct(second), samples=BOOTSTRAP_SAMPLES, seed=BOOTSTRAP_SEED)


def _seed_tests(
    pairs: Sequence[tuple[str, str]],
    loaded: Mapping[str, Sequence[Correctness | None]],
    seeds: Mapping[str, Sequence[int]],
) -> dict[tuple[str, str], list[SeedTest]]:
    raw: list[tuple[tuple[str, str], tuple[int, int], int, int, float]] = []
    for pair in pairs:
        for first, second in _matching_seeds(seeds[pair[0]], seeds[pair[1]]):
            a = loaded[pair[0]][seeds[pair[0]].index(first)]
            b = loaded[pair[1]][seeds[pair[1]].index(second)]
            if a is None or b is None:
                continue
            result = mcnemar(a.correct, b.correct)
            raw.append((pair, (first, second), result.only_a, result.only_b, result.p))
    corrected = holm([p for *_, p in raw]) if raw else []
    tests: dict[tuple[str, str], list[SeedTest]] = {}
    for (pair, both, only_first, only_second, p), p_holm in zip(raw, corrected, strict=True):
        tests.setdefault(pair, []).append(SeedTest(both, only_first, only_second, p, float(p_holm)))
    return tests


def _matching_seeds(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    if len(first) == 1:
        return [(first[0], seed) for seed in second]
    if len(second) == 1:
        return [(seed, second[0]) for seed in first]
    return [(seed, seed) for seed in first if seed in second]


def _pair_test(
    pair: tuple[str, str],
    split: str,
    *,
    rows: int,
    values: tuple[Sequence[float], Sequence[float]],
    bootstrap: BootstrapDifference | None,
    p_holm: float | None,
    mcnemar_tests: list[SeedTest],
    reason: str,
) -> PairTest:
    gap = float(np.mean(values[0]) - np.mean(values[1]))
    apart = _seeds_apart(*values)
    significant = p_holm is not None and p_holm < SIGNIFICANCE_LEVEL
    return PairTest(
        first=pair[0],
        second=pair[1],
        split=split,
        rows=rows,
        gap=gap,
        low=bootstrap.low if bootstrap else None,
        high=bootstrap.high if bootstrap else None,
        p=bootstrap.p if bootstrap else None,
        p_holm=p_holm,
        mcnemar=mcnemar_tests,
        seeds_apart=apart,
        supported=significant and apart is not False,
        statement=_statement(pair, values, gap, significant, apart, tested=bootstrap is not None),
        reason=reason,
    )


def _seeds_apart(first: Sequence[float], second: Sequence[float]) -> bool | None:
    """Whether the ranges of the seeds do not touch; ``None`` if neither model has a second seed."""
    if len(first) < 2 and len(second) < 2:
        return None
    return min(first) > max(second) or min(second) > max(first)


def _statement(
    pair: tuple[str, str],
    values: tuple[Sequence[float], Sequence[float]],
    gap: float,
    significant: bool,
    apart: bool | None,
    *,
    tested: bool,
) -> str:
    ahead, behind = pair if gap >= 0 else (pair[1], pair[0])
    size = points(abs(gap)).removeprefix("+").removeprefix("±")
    if not tested:
        verdict = f"{ahead} is {size} ahead, untested."
    elif not significant:
        verdict = "No difference is supported."
    elif apart is False:
        verdict = f"{ahead} is {size} ahead on these rows, but the seeds overlap: not supported."
    else:
        verdict = f"{ahead} is {size} ahead of {behind}."
    return f"{verdict} {_seed_noise(pair, values, apart)}"


def _seed_noise(pair: tuple[str, str], values: tuple[Sequence[float], Sequence[float]], apart: bool | None) -> str:
    """The gap against what the seed alone moves."""
    if apart is None:
        return "One seed each: what the seed alone moves is unknown."
    moved = [
        f"{label} by {(max(of_seed) - min(of_seed)) * 100:.1f}"
        if max(of_seed) > min(of_seed)
        else f"{label} not at all"
        for label, of_seed in zip(pair, values, strict=True)
        if len(of_seed) > 1
    ]
    gap = f"{abs(float(np.mean(values[0]) - np.mean(values[1]))) * 100:.1f}"
    overlap = "the seeds do not overlap" if apart else "the seeds overlap"
    return f"The seed alone moves {' and '.join(moved)} (points), the gap is {gap}: {overlap}."
