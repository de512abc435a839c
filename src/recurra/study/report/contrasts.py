"""The contrasts that a study file names, answered from predictions and seeds, in sentences that both support."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from recurra.evaluation.significance import BootstrapDifference, discordant_odds_ratio, holm, mean_interval
from recurra.study.questions import Contrast, split_side
from recurra.study.report.answers import ContrastLine, Verdict
from recurra.study.report.comparison import SIGNIFICANCE_LEVEL
from recurra.study.report.formatting import p_value, point_range, unsigned_points, words
from recurra.study.report.grouping import TableKey
from recurra.study.report.judging import Judged, bootstrap, obstacle, paired, paired_seeds, seed_tests, seeds_apart

Judgements = Mapping[TableKey, Mapping[str, Judged]]


@dataclass(frozen=True)
class _Asked:
    """A contrast whose two sides are there: the pairs of accuracies, and the test over rows if it could be made."""

    contrast: Contrast
    a: Judged
    b: Judged
    gaps: list[float]
    reason: str
    rows: BootstrapDifference | None


def answer_contrasts(contrasts: Sequence[Contrast], key: TableKey, judged: Judgements) -> list[ContrastLine]:
    """Answers each contrast that has both of its models in a table.

    A difference counts as distinguishable only if all of these hold: the paired bootstrap over rows, corrected by Holm
    over the contrasts of the table, has p below 0.05; with several seeds, the interval of the gap over seeds leaves out
    0; and the seeds of the two models do not overlap. Rows speak for other texts, seeds for another training: with one
    seed, a difference counts by rows only.

    Args:
        contrasts: Of the study file.
        key: The table. A side that names a precision is looked up in the table of that precision; the contrast belongs
            to the table of side ``a``.
        judged: The models of every table on its headline split.
    """
    asked = [found for contrast in contrasts if (found := _ask(contrast, key, judged)) is not None]
    corrected = iter(holm([item.rows.p for item in asked if item.rows is not None]))
    return [_answer(item, None if item.rows is None else next(corrected)) for item in asked]


def _ask(contrast: Contrast, key: TableKey, judged: Judgements) -> _Asked | None:
    _, precision = split_side(contrast.a)
    if precision is not None and precision != key[4]:
        return None
    a, b = _side(contrast.a, key, judged), _side(contrast.b, key, judged)
    if a is None or b is None or not a.accuracies or not b.accuracies or a.split != b.split:
        return None
    a, b = paired(a, b)
    gaps = [a.accuracies[i] - b.accuracies[j] for i, j in paired_seeds(a, b)]
    if not gaps:
        return None
    reason = obstacle(a, b)
    return _Asked(contrast, a, b, gaps, reason, None if reason else bootstrap(a, b))


def _side(side: str, key: TableKey, judged: Judgements) -> Judged | None:
    model, precision = split_side(side)
    table = key if precision is None else (*key[:4], precision)
    return judged.get(table, {}).get(model)


def _answer(asked: _Asked, p_holm: float | None) -> ContrastLine:
    mean, _, low, high = mean_interval(asked.gaps)
    # Pairs that all give the same gap (two models that the seed does not change) say nothing of the seeds.
    half = (high - low) / 2 if low is not None and high is not None and high > low else None
    spreads = [spread for side in (asked.a, asked.b) if (spread := side.spread) is not None]
    spread = max(spreads) if spreads else None
    tests = [] if asked.reason else [test for _, test in seed_tests(asked.a, asked.b)]
    against = _against(asked, mean, half, p_holm)
    line = ContrastLine(
        name=asked.contrast.name,
        a=asked.contrast.a,
        b=asked.contrast.b,
        split=asked.a.split,
        seeds=len(asked.gaps),
        gap=mean,
        half=half,
        low=asked.rows.low if asked.rows else None,
        high=asked.rows.high if asked.rows else None,
        p=asked.rows.p if asked.rows else None,
        p_holm=p_holm,
        odds_ratio=discordant_odds_ratio(sum(t.only_a for t in tests), sum(t.only_b for t in tests)) if tests else None,
        spread=spread,
        inside_spread=None if spread is None else abs(mean) < spread,
        verdict=_verdict(len(asked.gaps), against, tested=p_holm is not None),
    )
    return replace(line, statement=_statement(line, against, asked.reason))


def _verdict(seeds: int, against: Sequence[str], *, tested: bool) -> Verdict:
    if not tested:
        return "untested"
    if against:
        return "not distinguishable"
    return "distinguishable" if seeds > 1 else "by rows only"


def _against(asked: _Asked, gap: float, half: float | None, p_holm: float | None) -> list[str]:
    """What speaks against a difference."""
    found = []
    if p_holm is not None and p_holm >= SIGNIFICANCE_LEVEL:
        found.append(f"other rows could turn it round (p {p_value(p_holm)})")
    if half is not None and abs(gap) <= half:
        found.append("the interval over seeds holds 0")
    elif seeds_apart(asked.a, asked.b) is False:
        found.append("the seeds overlap")
    return found


def _statement(line: ContrastLine, against: Sequence[str], reason: str) -> str:
    width = "" if line.half is None else f" ± {line.half * 100:.1f}"
    side = "above" if line.gap > 0 else "below"
    where = f"{unsigned_points(line.gap, width)} {side}" if line.gap else f"level{width} with"
    over = f"n = {line.seeds}" if line.seeds > 1 else "one seed"
    sentence = f"{line.name}: {line.a} is {where} {line.b} on {line.split}"
    if line.half is None and line.low is not None and line.high is not None:
        sentence += f" (95 % over rows {point_range(line.low, line.high)})"
    if line.verdict == "untested":
        sentence += f"; untested: {reason}."
    elif line.verdict == "not distinguishable":
        sentence += f"; not distinguishable at {over}: {words(list(against))}."
    elif line.verdict == "by rows only":
        sentence += "; more than other rows would explain, but it is one seed: another training may undo it."
    else:
        sentence += f"; distinguishable at {over}."
    if line.spread is not None and line.inside_spread and line.gap:
        sentence += f" The gap is smaller than what the seed alone moves ({unsigned_points(line.spread)})."
    return sentence
