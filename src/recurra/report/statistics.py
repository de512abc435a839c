"""Compares the models of a table by any measure: every pair, and the contrasts that a study file names.

A contrast is a named pair: both are tested on the same rows, or by seeds where no rows are on disk.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from recurra.core.errors import RecurraError
from recurra.core.terminal import p_value, words
from recurra.evaluation.audits.grading import kept_rows
from recurra.evaluation.audits.registry import meaning
from recurra.evaluation.significance import (
    BootstrapDifference,
    bootstrap_between,
    discordant_odds_ratio,
    holm,
    mean_interval,
    paired_bootstrap,
    paired_bootstrap_by_class,
    weighted_bootstrap,
)
from recurra.tasks.loaded_runs import LoadedRun, TableKey
from recurra.tasks.measures import LogitScore, Measure, RowScore
from recurra.tasks.questions import Contrast, split_side
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import (
    SIGNIFICANCE_LEVEL,
    AuditLine,
    Comparison,
    LengthLine,
    PooledContrast,
    TableSummary,
    Verdict,
)

# Resamples of a measure of logits; fewer for many labels times rows, because each one passes over all of them.
_MOST_SAMPLES = 2_000
_FEWEST_SAMPLES = 400
_WEIGHTED_CELLS = 500_000_000
# Student's interval over two is 12.7 standard errors wide on each side.
_LEAST_POOLED = 3

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Predictions of the runs of a model on the rows of a split.

    Attributes:
        key: Hash of the identifiers and true labels, in order.
        truth: True labels, ``(rows,)``.
        predicted: ``(runs, rows)``.
        logits: Calibrated, ``(runs, rows, labels)``, where the measure ranks by them.
        runs: Positions of the runs whose predictions could be read.
    """

    key: bytes
    truth: Labels
    predicted: Labels
    logits: NDArray[np.floating[Any]] | None = None
    runs: tuple[int, ...] = (0,)
    _means: dict[RowScore, Floats] = field(default_factory=dict, init=False, repr=False, compare=False)

    def select_runs(self, runs: Sequence[int]) -> Rows:
        """The rows of some of the runs, by their positions."""
        if tuple(runs) == self.runs:
            return self
        positions = [self.runs.index(run) for run in runs]
        logits = None if self.logits is None else self.logits[positions]
        return replace(self, predicted=self.predicted[positions], logits=logits, runs=tuple(runs))

    def select_rows(self, mask: Mask) -> Rows:
        """Restricts to the rows of a mask."""
        logits = None if self.logits is None else self.logits[:, mask]
        return replace(self, truth=self.truth[mask], predicted=self.predicted[:, mask], logits=logits)

    @cached_property
    def correct(self) -> Mask:
        """Whether each run gets each row right, ``(runs, rows)``."""
        right: Mask = self.predicted == self.truth
        return right

    def right(self, runs: Sequence[int]) -> Mask:
        """Whether each of some runs gets each row right, ``(runs, rows)``; a run may come several times."""
        return self.correct[[self.runs.index(run) for run in runs]]

    def means(self, of_rows: RowScore) -> Floats:
        """Score of each row, averaged over the runs; computed once for each score."""
        if of_rows not in self._means:
            self._means[of_rows] = np.mean([of_rows(self.truth, answers) for answers in self.predicted], axis=0)
        return self._means[of_rows]

    def values(self, measure: Measure) -> tuple[float, ...]:
        """The measure of each run on these rows."""
        if measure.of_logits is not None:
            assert self.logits is not None
            return tuple(float(measure.of_logits(self.truth, run_logits)(None)) for run_logits in self.logits)
        if measure.of_classes is None:
            return tuple(float(measure.of_rows(self.truth, predicted).mean()) for predicted in self.predicted)
        labels = int(max(self.truth.max(), self.predicted.max())) + 1

        def counts(classes: Labels) -> Floats:
            return np.bincount(classes, minlength=labels).astype(np.float64)

        return tuple(
            float(measure.of_classes(counts(self.truth[answers == self.truth]), counts(self.truth), counts(answers)))
            for answers in self.predicted
        )


@dataclass(frozen=True)
class ScoredModel:
    """The runs of one model on one split, read once and ready to be compared with another model's.

    Attributes:
        values: The measure of each run; empty if one was not evaluated on the split.
        seeded: Whether the seed changes anything.
        rows: Predictions of the runs; None if they cannot be read or are not needed.
        unread: Why ``rows`` cannot be read.
        barred: Why the model is not compared with others.
    """

    label: str
    split: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    seeded: bool
    rows: Rows | None = None
    unread: str = ""
    barred: str = ""


ScoredTables = Mapping[TableKey, Mapping[str, ScoredModel]]


def scored_model(
    label: str, runs: Sequence[LoadedRun], split: str, reporting: Reporting, *, measure: Measure
) -> ScoredModel:
    """Reads measures and predictions of a model's runs on a split."""
    evaluated = all(split in run.record.metrics for run in runs)
    rows, unread = _read_rows(label, runs, split, measure) if measure.paired_by_rows and evaluated else (None, "")
    return ScoredModel(
        label=label,
        split=split,
        seeds=tuple(run.record.seed for run in runs),
        values=tuple(measure.of_run(run.record.metrics[split]) for run in runs) if evaluated else (),
        seeded=not all(reporting.stands_everywhere(run) for run in runs),
        rows=rows,
        unread=unread,
        barred=reporting.barred(runs, split, measure),
    )


def _read_rows(label: str, runs: Sequence[LoadedRun], split: str, measure: Measure) -> tuple[Rows | None, str]:
    """Rows of the runs with whole predictions on disk; None, and why, if no run has any or their rows differ."""
    truths: dict[bytes, Labels] = {}
    predicted: dict[int, Labels] = {}
    logits = []
    for position, run in enumerate(runs):
        with contextlib.suppress(RecurraError):
            predictions = run.predictions(split, calibrated=measure.ranks)
            truths[predictions.key], predicted[position] = predictions.labels, predictions.predicted
            if measure.ranks:
                logits.append(predictions.logits)
    if len(truths) > 1:
        return None, f"the seeds of {label} were not evaluated on the same rows of the {split} split"
    if not any(truth.size for truth in truths.values()):
        return None, _missing(split)
    ((key, truth),) = truths.items()
    stacked, ranked = np.stack(list(predicted.values())), np.stack(logits) if measure.ranks else None
    return Rows(key, truth, stacked, ranked, tuple(predicted)), ""


def _missing(split: str) -> str:
    return f"the predictions on the {split} split are not on disk, or have no rows"


def paired_seeds(first: ScoredModel, second: ScoredModel) -> list[tuple[int, int]]:
    """Positions of the runs to compare: equal seeds; a run that no seed changes is paired with every seed."""
    if not first.seeded and len(first.seeds) == 1:
        return [(0, index) for index in range(len(second.seeds))]
    if not second.seeded and len(second.seeds) == 1:
        return [(index, 0) for index in range(len(first.seeds))]
    return [(index, second.seeds.index(seed)) for index, seed in enumerate(first.seeds) if seed in second.seeds]


def seed_p_value(gaps: Sequence[float]) -> float | None:
    """Two-sided p value of the paired t-test that the mean gap is 0; None for one pair or if all gaps are equal."""
    interval = mean_interval(gaps)
    if not interval.sd:
        return None
    statistic = interval.mean / (interval.sd / math.sqrt(len(gaps)))
    return float(2 * special.stdtr(len(gaps) - 1, -abs(statistic)))


def bootstrap_gap(first: Rows, second: Rows, measure: Measure) -> BootstrapDifference:
    """Paired bootstrap over rows: of each row's value averaged over a model's runs, or of a measure of all rows."""
    truth, a, b = first.truth, first.predicted, second.predicted
    if measure.of_logits is not None:
        assert first.logits is not None and second.logits is not None
        return _bootstrap_of_logits(truth, (first.logits, second.logits), measure.of_logits)
    if measure.of_classes is not None:
        labels = int(max(truth.max(), a.max(), b.max())) + 1
        return paired_bootstrap_by_class(truth, a, b, labels=labels, score=measure.of_classes)
    return paired_bootstrap(first.means(measure.of_rows), second.means(measure.of_rows))


def _bootstrap_of_logits(
    truth: Labels, sides: Sequence[NDArray[np.floating[Any]]], score: LogitScore
) -> BootstrapDifference:
    scores = [[score(truth, logits) for logits in side] for side in sides]
    samples = min(_MOST_SAMPLES, max(_FEWEST_SAMPLES, _WEIGHTED_CELLS // sum(side.size for side in sides)))

    def gap(weights: Floats) -> Floats:
        first, second = (np.mean([value(weights) for value in side], axis=0) for side in scores)
        return first - second

    return weighted_bootstrap(gap, np.ones(len(truth)), samples=samples)


def compare_models(models: Mapping[str, ScoredModel], measure: Measure) -> list[Comparison]:
    """Tests every pair of models of a table on one split that have a seed in common.

    By rows: bootstrap over rows of the difference in correctness, each row's correctness averaged over a model's seeds.
    Corrected by Holm over the pairs.

    By seeds: the seed sets the first weights and the order of the data, so equal seeds are paired (Student's t).
    Corrected by Holm over the pairs. The uncertainty from other data is not included.

    A seed that only one model has does not enter the difference, but the spread over its seeds may keep a difference
    from being supported.
    """
    comparable = [model for model in models.values() if not model.barred]
    pairs = [_compare(a, b, measure) for a, b in combinations(comparable, 2)]
    return _judged([line for line in pairs if line is not None], measure, {})


def answer_contrasts(
    contrasts: Sequence[Contrast], key: TableKey, scored: ScoredTables, measure: Measure, tests: Sequence[Comparison]
) -> list[Comparison]:
    """Answers each contrast that has both of its models in a table, with a seed in common.

    By rows, a difference counts as distinguishable only if all of these hold: the paired bootstrap over rows, corrected
    by Holm over the contrasts of the table, has p below 0.05; with several seeds, the interval of the gap over seeds
    leaves out 0; and the seeds of the two models do not overlap. Rows speak for other data, seeds for another training:
    with one seed, a difference counts by rows only.

    By seeds, the paired t-test takes the place of the bootstrap, corrected over all pairs of the table, so that a
    contrast never claims what the test of its pair does not; the seeds must not overlap either.

    Args:
        key: The table. A side that names a precision is looked up in the table of that precision; the contrast belongs
            to the table of side ``a``.
        tests: Tests between the models of the table.
    """
    pairs = {(test.a, test.b): test for test in tests}
    lines, known = [], {}
    for contrast in contrasts:
        a, b = (_side(side, key, scored) for side in (contrast.a, contrast.b))
        if a is None or b is None or split_side(contrast.a)[1] not in (None, key.precision):
            continue
        same_table = all(model is scored[key].get(model.label) for model in (a, b))
        table_pairs = pairs if same_table else {}
        pair, reverse = table_pairs.get((a.label, b.label)), table_pairs.get((b.label, a.label))
        # The test of a pair is used again; a pair the other way round is resampled.
        tested = pair or _compare(a, b, measure)
        if tested is not None:
            lines.append(replace(tested, name=contrast.name, a=contrast.a, b=contrast.b))
        if (either := pair or reverse) is not None and not measure.paired_by_rows:
            known[contrast.a, contrast.b] = either.p_holm
    return _judged(lines, measure, known)


def _side(side: str, key: TableKey, scored: ScoredTables) -> ScoredModel | None:
    model, precision = split_side(side)
    table = key if precision is None else key._replace(precision=precision)
    return scored.get(table, {}).get(model)


def _compare(a: ScoredModel, b: ScoredModel, measure: Measure) -> Comparison | None:
    """The gap of two models and its test, not yet corrected; None if they have no seed, or no split, in common."""
    read = _read_pairs(a, b)
    pairs = read or paired_seeds(a, b)
    if not (pairs and a.values and b.values and a.split == b.split):
        return None
    gaps = [a.values[i] - b.values[j] for i, j in pairs]
    interval = mean_interval(gaps)
    spreads = [max(model.values) - min(model.values) for model in (a, b) if len(model.values) > 1]
    line = Comparison(
        name="",
        a=a.label,
        b=b.label,
        split=a.split,
        seeds=len(pairs),
        gap=interval.mean,
        # If all pairs give the same gap (two models that the seed does not change), there is no interval over seeds.
        half=interval.half or None,
        spread=max(spreads, default=None),
        seeds_apart=min(a.values) > max(b.values) or min(b.values) > max(a.values) if spreads else None,
    )
    for model in (a, b):
        if model.barred:
            return replace(line, reason=f"{model.label} is not compared: {model.barred}")
    if not measure.paired_by_rows:
        p = seed_p_value(gaps)
        few = "one seed" if len(gaps) == 1 else "every seed gives the same gap"
        return replace(line, p=p, reason=few if p is None else "")
    if a.rows is None or b.rows is None or not read:
        return replace(line, reason=a.unread or b.unread or _missing(a.split))
    if a.rows.key != b.rows.key:
        return replace(line, reason=f"the models were not evaluated on the same rows of the {a.split} split")
    runs_a, runs_b = zip(*pairs, strict=True)
    sampled = bootstrap_gap(a.rows.select_runs(sorted({*runs_a})), b.rows.select_runs(sorted({*runs_b})), measure)
    right_a, right_b = a.rows.right(runs_a), b.rows.right(runs_b)
    only_a, only_b = np.count_nonzero(right_a > right_b), np.count_nonzero(right_b > right_a)
    return replace(
        line, rows=len(a.rows.truth), low=sampled.low, high=sampled.high, p=sampled.p,
        odds_ratio=discordant_odds_ratio(int(only_a), int(only_b)),
        reason="" if a.seeded or b.seeded else "neither model depends on the seed",
    )  # fmt: skip


def _read_pairs(a: ScoredModel, b: ScoredModel) -> list[tuple[int, int]]:
    # A seed without predictions of both models is left out, like a seed that only one of them has.
    if a.rows is None or b.rows is None:
        return []
    return [(i, j) for i, j in paired_seeds(a, b) if i in a.rows.runs and j in b.rows.runs]


def by_length(
    contrasts: Sequence[Comparison],
    key: TableKey,
    scored: ScoredTables,
    words: Mapping[bytes, NDArray[np.int64]],
    measure: Measure,
) -> list[LengthLine]:
    """Accuracy of each model, and the gap of each contrast in it, on the quarters of the rows by words of their texts.

    Texts of one length stay together, so that quarters may be unequal, or fewer. The change of a gap from the shortest
    to the longest is tested as a contrast is: by a bootstrap over the rows of both, corrected by Holm over the
    contrasts of the table, and by its interval over seeds. Models on rows with unknown ``words`` are left out.
    """
    rows = {label: model.rows for label, model in scored[key].items() if model.rows and model.rows.key in words}
    if not rows:
        return []
    counts = words[next(iter(rows.values())).key]
    bounds = np.unique(np.quantile(counts, (0.25, 0.5, 0.75, 1), method="inverted_cdf"))
    masks = np.searchsorted(bounds, counts) == np.arange(len(bounds))[:, None]
    means = masks / masks.sum(axis=1, keepdims=True)

    def line(name: str, row_values: Floats, change: Comparison | None = None) -> LengthLine:
        return LengthLine(name, dict(zip(bounds.tolist(), (means @ row_values).tolist(), strict=True)), change)

    gaps, changes = [], []
    for contrast in contrasts if len(bounds) > 1 else ():
        a, b = (_side(side, key, scored) for side in (contrast.a, contrast.b))
        if contrast.verdict == "untested" or a is None or b is None or a.rows is None or b.rows is None:
            continue
        runs_a, runs_b = zip(*_read_pairs(a, b), strict=True)
        right_a, right_b = a.rows.right(runs_a), b.rows.right(runs_b)
        pair_gaps = right_a.astype(np.float64) - right_b
        over_seeds = mean_interval((pair_gaps @ (means[-1] - means[0])).tolist())
        gaps.append(pair_gaps.mean(axis=0))
        bootstrap = bootstrap_between(gaps[-1], masks[-1], masks[0])
        compared = int((masks[0] | masks[-1]).sum())
        changes.append(
            replace(
                contrast, seeds=len(pair_gaps), gap=over_seeds.mean, half=over_seeds.half or None, rows=compared,
                low=bootstrap.low, high=bootstrap.high, p=bootstrap.p, spread=None, seeds_apart=None, odds_ratio=None,
            )
        )  # fmt: skip
    judged = [replace(change, statement="") for change in _judged(changes, measure, {})]
    lines = [line(label, model_rows.correct.mean(axis=0)) for label, model_rows in rows.items()]
    return lines + [line(f"{change.a} − {change.b}", gap, change) for change, gap in zip(judged, gaps, strict=True)]


def _judged(
    lines: Sequence[Comparison], measure: Measure, known: Mapping[tuple[str, str], float | None]
) -> list[Comparison]:
    """Adds Holm's correction, verdicts and sentences to comparisons; ``known`` p values were corrected elsewhere."""
    corrected = iter(holm([line.p for line in lines if line.p is not None]))
    judged = []
    for raw in lines:
        p_holm = None if raw.p is None else next(corrected)
        line = replace(raw, p_holm=known.get((raw.a, raw.b), p_holm))
        against = _against(line, measure)
        if line.p_holm is not None:
            supported: Verdict = "distinguishable" if line.seeds > 1 else "by rows only"
            line = replace(line, verdict="not distinguishable" if against else supported)
        judged.append(replace(line, statement=_statement(line, against, measure)))
    return judged


def _against(line: Comparison, measure: Measure) -> list[str]:
    """Reasons against a difference."""
    beyond = line.p_holm is not None and line.p_holm >= SIGNIFICANCE_LEVEL
    if beyond and not measure.paired_by_rows:
        return [f"other seeds could reverse it (p {p_value(line.p_holm)}, corrected over all pairs)"]
    reasons = [f"other rows could reverse it (p {p_value(line.p_holm)})"] if beyond else []
    # For the many pairs, which no study named before, only the ranges over seeds count.
    if line.name and line.half is not None and abs(line.gap) <= line.half:
        reasons.append("the interval over seeds contains 0")
    elif line.seeds_apart is False:
        reasons.append("the seeds overlap")
    return reasons


def _statement(line: Comparison, against: Sequence[str], measure: Measure) -> str:
    over = f"n = {line.seeds}" if line.seeds > 1 else "one seed"
    named = f"{line.name}: " if line.name else ""
    sentence = f"{named}{_gap_text(line.a, line.b, line.gap, line.half, measure)} on {line.split}"
    if line.half is None and line.low is not None and line.high is not None:
        sentence += f" (95 % over rows {measure.range(line.low, line.high)})"
    if line.verdict == "untested":
        sentence += f"; untested: {line.reason}."
    elif line.verdict == "not distinguishable":
        sentence += f"; not distinguishable at {over}: {words(list(against))}."
    elif line.verdict == "by rows only":
        sentence += "; larger than other rows would explain"
        sentence += f", and {line.reason}." if line.reason else ", but there is one seed: another training may undo it."
    else:
        sentence += f"; distinguishable at {over}."
    if line.spread is not None and 0 < abs(line.gap) < line.spread:
        sentence += f" The gap is smaller than the change from the seed alone ({measure.size(line.spread)})."
    return sentence


def _gap_text(a: str, b: str, gap: float, half: float | None, measure: Measure) -> str:
    """``a is 0.3 ± 0.5 points below b``."""
    width = measure.width(half)
    where = (
        f"{measure.size(gap, width)} {measure.ahead if gap > 0 else measure.behind}" if gap else f"level{width} with"
    )
    return f"{a} is {where} {b}"


def pool_contrasts(tables: Sequence[TableSummary]) -> list[PooledContrast]:
    """Each contrast over all data sets of a study that were trained on in one way, if these are at least three.

    A data set counts once, however many of its parts were tried, and its figure is the mean gap of their tables: seeds
    and rows are in it already, and only the choice of the data is left as an uncertainty. A difference counts as
    distinguishable if the t-test over data sets has p below 0.05 after Holm's correction over these contrasts. Tables
    whose data failed an audit are left out, because they cannot speak for other data.
    """
    gaps: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    measures: dict[tuple[str, ...], Measure] = {}
    for table in tables:
        if any(audit.status == "failed" and audit.scope == "data" for audit in table.audits):
            continue
        for line in table.contrasts:
            if line.verdict != "untested":
                key = line.name, line.a, line.b, table.training, table.precision, table.judged_by.key
                gaps[key][table.data].append(line.gap)
                measures[key] = table.judged_by
    means = {
        key: {data: fmean(data_gaps) for data, data_gaps in by_data.items()}
        for key, by_data in gaps.items()
        if len(by_data) >= _LEAST_POOLED
    }
    tested = {key: seed_p_value(list(by_data.values())) for key, by_data in means.items()}
    corrected = iter(holm([p for p in tested.values() if p is not None]))
    return [
        _pooled(key, means[key], p, None if p is None else next(corrected), measures[key]) for key, p in tested.items()
    ]


def _pooled(
    key: tuple[str, ...], gaps: dict[str, float], p: float | None, p_holm: float | None, measure: Measure
) -> PooledContrast:
    name, a, b, training, precision, _ = key
    interval = mean_interval(list(gaps.values()))
    assert interval.half is not None
    ahead = sum(measure.merit(gap) > 0 for gap in gaps.values())
    verdict: Verdict = "untested" if p_holm is None else "distinguishable"
    why = ": the gap is the same on all" if p_holm is None else ""
    if p_holm is not None and p_holm >= SIGNIFICANCE_LEVEL:
        verdict, why = "not distinguishable", f": other data could reverse it (p {p_value(p_holm)})"
    overall = f"over {len(gaps)} data sets {_gap_text(a, b, interval.mean, interval.half, measure)}, better on {ahead}"
    statement = f"{name}: {overall}; {verdict}{why}."
    return PooledContrast(
        name, a, b, training, precision, gaps, interval.mean, interval.half, ahead, p, p_holm, verdict, statement
    )


def judge_leaks(
    lines: Sequence[AuditLine],
    runs: Sequence[LoadedRun],
    scored: Mapping[str, ScoredModel],
    tests: Sequence[Comparison],
    measure: Measure,
) -> list[AuditLine]:
    """Turns notes on rows into failures if the verdict of the table changes without these rows.

    Returns:
        The lines; those on rows of the judged split also give the verdict without them. Unchanged where the
        predictions are not on disk, or there is nothing to compare.
    """
    complete = [model.rows for model in scored.values() if model.rows and len(model.rows.runs) == len(model.seeds)]
    sizes = {len(rows.truth) for rows in complete}
    if len(scored) < 2 or len(complete) < len(scored) or len(sizes) > 1:
        return list(lines)
    (rows,) = sizes
    masks: dict[str, Mask] = {}
    for run in runs:
        for audit in run.record.audits:
            if audit.status in ("note", "failed") and (mask := kept_rows(audit, rows)) is not None:
                masks.setdefault(audit.name, mask)
    split = next(iter(scored.values())).split
    return [
        _without_rows(line, scored, tests, measure, ~masks[line.name])
        if line.status == "note" and line.split == split and line.name in masks
        else line
        for line in lines
    ]


def _without_rows(
    line: AuditLine, scored: Mapping[str, ScoredModel], tests: Sequence[Comparison], measure: Measure, rest: Mask
) -> AuditLine:
    if not rest.any():
        return line
    without = {
        label: replace(model, rows=rows, values=rows.values(measure))
        for label, model in scored.items()
        if model.rows is not None
        for rows in [model.rows.select_rows(rest)]
    }
    before, after = (_supported(lines, measure) for lines in (tests, compare_models(without, measure)))
    changes = [f"{ahead} is no longer shown to be better than {behind}" for ahead, behind in sorted(before - after)]
    changes += [f"{ahead} is shown to be better than {behind}" for ahead, behind in sorted(after - before)]
    if changes:
        summary = f"{line.summary}; without these rows the verdict changes: {'; '.join(changes)}"
        return replace(line, status="failed", summary=summary, meaning=meaning(line.name))
    first, other = (
        max(models, key=lambda label: measure.merit(fmean(models[label].values))) for models in (scored, without)
    )
    best = "" if first == other else f" ({other} instead of {first} scores highest, but no difference is supported)"
    return replace(line, summary=f"{line.summary}; without these rows the verdict is the same{best}")


def _supported(tests: Sequence[Comparison], measure: Measure) -> set[tuple[str, str]]:
    """Pairs of models of which the first is supported to be better than the second."""
    return {(test.a, test.b) if measure.merit(test.gap) > 0 else (test.b, test.a) for test in tests if test.supported}
