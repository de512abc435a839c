"""The tables that every task has: contrasts, tests between models, audits, advice, and the runs behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from recurra.core import terminal as form
from recurra.tasks.columns import (
    EVERYWHERE,
    NUMBERS,
    P_VALUE,
    PAGE,
    READERS,
    SIGNIFICANT,
    YES_NO,
    Cell,
    Column,
    Fields,
    Format,
    Table,
    numbers,
)
from recurra.tasks.measures import Measure
from recurra.tasks.summary import AuditLine, ContrastLine, PairTest, PooledContrast, TableSummary


def of_split(text: str) -> Callable[[TableSummary], str]:
    """A text that begins with the split that is judged."""
    return lambda table: f"On {table.headline_split}. {text}"


def ends(measure: Measure) -> Format:
    """The ends of an interval of a difference, as a pair."""

    def spread(_key: str, value: Sequence[float] | None) -> Fields:
        low, high = value or (None, None)
        return {"low": low, "high": high}

    return Format(lambda value: measure.range(*value), spread=spread)


def interval_of(test: PairTest | ContrastLine) -> tuple[float, float] | None:
    """The interval of a test or contrast, if there is one."""
    return None if test.low is None or test.high is None else (test.low, test.high)


# What a contrast holds against what.
_ASKED = (
    Column("name", "Contrast", lambda line: line.name),
    Column("models", "Models", lambda line: f"{line.a} − {line.b}", places=READERS, left=EVERYWHERE),
    Column("a", "", lambda line: line.a, places=NUMBERS),
    Column("b", "", lambda line: line.b, places=NUMBERS),
)


def contrasts(judge: Callable[[Any], Measure]) -> Table:
    """What the study file asked."""
    return Table(
        "contrasts",
        lambda _: "What the study asked",
        lambda table: _contrast_columns(judge(table)),
        lambda table: table.contrasts,
        note=lambda table: _contrast_note(table, judge(table)),
        paper_note=lambda _: "Gap ± half its 95 % interval over seeds.",
        places=EVERYWHERE - {"terminal"},
    )


def _contrast_columns(measure: Measure) -> list[Column]:
    def spread(_key: str, line: ContrastLine | None) -> Fields:
        return {"gap": getattr(line, "gap", None), "half": getattr(line, "half", None)}

    gap = Format(lambda line: measure.gap(line.gap, measure.width(line.half), unit=False), spread=spread)
    return [
        *_ASKED,
        Column("split", "", lambda line: line.split, places=NUMBERS),
        Column("verdict", "Verdict", lambda line: line.verdict, left=EVERYWHERE),
        Column("gap", f"Gap in {measure.unit} ± 95 % over seeds", lambda line: line, gap),
        Column("seeds", "Pairs of seeds", lambda line: line.seeds),
        Column("rows", "95 % over rows", interval_of, ends(measure), optional=not measure.paired_by_rows),
        Column("p", "", lambda line: line.p, places=NUMBERS),
        Column("p_holm", "p (Holm)", lambda line: line.p_holm, P_VALUE),
        Column(
            "odds_ratio", "Odds ratio", lambda line: line.odds_ratio, SIGNIFICANT, optional=not measure.paired_by_rows
        ),
        Column("spread", "", lambda line: line.spread, places=NUMBERS),
        Column("inside_spread", "", lambda line: line.inside_spread, places=NUMBERS),
        Column("statement", "Finding", lambda line: line.statement, places=PAGE | NUMBERS, left=EVERYWHERE, wide=True),
    ]


def pooled_contrasts(judge: Callable[[Any], Measure]) -> Table:
    """What the study asked, over all of its data; a table of the study and not of one of its tables."""
    return Table(
        "pooled",
        lambda _: "What the study asked, over all data",
        lambda summary: _pooled_columns(judge(summary.tables[0])),
        lambda summary: summary.pooled,
        caption=lambda _: (
            "Every data set counts once, with the mean gap of its tables; the interval and p are Student's over data "
            "sets, p corrected by Holm over these contrasts. They say what to expect of data that were not tried, as "
            "far as these are like them. Tables whose data failed an audit are left out."
        ),
        paper_note=lambda _: "Gap ± half its 95 % interval over data sets.",
    )


def _pooled_columns(measure: Measure) -> list[Column]:
    def spread(_key: str, line: PooledContrast) -> Fields:
        return {"gap": line.gap, "half": line.half}

    def on_each(line: PooledContrast) -> str:
        return "; ".join(f"{name} {measure.signed(gap)}" for name, gap in line.gaps.items())

    gap = Format(lambda line: measure.gap(line.gap, measure.width(line.half), unit=False), spread=spread)
    return [
        *_ASKED,
        Column("training", "", lambda line: line.training, places=NUMBERS),
        Column("precision", "", lambda line: line.precision, places=NUMBERS),
        Column("verdict", "Verdict", lambda line: line.verdict, left=EVERYWHERE),
        Column("gap", f"Gap in {measure.unit} ± 95 % over data", lambda line: line, gap),
        Column("ahead", "Better on", lambda line: f"{line.ahead} of {len(line.gaps)}"),
        Column("p", "", lambda line: line.p, places=NUMBERS),
        Column("p_holm", "p (Holm)", lambda line: line.p_holm, P_VALUE),
        Column("each", "On each", on_each, left=EVERYWHERE, wide=True),
        Column("statement", "Finding", lambda line: line.statement, places=NUMBERS),
    ]


def _contrast_note(table: TableSummary, measure: Measure) -> str:
    return (
        f"Named in the study file; gaps are the first model less the second, in {measure.unit} of "
        f"{measure.heading.lower()} on {table.headline_split}. {_distinguishable(measure)}"
    )


def _distinguishable(measure: Measure) -> str:
    if measure.paired_by_rows:
        return (
            "Distinguishable means: the paired bootstrap over rows has p below 0.05 after Holm's correction over these "
            "contrasts, the interval over seeds leaves out 0, and the seeds do not overlap. The odds ratio counts the "
            "rows that only the first model gets right for each that only the second does."
        )
    return (
        "Distinguishable means: the paired t-test over seeds has p below 0.05 after Holm's correction over all pairs "
        "of models of the table. Another text could turn out differently."
    )


def tests_by_rows(judge: Callable[[Any], Measure]) -> Table:
    """All pairs of models on the same rows."""
    return Table(
        "tests",
        lambda _: "Tests between the models",
        lambda table: _row_test_columns(judge(table)),
        lambda table: table.tests,
        note=lambda table: (
            f"All on the same {table.headline_split} rows. {_bootstrap_of(judge(table))}; its 95 % interval is not "
            "corrected for the number of pairs. The odds ratio "
            "is the effect size: rows that only the first model gets right for each that only the second does, over "
            "all seeds. McNemar counts rows that only the first or only the second model gets right. Values of p are "
            "corrected by Holm, over the pairs for the bootstrap, over all pairs and seeds for McNemar. A difference "
            "counts as supported if the corrected p is below 0.05 and the seeds of the two models do not overlap."
        ),
        places=EVERYWHERE - {"terminal"},
        empty={"html": "There is only one model: nothing to test."},
        folded=lambda _: True,
    )


def _bootstrap_of(measure: Measure) -> str:
    if measure.of_classes is not None:
        return f"The bootstrap draws rows with all their labels; {measure.in_text} is averaged over a model's seeds"
    if measure.of_logits is not None:
        return f"The bootstrap draws rows with all their scores; {measure.in_text} is averaged over a model's seeds"
    what = "correctness" if measure.of_rows is None else "cost"
    return f"The bootstrap draws rows, each with its {what} averaged over a model's seeds"


def _row_test_columns(measure: Measure) -> list[Column]:
    def mcnemar(_key: str, test: PairTest | None) -> Fields:
        tests = test.mcnemar if test else []
        return {
            name: sum(getattr(item, name) for item in tests) if tests else None
            for name in ("only_first", "only_second")
        }

    def each_seed(test: PairTest) -> str:
        return (
            "; ".join(f"{item.only_first} : {item.only_second}, p {form.p_value(item.p_holm)}" for item in test.mcnemar)
            or form.NONE
        )

    def finding(test: PairTest) -> str:
        return f"Not tested: {test.reason}. {test.statement}" if test.p_holm is None else test.statement

    seeds = "McNemar a seed: only first : only second"
    gap = numbers(measure.gap, lambda value: measure.gap(value, unit=False))
    return [
        Column("pair", "Pair", lambda test: f"{test.first} − {test.second}", places=READERS),
        Column("first", "", lambda test: test.first, places=NUMBERS),
        Column("second", "", lambda test: test.second, places=NUMBERS),
        Column("split", "", lambda test: test.split, places=NUMBERS),
        Column("rows", "", lambda test: test.rows, places=NUMBERS),
        Column("finding", "Finding", finding, places=READERS - {"latex"}, left=EVERYWHERE, wide=True),
        Column("gap", "Gap", lambda test: test.gap, gap, headings={"latex": f"Gap, {measure.unit}"}),
        Column("interval", "95 %, paired bootstrap", interval_of, ends(measure)),
        Column("p", "", lambda test: test.p, places=NUMBERS),
        Column("p_holm", "p (Holm)", lambda test: test.p_holm, P_VALUE),
        Column("odds_ratio", "Odds ratio", lambda test: test.odds_ratio, SIGNIFICANT),
        Column(
            "mcnemar",
            seeds,
            lambda test: test,
            Format(each_seed, spread=mcnemar),
            EVERYWHERE - {"latex"},
            left=PAGE,
            wide=True,
        ),
        Column("seeds_apart", "", lambda test: test.seeds_apart, places=NUMBERS),
        Column("supported", "Supported", lambda test: test.supported, YES_NO, frozenset(("latex", "csv"))),
    ]


def tests_by_seeds(measure: Measure, caption: str) -> Table:
    """All pairs of models, seed by seed: where no two models were scored on rows that are on disk."""
    columns = [
        Column("models", "Models", lambda test: f"{test.first}, {test.second}", places=READERS),
        Column("first", "", lambda test: test.first, places=NUMBERS),
        Column("second", "", lambda test: test.second, places=NUMBERS),
        Column("split", "", lambda test: test.split, places=NUMBERS),
        Column("seeds", "Seeds", lambda test: len(test.seeds)),
        Column("difference", "Difference", lambda test: test.gap, numbers(measure.signed)),
        Column("interval", "95 % interval", interval_of, ends(measure)),
        Column("p", "", lambda test: test.p, places=NUMBERS),
        Column("p_holm", "p, corrected", lambda test: test.p_holm, P_VALUE),
        Column("finding", "What the seeds support", lambda test: test.statement, left=PAGE, places=READERS),
        Column("supported", "", lambda test: test.supported, places=NUMBERS),
    ]
    return Table(
        "differences",
        lambda _: "Differences",
        lambda _: columns,
        lambda table: table.tests,
        caption=lambda _: caption,
        paper_note=lambda _: caption,
        places=EVERYWHERE - {"terminal"},
    )


def _state(line: AuditLine) -> Cell:
    return Cell(line.status, status=line.status)


def _finding(line: AuditLine) -> Cell:
    # What a failure means stands above the table.
    below = (f"For example, {line.example}." if line.example else "", line.meaning if line.status == "note" else "")
    return Cell(line.summary, below=tuple(filter(None, below)))


def _passed(table: TableSummary) -> str:
    passed = [line.name.partition(".")[0] for line in table.audits if line.status == "passed"]
    return f"Audits that passed: {len(passed)}, on {form.words(list(dict.fromkeys(passed)))}." if passed else ""


AUDITS = Table(
    "audits",
    lambda _: "Audits",
    lambda _: [
        Column(
            "status", "State", lambda line: line, Format(lambda line: line.status, cell=_state, spread=_audit_fields)
        ),
        Column("audit", "Audit", lambda line: line.name, left=EVERYWHERE, places=READERS),
        Column(
            "summary", "Finding", lambda line: line, Format(lambda line: line.summary, cell=_finding),
            places=READERS, left=EVERYWHERE, wide=True,
        ),
        Column("concerns", "Concerns", lambda line: line.concerns, places=READERS, left=EVERYWHERE),
    ],
    lambda table: table.audits,
    _passed,
    note=lambda _: "",
    places=EVERYWHERE - {"terminal", "latex"},
    empty={"html": "No audit was run: leaks, shortcuts and dependence on padding are unknown."},
    alarms=lambda table: [(f"⚠ {group.name} failed.", group.meaning) for group in table.failed_groups],
    row_class=lambda line: line.status,
    folded=lambda table: bool(table.audits) and not table.failed_groups,
)  # fmt: skip


def _audit_fields(_key: str, line: AuditLine | None) -> Fields:
    names = ("status", "name", "summary", "concerns", "value", "threshold", "scope", "split")
    return {name: getattr(line, name, None) for name in names}


def _choice(choice: str) -> Cell:
    return Cell(choice, strong=True)


def _resting_on(table: TableSummary) -> Sequence[tuple[str, str]]:
    said = "This advice rests on figures whose audits failed: it holds only as far as they do."
    return [("", said)] if table.failed_groups and table.advice else []


ADVICE = Table(
    "advice",
    lambda _: "What to choose",
    lambda _: [
        Column("priority", "What matters", lambda item: item.priority),
        Column("choice", "Choice", lambda item: item.choice, Format(cell=_choice), left=EVERYWHERE),
        Column("why", "Why", lambda item: item.why, left=EVERYWHERE, wide=True),
    ],
    lambda table: table.advice,
    places=PAGE,
    empty={"html": "There are not two models that can be recommended: nothing to choose between."},
    alarms=_resting_on,
)


def _epoch(run: Any) -> str | None:
    return f"{run.best_epoch} of {run.epochs}" if run.epochs else None


# A row a run, for the page: enough to find it and to run it again.
RUNS_BEHIND = Table(
    "runs",
    lambda table: f"Runs: {table.title}",
    lambda _: [
        Column("model", "Model", lambda row: row[0]),
        Column("seed", "Seed", lambda row: row[1].seed),
        Column("run", "Run", lambda row: row[1].run_id, left=EVERYWHERE, print=True),
        Column("configuration", "Configuration", lambda row: row[1].config_hash, left=EVERYWHERE, print=True),
        Column("epoch", "Epoch kept", lambda row: _epoch(row[1])),
        Column("training", "Training", lambda row: form.duration(row[1].training_wall_s)),
        Column("recorded", "Recorded", lambda row: form.moment(row[1].created), left=EVERYWHERE),
    ],
    lambda table: [(model.label, run) for model in table.models for run in model.runs],
    places=PAGE,
)
