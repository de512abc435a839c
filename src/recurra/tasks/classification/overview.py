"""A row of the overview over all studies: ours, the published figure, the linear control, the verdict."""

from __future__ import annotations

from recurra.core import formatting as form
from recurra.tasks.classification.measures import ACCURACY
from recurra.tasks.classification.summary import ClassificationTable, ClassifierSummary
from recurra.tasks.columns import EVERYWHERE, Cell, Column, Format, Table
from recurra.tasks.estimates import Estimate
from recurra.tasks.summary import ContrastLine

COMPARED = ("recurrent", "baseline")
LINEAR = "linear"


def _named(table: ClassificationTable, label: str) -> ClassifierSummary | None:
    """The model of a preset as it is; a variant of it has another label."""
    return next((model for model in table.models if model.label == label), None)


def _contrast(table: ClassificationTable) -> ContrastLine | None:
    return next((line for line in table.contrasts if (line.a, line.b) == COMPARED), None)


def _estimate(table: ClassificationTable, label: str) -> Estimate | None:
    model = _named(table, label)
    score = model.scores.get(table.headline_split) if model else None
    return score.accuracy if score else None


def half_width(value: Estimate) -> str:
    """A mean ± half of its interval."""
    if value.low is None or value.high is None:
        return form.decimal(value.mean)
    return f"{form.decimal(value.mean)} ± {form.decimal((value.high - value.low) / 2, 3)}"


def _published(table: ClassificationTable, label: str) -> str:
    return "; ".join(form.decimal(line.accuracy) for line in table.published if line.model == label) or form.NONE


def _seeds(table: ClassificationTable) -> str:
    models = [model for label in COMPARED if (model := _named(table, label))]
    return " or ".join(map(str, sorted({len(model.seeds) for model in models})))


def _gap(line: ContrastLine) -> str:
    if line.half is not None:
        return ACCURACY.gap(line.gap, ACCURACY.width(line.half), unit=False)
    known = line.low is not None and line.high is not None
    rows = f" ({ACCURACY.range(line.low, line.high)})" if known else ""  # type: ignore[arg-type]
    return ACCURACY.gap(line.gap, rows, unit=False)


def failed_audits(table: ClassificationTable) -> Cell:
    """Whether the audits of a table passed, or what failed."""
    failed = sorted({group for model in table.models for group in model.failed_groups})
    return Cell("passed") if not failed else Cell(form.words(failed), status="failed")


def _of(label: str) -> Column:
    return Column(label, label, lambda row: _estimate(row.table, label), Format(half_width))


def _published_of(label: str) -> Column:
    return Column(f"{label}_published", "published", lambda row: _published(row.table, label))


OVERVIEW = Table(
    "overview",
    lambda _: "",
    lambda _: [
        Column(
            "study",
            "Study",
            lambda row: row,
            Format(lambda row: row.study, cell=lambda row: Cell(row.study, address=row.address)),
        ),
        Column("data", "Data", lambda row: row.table.title, left=EVERYWHERE),
        Column("seeds", "Seeds", lambda row: _seeds(row.table)),
        _of(LINEAR),
        _of("baseline"),
        _published_of("baseline"),
        _of("recurrent"),
        _published_of("recurrent"),
        Column("gap", "Gap in points", lambda row: _contrast(row.table), Format(_gap)),
        Column("verdict", "Verdict", lambda row: getattr(_contrast(row.table), "verdict", "not asked")),
        Column(
            "audits",
            "Audits",
            lambda row: row.table,
            Format(lambda table: failed_audits(table).text, cell=failed_audits),
        ),
    ],
    lambda rows: [row for row in rows if all(_named(row.table, label) for label in COMPARED)],
    caption=lambda _: (
        "Test accuracy; ± half of the 95 % interval over seeds, or over the test rows with one seed. Published figures "
        "are of the papers' own split (for SST-2 the pooled one, which leaks). The gap is recurrent less baseline; a "
        "verdict holds for the rows and seeds that were tested."
    ),
    places=frozenset(("markdown",)),
)
