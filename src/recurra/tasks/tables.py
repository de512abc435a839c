"""Tables for readers, cells as text by heading: results, contrasts, tests, audits, advice, and the runs behind them.

Programs read the plain values (`recurra.report.render.long_table`). A renderer needs to know no task and no measure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recurra.core import terminal as form
from recurra.core.exits_record import EarlyExitRecord
from recurra.core.record_parts import ANSWERS

if TYPE_CHECKING:
    # A command that shows a table loads no statistics.
    from recurra.tasks.measures import Estimate, Measure
    from recurra.tasks.summary import Comparison, ModelSummary, PooledContrast, Summary, TableSummary

NONE = form.NONE
Cells = dict[str, str]
_NUMBER = re.compile(r"[+−<]? ?\d[\d.,]*( |$|[%×])|–$")


@dataclass(frozen=True)
class Table:
    """One table for readers.

    Attributes:
        key: Name of the part; unique in a report.
        rows: Cells by heading; what a row lacks is a dash.
        note: Below it; a table without rows is its note alone, and without a note it is not shown.
        brief: Headings that a narrow terminal and documents show; empty means all.
        page_only: Whether a terminal leaves it out.
        folded: Whether the page shows its heading alone until it is opened.
        classes: Class of each row on the page: the state of an audit, or ``spoiled``.
    """

    key: str
    heading: str
    rows: Sequence[Cells]
    note: str = ""
    brief: Sequence[str] = ()
    page_only: bool = True
    folded: bool = False
    classes: Sequence[str] = ()

    def headings(self, *, brief: bool = False) -> list[str]:
        """Headings under which at least one row has a value, in the order of the rows."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        filled = [name for name in names if any(row.get(name, NONE) not in ("", NONE) for row in self.rows)]
        return [name for name in filled if name in self.brief] if brief and self.brief else filled

    def cells(self, headings: Sequence[str]) -> list[list[str]]:
        """Rows of cells in the order of the headings."""
        return [[row.get(name) or NONE for name in headings] for row in self.rows]

    def left(self, headings: Sequence[str]) -> list[bool]:
        """Whether each column is aligned to the left: the first one, and every one that is not all numbers."""
        numeric = [all(_NUMBER.match(row.get(name, NONE) or NONE) for row in self.rows) for name in headings]
        return [index == 0 or not is_numeric for index, is_numeric in enumerate(numeric)]


@dataclass(frozen=True)
class CommandResult:
    """The result of a command, as it is shown."""

    plain: dict[str, Any]
    parts: Sequence[Table | list[str]] = ()
    failed_audits: Sequence[str] = ()


def interval(value: Estimate | None) -> str:
    """The interval of an estimate and what it is over, or a dash."""
    text = "" if value is None else form.interval(value.low, value.high)
    return f"{text} ({value.basis})" if text and value else NONE


def seeds_of(model: ModelSummary) -> str:
    """How many seeds, and how many folds of each where there are several."""
    seeds, folds = len(model.seeds), len(model.runs) // max(len(model.seeds), 1)
    if folds > 1:
        return f"{folds} folds" if seeds == 1 else f"{seeds} × {folds} folds"
    return str(seeds)


def audits_of(model: ModelSummary) -> str:
    """The result of a model's audits, in a few words."""
    if model.failed_groups:
        return f"FAILED: {', '.join(model.failed_groups)}"
    return "passed" if model.audited else "none run"


def costs_of_model(model: ModelSummary, batch_sizes: Iterable[int]) -> Cells:
    """Cells with the costs of a model."""
    price = {} if model.price is None else {"Price a text": f"{model.price:g}"}
    if model.kind == ANSWERS:
        return price
    timings = {batch: model.latency.get(str(batch)) for batch in batch_sizes}
    return {
        "Parameters": form.count(model.parameters),
        "Non-embedding": form.count(model.non_embedding_parameters),
        "MiB": form.significant(model.file_size_mib),
        "FLOPs/token": form.amount(model.flops_per_token),
        **{
            f"ms, batch {batch}": f"{form.significant(timing.median_ms)} / {form.significant(timing.p90_ms)}"
            for batch, timing in timings.items()
            if timing
        },
        "Training": form.duration(model.training_wall_s),
        **price,
    }


def results(
    table: TableSummary,
    measures: Sequence[Measure],
    *,
    note: str,
    more: Callable[[Any], Cells] = lambda _: {},
    audits: Callable[[Any], str] = audits_of,
) -> Table:
    """A row a model: every measure on the headline split, what the model costs, and its audits.

    The measure that models are compared by has its interval; ``more`` gives cells that only one task has.
    """
    judge, rows = table.judged_by, []
    for model in table.models:
        cells = {"Model": model.label, "Seeds": seeds_of(model)}
        for measure in measures:
            value = measure.of(model, table.headline_split)
            cells[measure.heading] = measure.text(value)
            if measure.key == judge.key:
                cells["95 % interval"] = interval(value)
        fronts = form.words([form.front_name(front) for front in model.fronts])
        costs = costs_of_model(model, table.batch_sizes)
        rows.append({**cells, **costs, **more(model), "On the Pareto front of": fronts, "Audits": audits(model)})
    timed = next((f"ms, batch {batch}" for batch in table.batch_sizes), "")
    return Table(
        "results",
        f"Results on the {table.headline_split} split",
        rows,
        note,
        brief=("Model", *dict.fromkeys((measures[0].heading, judge.heading)), "MiB", timed, "Training", "Price a text"),
        page_only=False,
        classes=["spoiled" if model.failed_audits else "" for model in table.models],
    )


def _gap(line: Comparison | PooledContrast, measure: Measure) -> str:
    return measure.gap(line.gap, measure.width(line.half), unit=False)


def _compared(lines: Iterable[Comparison], measure: Measure) -> list[Cells]:
    """A row a comparison."""
    return [
        {
            "Contrast": line.name,
            "Models": f"{line.a} − {line.b}",
            "Verdict": line.verdict,
            f"Gap in {measure.unit} ± 95 % over seeds": _gap(line, measure),
            "Pairs of seeds": str(line.seeds),
            "95 % over rows": NONE if line.low is None or line.high is None else measure.range(line.low, line.high),
            "p (Holm)": form.p_value(line.p_holm),
            "Odds ratio": form.significant(line.odds_ratio),
            "Finding": line.statement,
        }
        for line in lines
    ]


def contrasts(table: TableSummary) -> Table:
    """The contrasts that the study file asked for."""
    measure = table.judged_by
    by_rows = (
        "Distinguishable means: the paired bootstrap over rows has p below 0.05 after Holm's correction over these "
        "contrasts, the interval over seeds excludes 0, and the seeds do not overlap. The odds ratio is the number of "
        "rows that only the first model gets right, divided by the number that only the second gets right."
    )
    by_seeds = (
        "Distinguishable means: the paired t-test over seeds has p below 0.05 after Holm's correction over all pairs "
        "of models of the table, and the seeds do not overlap. Another text could give another result."
    )
    rows = _compared(table.contrasts, measure)
    note = (
        f"Contrasts of the study file. A gap is the first model minus the second, in {measure.unit} of "
        f"{measure.in_text} on {table.headline_split}. {by_rows if measure.paired_by_rows else by_seeds}"
    )
    return Table("contrasts", "What the study asked", rows, note if rows else "")


def by_length(table: TableSummary) -> Table:
    """Accuracy by length of text, and whether the study's contrasts depend on the length."""
    rows = []
    for line in table.by_length:
        change = line.change
        write = form.decimal if change is None else lambda value: form.signed(100 * value)
        cells = {"Name": line.name} | {f"To {words:,} words": write(value) for words, value in line.values.items()}
        if change is not None and change.low is not None and change.high is not None:
            half = "" if change.half is None else f" ± {change.half * 100:.1f}"
            cells |= {
                "Longest − shortest ± 95 % over seeds": f"{form.signed(100 * change.gap)}{half}",
                "95 % over rows": f"{form.signed(100 * change.low)} to {form.signed(100 * change.high)}",
                "p (Holm)": form.p_value(change.p_holm),
                "Verdict": change.verdict,
            }
        rows.append(cells)
    note = (
        f"Accuracy on each quarter of {table.headline_split}, by number of words, and gaps of the contrasts, in "
        "points. Distinguishable means that the gap differs between the longest and the shortest quarter, by the "
        "rules of the contrasts."
    )
    return Table("by-length", "By length of text", rows, note if rows else "", page_only=False)


def pooled_contrasts(summary: Summary) -> Table | None:
    """The study's contrasts over all of its data; None if there are none. The whole study has one such table."""
    if not summary.pooled:
        return None
    measure = summary.tables[0].judged_by
    rows = [
        {
            "Contrast": line.name,
            "Models": f"{line.a} − {line.b}",
            "Verdict": line.verdict,
            f"Gap in {measure.unit} ± 95 % over data": _gap(line, measure),
            "Better on": f"{line.ahead} of {len(line.gaps)}",
            "p (Holm)": form.p_value(line.p_holm),
            "On each": "; ".join(f"{name} {measure.signed(gap)}" for name, gap in line.gaps.items()),
        }
        for line in summary.pooled
    ]
    note = (
        "Each data set counts once, with the mean gap of its tables. The interval and p are Student's t over data "
        "sets; p is corrected by Holm over these contrasts. They say what to expect on other data, as far as those "
        "are like these. Tables whose data failed an audit are left out."
    )
    return Table("pooled", "What the study asked, over all data", rows, note)


def early_exits(table: TableSummary, note: str) -> Table:
    """Costs and savings of every exit rule that was kept for a table's runs."""
    rows: list[Cells] = []
    for model in table.models:
        seeds = {run.record.run_id: run.record.seed for run in model.runs}
        for record in model.exits:
            ways = [*record.fixed, *([record.chosen] if record.chosen else [])]
            sizes = {timed.batch_size: 1.0 for way in ways for timed in way.timed}
            nowhere = EarlyExitRecord(
                label="nowhere",
                loss=record.full_loss,
                accuracy=record.full_accuracy,
                taken={record.num_recurrences: 1},
                timed=[],
            )
            for way in (nowhere, *ways):
                speed_up = {timed.batch_size: timed.speed_up for timed in way.timed} or sizes
                rows.append(
                    {
                        "Model, seed": f"{model.label}, {seeds[record.run_id]}",
                        "Leaves": way.label,
                        "Loss": form.decimal(way.loss),
                        "Accuracy": form.decimal(way.accuracy),
                        "Labels kept": NONE if way.agreement is None else f"{way.agreement:.2%}",
                        "Loops a token" if way.loss is not None else "Recurrences a row": f"{way.mean_recurrences:.2f}",
                        **{f"Times as fast, batch {size}": form.decimal(speed_up.get(size), 2) for size in sizes},
                    }
                )
    return Table("leaving", "Leaving early", rows, note if rows else "")


def tests(table: TableSummary) -> Table:
    """All pairs of models: on the same rows, or seed by seed where no rows are on disk."""
    rows = _compared(table.tests, table.judged_by)
    note = _tests_note(table) if rows else "There is only one model to test, or no pair with a seed in common."
    folded = table.judged_by.paired_by_rows or not rows
    return Table("tests", "Tests between the models", rows, note, folded=folded)


def _tests_note(table: TableSummary) -> str:
    measure = table.judged_by
    if not measure.paired_by_rows:
        return (
            f"Paired t-tests of {measure.in_text} over seeds, in {measure.unit}; p corrected by Holm over all pairs of "
            "the table, and seeds must not overlap. A model without a seed is compared with every seed of the "
            "other. Other data could give another result."
        )
    return (
        f"All tests use the same {table.headline_split} rows. A bootstrap draws them; {measure.in_text} is averaged "
        "over a model's seeds, and its 95 % interval is not corrected for the number of pairs. The odds ratio is "
        "the number of rows that only the first model gets right, divided by the number that only the second gets "
        "right. Values of p are corrected by Holm over the pairs. Distinguishable means: the corrected p is below "
        "0.05 and the seeds of the two do not overlap; by rows only means the same with one seed."
    )


def audits(table: TableSummary) -> Table:
    """Findings of the audits, the failed first."""
    # Without the rows that a note names, a verdict may have changed: it is a failure among notes.
    lines = sorted(table.audits, key=lambda line: line.status != "failed")
    rows = [
        {
            "State": line.status,
            "Audit": line.name,
            "Finding": " ".join(
                filter(None, (f"{line.summary}.", line.example and f"For example, {line.example}.", line.meaning))
            ),
            "Concerns": line.concerns,
        }
        for line in lines
    ]
    note = "" if rows else "No audit was run: leaks, shortcuts and dependence on padding are unknown."
    folded = bool(rows) and not table.failed_groups
    return Table("audits", "Audits", rows, note, folded=folded, classes=[line.status for line in lines])


def advice(table: TableSummary) -> Table:
    """The choice for each priority, and why."""
    rows = [{"What matters": item.priority, "Choice": item.choice or NONE, "Why": item.why} for item in table.advice]
    note = "" if rows else "No model here can be recommended."
    if rows and table.failed_groups:
        note = "Audits of these figures failed: trust this advice only as far as you trust the figures."
    return Table("advice", "What to choose", rows, note)


def runs_behind(table: TableSummary) -> Table:
    """A row a run: enough to find it and to run it again."""
    rows = [
        {
            "Model": model.label,
            "Seed": str(record.seed),
            "Run": record.run_id,
            "Configuration": record.config_hash,
            "Epoch kept": f"{training.best_epoch} of {training.epochs}" if training.epochs else NONE,
            "Training": form.duration(training.wall_s),
            "Recorded": form.moment(record.created),
        }
        for model in table.models
        for run in model.runs
        for record, training in [(run.record, run.record.training)]
    ]
    return Table("runs", f"Runs: {table.title}", rows)
