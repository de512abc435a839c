"""The contrasts that a study file names, answered from predictions and seeds, in sentences that both support."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from recurra.core.terminal import p_value, words
from recurra.evaluation.significance import discordant_odds_ratio, holm, mean_interval
from recurra.report.compare import (
    ScoredModel,
    bootstrap_gap,
    obstacle,
    paired,
    paired_seeds,
    seed_p_value,
    seed_tests,
    seeds_apart,
)
from recurra.tasks.loaded_runs import TableKey
from recurra.tasks.measures import Measure
from recurra.tasks.questions import Contrast, split_side
from recurra.tasks.summary import SIGNIFICANCE_LEVEL, ContrastLine, PairTest, PooledContrast, TableSummary, Verdict

ScoredTables = Mapping[TableKey, Mapping[str, ScoredModel]]
# Student's interval over two is 12.7 standard errors wide on each side.
_LEAST_POOLED = 3


@dataclass(frozen=True)
class _Asked:
    """A contrast whose two sides are there: the gaps of its pairs, and the test if it could be made."""

    contrast: Contrast
    a: ScoredModel
    b: ScoredModel
    gaps: list[float]
    low: float | None = None
    high: float | None = None
    p: float | None = None
    reason: str = ""


def answer_contrasts(
    contrasts: Sequence[Contrast],
    key: TableKey,
    scored: ScoredTables,
    measure: Measure,
    tests: Sequence[PairTest] = (),
) -> list[ContrastLine]:
    """Answers each contrast that has both of its models in a table.

    By rows, a difference counts as distinguishable only if all of these hold: the paired bootstrap over rows, corrected
    by Holm over the contrasts of the table, has p below 0.05; with several seeds, the interval of the gap over seeds
    leaves out 0; and the seeds of the two models do not overlap. Rows speak for other data, seeds for another training:
    with one seed, a difference counts by rows only.

    By seeds, it counts if the paired t-test has p below 0.05 after Holm's correction over all pairs of the table, so
    that a contrast never claims what the test of its pair does not.

    Args:
        key: The table. A side that names a precision is looked up in the table of that precision; the contrast belongs
            to the table of side ``a``.
        tests: Those between the models of the table.
    """
    asked = [found for contrast in contrasts if (found := _ask(contrast, key, scored, measure)) is not None]
    corrected = iter(holm([item.p for item in asked if item.p is not None]))
    answers = []
    for item in asked:
        p_holm = None if item.p is None else next(corrected)
        answers.append(_answer(item, p_holm if measure.paired_by_rows else _of_pair(item, tests, p_holm), measure))
    return answers


def pool_contrasts(tables: Sequence[TableSummary], judge: Callable[[TableSummary], Measure]) -> list[PooledContrast]:
    """Each contrast over all data sets of a study that were trained on in one way, if these are at least three.

    A data set counts once, however many of its parts were tried, and its figure is the mean gap of their tables: seeds
    and rows are in it already, and what is left to be uncertain of is which data were taken. A difference counts as
    distinguishable if the t-test over data sets has p below 0.05 after Holm's correction over these contrasts. Tables
    whose data failed an audit say nothing of other data, and are left out.
    """
    found: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    measures: dict[tuple[str, ...], Measure] = {}
    for table in tables:
        if any(audit.status == "failed" and audit.scope == "data" for audit in table.audits):
            continue
        for line in table.contrasts:
            if line.verdict != "untested":
                key = line.name, line.a, line.b, table.training, table.precision, table.judged_by
                found[key][table.data].append(line.gap)
                measures[key] = judge(table)
    gaps = {
        key: {name: fmean(each) for name, each in by_data.items()}
        for key, by_data in found.items()
        if len(by_data) >= _LEAST_POOLED
    }
    tested = {key: seed_p_value(list(each.values())) for key, each in gaps.items()}
    corrected = iter(holm([p for p in tested.values() if p is not None]))
    return [
        _pooled(key, by_data, tested[key], None if tested[key] is None else next(corrected), measures[key])
        for key, by_data in gaps.items()
    ]


def _pooled(
    key: tuple[str, ...], gaps: dict[str, float], p: float | None, p_holm: float | None, measure: Measure
) -> PooledContrast:
    name, a, b, training, precision, _ = key
    mean, _, low, high = mean_interval(list(gaps.values()))
    assert low is not None and high is not None
    half, ahead = (high - low) / 2, sum(measure.merit(gap) > 0 for gap in gaps.values())
    verdict: Verdict = "untested" if p_holm is None else "distinguishable"
    why = "the gap is the same on all"
    if p_holm is not None and p_holm >= SIGNIFICANCE_LEVEL:
        verdict, why = "not distinguishable", f"other data could turn it round (p {p_value(p_holm)})"
    width = measure.width(half)
    side = measure.ahead if mean > 0 else measure.behind
    where = f"{measure.size(mean, width)} {side}" if mean else f"level{width} with"
    said = f"{name}: over {len(gaps)} data sets {a} is {where} {b}, better on {ahead}; {verdict}"
    return PooledContrast(
        name=name,
        a=a,
        b=b,
        training=training,
        precision=precision,
        gaps=gaps,
        gap=mean,
        half=half,
        ahead=ahead,
        p=p,
        p_holm=p_holm,
        verdict=verdict,
        statement=f"{said}." if verdict == "distinguishable" else f"{said}: {why}.",
    )


def _of_pair(asked: _Asked, tests: Sequence[PairTest], otherwise: float | None) -> float | None:
    """The corrected p-value of the test of the pair; across tables there is none."""
    wanted = {asked.contrast.a, asked.contrast.b}
    return next((test.p_holm for test in tests if {test.first, test.second} == wanted), otherwise)


def _ask(contrast: Contrast, key: TableKey, scored: ScoredTables, measure: Measure) -> _Asked | None:
    _, precision = split_side(contrast.a)
    if precision is not None and precision != key.precision:
        return None
    a, b = _side(contrast.a, key, scored), _side(contrast.b, key, scored)
    if a is None or b is None or not a.values or not b.values or a.split != b.split:
        return None
    a, b = paired(a, b)
    gaps = [a.values[i] - b.values[j] for i, j in paired_seeds(a, b)]
    if not gaps:
        return None
    asked = _Asked(contrast, a, b, gaps)
    barred = next((f"{side.label} is held against nobody, {side.barred}" for side in (a, b) if side.barred), "")
    reason = barred or (obstacle(a, b) if measure.paired_by_rows else "")
    return replace(asked, reason=reason) if reason else _tested(asked, measure)


def _tested(asked: _Asked, measure: Measure) -> _Asked:
    if measure.paired_by_rows:
        rows = bootstrap_gap(asked.a, asked.b, measure)
        return replace(asked, low=rows.low, high=rows.high, p=rows.p)
    p = seed_p_value(asked.gaps)
    few = "one seed" if len(asked.gaps) == 1 else "every seed gives the same gap"
    return replace(asked, p=p, reason=few if p is None else "")


def _side(side: str, key: TableKey, scored: ScoredTables) -> ScoredModel | None:
    model, precision = split_side(side)
    table = key if precision is None else key._replace(precision=precision)
    return scored.get(table, {}).get(model)


def _answer(asked: _Asked, p_holm: float | None, measure: Measure) -> ContrastLine:
    mean, _, low, high = mean_interval(asked.gaps)
    # Pairs that all give the same gap (two models that the seed does not change) say nothing of the seeds.
    half = (high - low) / 2 if low is not None and high is not None and high > low else None
    spreads = [spread for side in (asked.a, asked.b) if (spread := side.spread) is not None]
    spread = max(spreads) if spreads else None
    tests = [] if asked.reason else [test for _, test in seed_tests(asked.a, asked.b)]
    against = _against(asked, mean, half, p_holm, measure)
    line = ContrastLine(
        name=asked.contrast.name,
        a=asked.contrast.a,
        b=asked.contrast.b,
        split=asked.a.split,
        seeds=len(asked.gaps),
        gap=mean,
        half=half,
        low=asked.low,
        high=asked.high,
        p=asked.p,
        p_holm=p_holm,
        odds_ratio=discordant_odds_ratio(sum(t.only_a for t in tests), sum(t.only_b for t in tests)) if tests else None,
        spread=spread,
        inside_spread=None if spread is None else abs(mean) < spread,
        verdict=_verdict(len(asked.gaps), against, tested=p_holm is not None),
    )
    return replace(line, statement=_statement(line, against, asked.reason, measure))


def _verdict(seeds: int, against: Sequence[str], *, tested: bool) -> Verdict:
    if not tested:
        return "untested"
    if against:
        return "not distinguishable"
    return "distinguishable" if seeds > 1 else "by rows only"


def _against(asked: _Asked, gap: float, half: float | None, p_holm: float | None, measure: Measure) -> list[str]:
    """What speaks against a difference."""
    beyond = p_holm is not None and p_holm >= SIGNIFICANCE_LEVEL
    if not measure.paired_by_rows:
        return [f"other seeds could turn it round (p {p_value(p_holm)}, corrected over all pairs)"] if beyond else []
    found = []
    if beyond:
        found.append(f"other rows could turn it round (p {p_value(p_holm)})")
    if half is not None and abs(gap) <= half:
        found.append("the interval over seeds holds 0")
    elif seeds_apart(asked.a, asked.b) is False:
        found.append("the seeds overlap")
    return found


def _statement(line: ContrastLine, against: Sequence[str], reason: str, measure: Measure) -> str:
    width = measure.width(line.half)
    side = measure.ahead if line.gap > 0 else measure.behind
    where = f"{measure.size(line.gap, width)} {side}" if line.gap else f"level{width} with"
    over = f"n = {line.seeds}" if line.seeds > 1 else "one seed"
    sentence = f"{line.name}: {line.a} is {where} {line.b} on {line.split}"
    if line.half is None and line.low is not None and line.high is not None:
        sentence += f" (95 % over rows {measure.range(line.low, line.high)})"
    if line.verdict == "untested":
        sentence += f"; untested: {reason}."
    elif line.verdict == "not distinguishable":
        sentence += f"; not distinguishable at {over}: {words(list(against))}."
    elif line.verdict == "by rows only":
        sentence += "; more than other rows would explain, but it is one seed: another training may undo it."
    else:
        sentence += f"; distinguishable at {over}."
    if line.spread is not None and line.inside_spread and line.gap:
        sentence += f" The gap is smaller than what the seed alone moves ({measure.size(line.spread)})."
    return sentence
