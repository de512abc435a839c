"""Paired tests between all models of one table, on the same rows, and what the seeds alone would move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from recurra.evaluation.significance import BootstrapDifference, discordant_odds_ratio, holm
from recurra.study.report.formatting import points
from recurra.study.report.judging import Judged, bootstrap, obstacle, paired, seed_tests, seeds_apart
from recurra.study.report.summary import PairTest, SeedTest

SIGNIFICANCE_LEVEL = 0.05


def compare_models(judged: Mapping[str, Judged]) -> list[PairTest]:
    """Tests every pair of models of a table on one split.

    * Bootstrap over rows of the difference in correctness, each row's correctness averaged over a model's seeds.
      Corrected by Holm over the pairs.
    * McNemar's test for each seed that both models have. Corrected by Holm over all seeds and pairs.

    Seeds that one model alone has are left out of both; the linear control, which no seed changes, meets every seed.

    Args:
        judged: The models of the table on the split, by label.
    """
    pairs = [paired(first, second) for first, second in combinations(judged.values(), 2) if _scored(first, second)]
    reasons = [obstacle(*pair) for pair in pairs]
    bootstraps = [None if reason else bootstrap(*pair) for pair, reason in zip(pairs, reasons, strict=True)]
    corrected = iter(holm([item.p for item in bootstraps if item is not None]))
    mcnemar_tests = [
        [] if reason else [(seeds, test.only_a, test.only_b, test.p) for seeds, test in seed_tests(*pair)]
        for pair, reason in zip(pairs, reasons, strict=True)
    ]
    corrected_seeds = iter(holm([p for of_pair in mcnemar_tests for *_, p in of_pair]))
    return [
        _pair_test(
            pair,
            bootstrap=found,
            p_holm=None if found is None else next(corrected),
            mcnemar_tests=[SeedTest(*values, next(corrected_seeds)) for values in of_pair],
            reason=reason,
        )
        for pair, reason, found, of_pair in zip(pairs, reasons, bootstraps, mcnemar_tests, strict=True)
    ]


def _scored(*models: Judged) -> bool:
    return all(model.accuracies for model in models)


def _pair_test(
    models: tuple[Judged, Judged],
    *,
    bootstrap: BootstrapDifference | None,
    p_holm: float | None,
    mcnemar_tests: list[SeedTest],
    reason: str,
) -> PairTest:
    pair = (models[0].label, models[1].label)
    values = (models[0].every_accuracy, models[1].every_accuracy)
    gap = float(np.mean(models[0].accuracies) - np.mean(models[1].accuracies))
    apart = seeds_apart(*models)
    only = [sum(getattr(test, side) for test in mcnemar_tests) for side in ("only_first", "only_second")]
    odds_ratio = discordant_odds_ratio(*only) if mcnemar_tests else None
    significant = p_holm is not None and p_holm < SIGNIFICANCE_LEVEL
    return PairTest(
        first=pair[0],
        second=pair[1],
        split=models[0].split,
        rows=0 if reason else models[0].rows,
        gap=gap,
        low=bootstrap.low if bootstrap else None,
        high=bootstrap.high if bootstrap else None,
        p=bootstrap.p if bootstrap else None,
        p_holm=p_holm,
        mcnemar=mcnemar_tests,
        odds_ratio=odds_ratio,
        seeds_apart=apart,
        supported=significant and apart is not False,
        statement=_statement(pair, values, gap, significant, apart, tested=bootstrap is not None),
        reason=reason,
    )


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
    return f"{verdict} {_seed_noise(pair, values, gap, apart)}"


def _seed_noise(
    pair: tuple[str, str], values: tuple[Sequence[float], Sequence[float]], gap: float, apart: bool | None
) -> str:
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
    overlap = "the seeds do not overlap" if apart else "the seeds overlap"
    return f"The seed alone moves {' and '.join(moved)} (points), the gap is {abs(gap) * 100:.1f}: {overlap}."
