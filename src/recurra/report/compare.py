"""Models of a table held against each other by any measure: on the same rows, or by seeds where none are on disk."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from recurra.core.errors import RecurraError
from recurra.evaluation.audits.grading import kept_rows
from recurra.evaluation.audits.registry import meaning
from recurra.evaluation.predictions import read_correctness
from recurra.evaluation.significance import (
    BootstrapDifference,
    McNemarTest,
    discordant_odds_ratio,
    holm,
    mcnemar,
    mean_interval,
    paired_bootstrap,
    paired_bootstrap_by_class,
    weighted_bootstrap,
)
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.measures import LogitScore, Measure
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import SIGNIFICANCE_LEVEL, AuditLine, ModelSummary, PairTest, SeedTest

# Resamples of what takes the logits; fewer where labels times rows are many, for every one passes over all of them.
_MOST_SAMPLES = 2_000
_FEWEST_SAMPLES = 400
_WEIGHTED_CELLS = 500_000_000

Mask = NDArray[np.bool_]
KnownRows = dict[bytes, tuple[bytes, NDArray[np.int64]]]


@dataclass(frozen=True)
class Correctness:
    """Which rows of a split a run got right.

    Attributes:
        rows_key: Hash of the identifiers and true labels of the rows, in order.
        correct: Whether the prediction is right, ``(rows,)`` of bool.
        truth: True labels, ``(rows,)``, where they were asked for.
        predicted: Predicted labels, likewise.
        logits: ``(rows, labels)``, likewise.
    """

    rows_key: bytes
    correct: NDArray[np.bool_]
    truth: NDArray[np.int64] | None = None
    predicted: NDArray[np.int64] | None = None
    logits: NDArray[np.float32] | None = None

    def only(self, rows: Mask) -> Correctness:
        """The same of some of the rows."""
        kept: dict[str, Any] = {name: part[rows] for name, part in vars(self).items() if isinstance(part, np.ndarray)}
        return replace(self, **kept)


@dataclass(frozen=True)
class ScoredModel:
    """The runs of one model on one split, read once and ready to be held against another's.

    Attributes:
        values: The measure of each run; empty if one was not evaluated on the split.
        correct: Which rows each run got right; none where the predictions cannot be read, or are not asked for.
        every_value: The measure of each run that there is, those that `only` leaves out too: what the seed alone moves.
    """

    label: str
    split: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    correct: tuple[Correctness | None, ...]
    seeded: bool
    every_value: tuple[float, ...]
    barred: str = ""

    def only(self, runs: Collection[int]) -> ScoredModel:
        """The same with some of the runs, by their positions."""
        kept = sorted(set(runs))
        if len(kept) == len(self.seeds):
            return self
        return replace(
            self,
            seeds=tuple(self.seeds[index] for index in kept),
            values=tuple(self.values[index] for index in kept),
            correct=tuple(self.correct[index] for index in kept),
        )

    @property
    def rows(self) -> int:
        """Rows of the split; 0 if no predictions can be read."""
        return next((len(item.correct) for item in self.correct if item is not None), 0)

    @cached_property
    def mean_correct(self) -> NDArray[np.float64]:
        """Share of the seeds that get each row right, ``(rows,)``."""
        right = [item.correct for item in self.correct if item is not None]
        return np.mean(right, axis=0, dtype=np.float64)

    @property
    def said(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """True labels ``(rows,)`` and what each seed says, ``(seeds, rows)``."""
        known = [(item.truth, item.predicted) for item in self.correct if item is not None]
        predicted = [said for _, said in known if said is not None]
        truth = known[0][0]
        assert truth is not None
        return truth, np.stack(predicted)

    @property
    def logits(self) -> list[NDArray[np.float32]]:
        """Of each seed, ``(rows, labels)``."""
        return [item.logits for item in self.correct if item is not None and item.logits is not None]

    @property
    def spread(self) -> float | None:
        """What the seed alone moves: the best seed less the worst one; none for a single run."""
        return max(self.every_value) - min(self.every_value) if len(self.every_value) > 1 else None


def scored_model(
    label: str,
    runs: Sequence[LoadedRun],
    split: str,
    reporting: Reporting,
    *,
    measure: Measure,
    known: KnownRows | None = None,
) -> ScoredModel:
    """Reads how a model's runs did on a split.

    Rows that are ``known`` are not decoded again, see `recurra.evaluation.predictions.read_correctness`. Of the files
    of folds the task knows.
    """
    evaluated = all(split in run.record.metrics for run in runs)
    values = tuple(measure.of_run(run.record.metrics[split]) for run in runs) if evaluated else ()
    return ScoredModel(
        label=label,
        split=split,
        seeds=tuple(run.record.seed for run in runs),
        values=values,
        correct=tuple(
            _read_rows(run, split, reporting, known, measure)
            if measure.paired_by_rows and split in run.record.metrics
            else None
            for run in runs
        ),
        seeded=not all(reporting.stands_everywhere(run) for run in runs),
        every_value=values,
        barred=reporting.barred(runs, split, measure),
    )


def _read_rows(
    run: LoadedRun, split: str, reporting: Reporting, known: KnownRows | None, measure: Measure
) -> Correctness | None:
    """None if the predictions are not on disk, or damaged."""
    try:
        if not (measure.by_labels or run.folds):
            return Correctness(*read_correctness(run.folder, split, known))
        rows = reporting.predictions(run, split)
    except RecurraError:
        return None
    more = (rows.labels, rows.predicted, rows.logits) if measure.by_labels else ()
    return Correctness(rows.key, rows.correct, *more)


def obstacle(first: ScoredModel, second: ScoredModel) -> str:
    """Why two models cannot be tested against each other by rows; empty if they can."""
    if not paired_seeds(first, second):
        return "the models have no seed in common"
    everything = [*first.correct, *second.correct]
    known = [item for item in everything if item is not None]
    if len(known) < len(everything):
        return f"the predictions on the {first.split} split are not on disk"
    if len({item.rows_key for item in known}) > 1:
        return f"the models were not evaluated on the same rows of the {first.split} split"
    return "" if first.rows else f"the {first.split} split has no rows"


def bootstrap_gap(first: ScoredModel, second: ScoredModel, measure: Measure) -> BootstrapDifference:
    """Paired bootstrap over rows: of each row's value averaged over a model's seeds, or of what takes all classes."""
    if not measure.by_labels:
        steps = math.lcm(len(first.correct), len(second.correct))
        return paired_bootstrap(first.mean_correct, second.mean_correct, steps=steps)
    truth, a = first.said
    _, b = second.said
    if measure.of_rows is not None:
        values = [np.mean([measure.of_rows(truth, said) for said in side], axis=0) for side in (a, b)]
        return paired_bootstrap(*values)
    if measure.of_logits is not None:
        return _bootstrap_of_logits(truth, (first.logits, second.logits), measure.of_logits)
    assert measure.of_classes is not None
    labels = int(max(truth.max(), a.max(), b.max())) + 1
    return paired_bootstrap_by_class(truth, a, b, labels=labels, score=measure.of_classes)


def _bootstrap_of_logits(
    truth: NDArray[np.int64], sides: tuple[Sequence[NDArray[np.float32]], ...], score: LogitScore
) -> BootstrapDifference:
    a, b = ([score(truth, logits) for logits in side] for side in sides)
    cells = len(truth) * sum(logits.shape[1] for side in sides for logits in side)
    samples = min(_MOST_SAMPLES, max(_FEWEST_SAMPLES, _WEIGHTED_CELLS // cells))

    def gap(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        means = [np.mean([value(weights) for value in side], axis=0) for side in (a, b)]
        difference: NDArray[np.float64] = means[0] - means[1]
        return difference

    return weighted_bootstrap(gap, np.ones(len(truth)), samples=samples)


def value_of(item: Correctness, measure: Measure) -> float:
    """A measure of the rows of one run."""
    if not measure.by_labels:
        return float(item.correct.mean())
    assert item.truth is not None
    assert item.predicted is not None
    if measure.of_rows is not None:
        return float(measure.of_rows(item.truth, item.predicted).mean())
    if measure.of_logits is not None:
        assert item.logits is not None
        return float(measure.of_logits(item.truth, item.logits)(None))
    assert measure.of_classes is not None
    least = int(max(item.truth.max(), item.predicted.max())) + 1
    right = np.bincount(item.truth[item.correct], minlength=least).astype(np.float64)
    support, said = (np.bincount(each, minlength=least).astype(np.float64) for each in (item.truth, item.predicted))
    return float(measure.of_classes(right, support, said))


def paired_seeds(first: ScoredModel, second: ScoredModel) -> list[tuple[int, int]]:
    """Positions of the runs to hold against each other: equal seeds; what no seed changes meets every seed."""
    if not first.seeded and len(first.seeds) == 1:
        return [(0, index) for index in range(len(second.seeds))]
    if not second.seeded and len(second.seeds) == 1:
        return [(index, 0) for index in range(len(first.seeds))]
    return [(index, second.seeds.index(seed)) for index, seed in enumerate(first.seeds) if seed in second.seeds]


def paired(first: ScoredModel, second: ScoredModel) -> tuple[ScoredModel, ScoredModel]:
    """Both with the runs of `paired_seeds` alone: a seed that one side alone has says nothing of the difference.

    It still says what the seed moves, and may keep a difference from being supported.
    Models without a seed in common stay as they are; `obstacle` names it.
    """
    pairs = paired_seeds(first, second)
    return (first.only([i for i, _ in pairs]), second.only([j for _, j in pairs])) if pairs else (first, second)


def seed_tests(first: ScoredModel, second: ScoredModel) -> list[tuple[tuple[int, int], McNemarTest]]:
    """McNemar's test for each pair of seeds that has predictions."""
    tests = []
    for i, j in paired_seeds(first, second):
        a, b = first.correct[i], second.correct[j]
        if a is not None and b is not None:
            tests.append(((first.seeds[i], second.seeds[j]), mcnemar(a.correct, b.correct)))
    return tests


def seeds_apart(first: ScoredModel, second: ScoredModel) -> bool | None:
    """Whether the ranges of the seeds do not touch; none if neither model has a second seed."""
    a, b = first.every_value, second.every_value
    if len(a) < 2 and len(b) < 2:
        return None
    return min(a) > max(b) or min(b) > max(a)


def seed_p_value(gaps: Sequence[float]) -> float | None:
    """Of the paired t-test that a mean of gaps is 0, two-sided; none with one pair, or if all gaps are the same."""
    interval = mean_interval(gaps)
    if not interval.sd:
        return None
    statistic = interval.mean / (interval.sd / math.sqrt(len(gaps)))
    return float(2 * special.stdtr(len(gaps) - 1, -abs(statistic)))


def compare_models(models: Mapping[str, ScoredModel], measure: Measure) -> list[PairTest]:
    """Tests every pair of models of a table on one split.

    By rows:

    * Bootstrap over rows of the difference in correctness, each row's correctness averaged over a model's seeds.
      Corrected by Holm over the pairs.
    * McNemar's test for each seed that both models have. Corrected by Holm over all seeds and pairs.

    By seeds: the seed sets the first weights and the order of the data, so equal seeds are paired (Student's t).
    Corrected by Holm over the pairs. What other data would give is not in it.

    Seeds that one model alone has are left out of all; what no seed changes meets every seed.
    """
    pairs = [
        paired(first, second)
        for first, second in combinations(models.values(), 2)
        if first.values and second.values and not first.barred and not second.barred
    ]
    return _by_rows(pairs, measure) if measure.paired_by_rows else _by_seeds(pairs, measure)


def _by_rows(pairs: Sequence[tuple[ScoredModel, ScoredModel]], measure: Measure) -> list[PairTest]:
    reasons = [obstacle(*pair) for pair in pairs]
    bootstraps = [
        None if reason else bootstrap_gap(*pair, measure) for pair, reason in zip(pairs, reasons, strict=True)
    ]
    corrected = iter(holm([item.p for item in bootstraps if item is not None]))
    mcnemar_tests = [
        [] if reason else [(seeds, test.only_a, test.only_b, test.p) for seeds, test in seed_tests(*pair)]
        for pair, reason in zip(pairs, reasons, strict=True)
    ]
    corrected_seeds = iter(holm([p for of_pair in mcnemar_tests for *_, p in of_pair]))
    return [
        _row_test(
            pair,
            measure,
            bootstrap=found,
            p_holm=None if found is None else next(corrected),
            mcnemar_tests=[SeedTest(*values, next(corrected_seeds)) for values in of_pair],
            reason=reason,
        )
        for pair, reason, found, of_pair in zip(pairs, reasons, bootstraps, mcnemar_tests, strict=True)
    ]


def _row_test(
    models: tuple[ScoredModel, ScoredModel],
    measure: Measure,
    *,
    bootstrap: BootstrapDifference | None,
    p_holm: float | None,
    mcnemar_tests: list[SeedTest],
    reason: str,
) -> PairTest:
    gap = float(np.mean(models[0].values) - np.mean(models[1].values))
    apart = seeds_apart(*models)
    only = [sum(getattr(test, side) for test in mcnemar_tests) for side in ("only_first", "only_second")]
    significant = p_holm is not None and p_holm < SIGNIFICANCE_LEVEL
    return PairTest(
        first=models[0].label,
        second=models[1].label,
        split=models[0].split,
        seeds=models[0].seeds,
        rows=0 if reason else models[0].rows,
        gap=gap,
        low=bootstrap.low if bootstrap else None,
        high=bootstrap.high if bootstrap else None,
        p=bootstrap.p if bootstrap else None,
        p_holm=p_holm,
        mcnemar=mcnemar_tests,
        odds_ratio=discordant_odds_ratio(*only) if mcnemar_tests else None,
        seeds_apart=apart,
        supported=significant and apart is not False,
        statement=_statement(models, measure, gap, significant, apart, tested=bootstrap is not None),
        reason=reason,
    )


def _statement(
    models: tuple[ScoredModel, ScoredModel],
    measure: Measure,
    gap: float,
    significant: bool,
    apart: bool | None,
    *,
    tested: bool,
) -> str:
    ahead, behind = (model.label for model in (models if measure.merit(gap) >= 0 else models[::-1]))
    size = measure.size(gap)
    if not tested:
        verdict = f"{ahead} is {size} ahead, untested."
    elif not significant:
        verdict = "No difference is supported."
    elif apart is False:
        verdict = f"{ahead} is {size} ahead on these rows, but the seeds overlap: not supported."
    else:
        verdict = f"{ahead} is {size} ahead of {behind}."
    return f"{verdict} {_seed_noise(models, measure, gap, apart)}"


def _seed_noise(models: tuple[ScoredModel, ScoredModel], measure: Measure, gap: float, apart: bool | None) -> str:
    """The gap against what the seed alone moves."""
    if apart is None:
        return "One seed each: what the seed alone moves is unknown."
    moved = [
        f"{model.label} by {measure.number(model.spread)}" if model.spread else f"{model.label} not at all"
        for model in models
        if model.spread is not None
    ]
    overlap = "the seeds do not overlap" if apart else "the seeds overlap"
    size = measure.number(abs(gap))
    return f"The seed alone moves {' and '.join(moved)} ({measure.unit}), the gap is {size}: {overlap}."


def _by_seeds(pairs: Sequence[tuple[ScoredModel, ScoredModel]], measure: Measure) -> list[PairTest]:
    found = [_seed_test(first, second, measure) for first, second in pairs if paired_seeds(first, second)]
    corrected = iter(holm([test.p for test in found if test.p is not None]))
    return [_judged(test if test.p is None else replace(test, p_holm=next(corrected))) for test in found]


def _seed_test(first: ScoredModel, second: ScoredModel, measure: Measure) -> PairTest:
    """The test of a pair, the better of the two first."""
    pairs = paired_seeds(first, second)
    gaps = [measure.merit(first.values[i]) - measure.merit(second.values[j]) for i, j in pairs]
    interval = mean_interval(gaps)
    if interval.mean < 0:
        return _seed_test(second, first, measure)
    return PairTest(
        first=first.label,
        second=second.label,
        split=first.split,
        seeds=tuple(sorted(first.seeds[i] for i, _ in pairs)),
        rows=0,
        gap=interval.mean,
        low=interval.low,
        high=interval.high,
        p=seed_p_value(gaps),
        p_holm=None,
        mcnemar=[],
        odds_ratio=None,
        seeds_apart=seeds_apart(first, second),
        supported=False,
        statement="",
    )


def _judged(test: PairTest) -> PairTest:
    supported = test.p_holm is not None and test.p_holm < SIGNIFICANCE_LEVEL
    if test.low is None:
        return replace(test, statement="nothing: one seed")
    return replace(test, supported=supported, statement=f"{test.first} is better" if supported else "no difference")


def judge_leaks(
    lines: Sequence[AuditLine],
    runs: Sequence[LoadedRun],
    scored: Mapping[str, ScoredModel],
    tests: Sequence[PairTest],
    measure: Measure,
) -> list[AuditLine]:
    """Fails the notes on rows without which the verdict of a table is another one.

    Returns:
        The same lines; those on rows of that split say what the verdict is without them. Unchanged where the
        predictions are not on disk, or there is nothing to compare.
    """
    known = [item for model in scored.values() for item in model.correct]
    rows = next((len(item.correct) for item in known if item is not None), 0)
    split = next(iter(scored.values())).split if scored else ""
    if (
        not measure.paired_by_rows
        or len(scored) < 2
        or any(item is None or len(item.correct) != rows for item in known)
    ):
        return list(lines)
    found: dict[str, Mask] = {}
    for run in runs:
        for audit in run.record.audits:
            if audit.status in ("note", "failed") and (mask := kept_rows(audit, rows)) is not None:
                found.setdefault(audit.name, mask)
    return [
        _judge(line, scored, tests, measure, ~found[line.name])
        if line.status == "note" and line.split == split and line.name in found
        else line
        for line in lines
    ]


def mark_failed(
    models: Sequence[ModelSummary], before: Sequence[AuditLine], after: Sequence[AuditLine]
) -> list[ModelSummary]:
    """The models, which carry what failed in their names' rows, with the lines that `judge_leaks` made fail."""
    new = [line for old, line in zip(before, after, strict=True) if old.status != line.status]
    if not new:
        return list(models)
    names, groups = [line.name for line in new], [line.group for line in new]
    return [
        replace(
            model,
            failed_audits=list(dict.fromkeys([*model.failed_audits, *names])),
            failed_groups=list(dict.fromkeys([*model.failed_groups, *groups])),
        )
        for model in models
    ]


def _judge(
    line: AuditLine, scored: Mapping[str, ScoredModel], tests: Sequence[PairTest], measure: Measure, rest: Mask
) -> AuditLine:
    if not rest.any():
        return line
    without = {label: _only_rows(model, rest, measure) for label, model in scored.items()}
    before, after = (_supported(each, measure) for each in (tests, compare_models(without, measure)))
    said = [f"{ahead} is no longer supported to be better than {behind}" for ahead, behind in sorted(before - after)]
    said += [f"{ahead} is supported to be better than {behind}" for ahead, behind in sorted(after - before)]
    if said:
        summary = f"{line.summary}; without these rows the verdict changes: {'; '.join(said)}"
        return replace(line, status="failed", summary=summary, meaning=meaning(line.name))
    best = [
        max(models, key=lambda label: measure.merit(float(np.mean(models[label].values))))
        for models in (scored, without)
    ]
    other = (
        f" ({best[1]} instead of {best[0]} scores highest, by no supported difference)" if best[0] != best[1] else ""
    )
    return replace(line, summary=f"{line.summary}; without these rows the verdict is the same{other}")


def _only_rows(model: ScoredModel, rows: Mask, measure: Measure) -> ScoredModel:
    correct = [item.only(rows) for item in model.correct if item is not None]
    values = tuple(value_of(item, measure) for item in correct)
    return replace(model, correct=tuple(correct), values=values, every_value=values)


def _supported(tests: Sequence[PairTest], measure: Measure) -> set[tuple[str, str]]:
    """Pairs of a model and one that it is supported to be better than."""
    return {
        (test.first, test.second) if measure.merit(test.gap) > 0 else (test.second, test.first)
        for test in tests
        if test.supported
    }
