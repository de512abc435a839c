"""What a table says in sentences: the conclusion that its numbers support, and its row in the overview."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recurra.core import formatting as form
from recurra.core.formatting import seeds, words
from recurra.core.label_record import are_unequal
from recurra.tasks.audits import noted
from recurra.tasks.classification.measures import ACCURACY, MACRO_F1, cheapest_answer, judge
from recurra.tasks.classification.summary import ClassificationTable, ClassifierSummary, CostTable
from recurra.tasks.columns import EVERYWHERE, Cell, Column, Format, Table
from recurra.tasks.estimates import Estimate
from recurra.tasks.measures import Measure
from recurra.tasks.summary import AuditLine, ContrastLine, PairTest

# Rows of a class that a model must have seen judged before silence about it counts.
FEWEST = 5
# With more labels, some that a model never says are no proof that it ignores classes.
MANY_LABELS, MOST_IGNORED = 10, 0.1
# With fewer rows the intervals of two models nearly always overlap, and a reader should hear that first.
FEW_ROWS = 50
# Costs that are written out.
MOST_COSTS = 12


def conclude(table: ClassificationTable, measure: Measure) -> str:
    """The conclusion of a table, in a line or two.

    Args:
        table: What is known of it.
        measure: What it is judged by.
    """
    split = table.headline_split
    scored = [model for model in table.models if split in model.scores]
    if not scored:
        return "No model was evaluated on a common split: nothing can be concluded."
    sentences = [_one(scored[0], split)] if len(scored) == 1 else _several(table, scored, measure)
    rows = scored[0].scores[split].rows
    if rows < FEW_ROWS:
        sentences.append(
            f"{rows} {split} rows are too few to choose by: one of them is worth {100 / rows:.0f} points. Label more."
        )
    sentences.append(f"Without reading: {without_reading(table, scored[0])}.")
    if any(len(model.seeds) == 1 and model.kind != "linear" for model in scored):
        sentences.append("With one seed, another training could turn out differently.")
    sentences.extend(_audit_sentences(table.audits, split))
    return " ".join(sentences)


def _one(model: ClassifierSummary, split: str) -> str:
    score = model.scores[split]
    barred = f" It is no classifier: {model.barred}." if model.barred else ""
    return (
        f"{model.label} is right on {_percent(score.accuracy.mean)} of the {score.rows:,} {split} rows "
        f"({seeds(model.seeds)}).{barred} There is no other model to compare it with."
    )


def _several(table: ClassificationTable, models: Sequence[ClassifierSummary], measure: Measure) -> list[str]:
    split = table.headline_split
    faults = [f"{model.label} is no classifier: {fault}." for model in models if (fault := fault_of(table, model))]
    able = [model for model in models if not fault_of(table, model)]
    if not able:
        return [*faults, "No model here should be used."]
    best = best_model(able, split, measure)
    rows = best.scores[split].rows
    sentences = _why(table, best, measure)
    if measure.key == ACCURACY.key:
        sentences.append(
            f"{best.label} scores highest: {_percent(measure.mean(best, split))} of the {rows:,} {split} rows."
        )
    else:
        superlative = "scores highest" if measure.higher_is_better else "costs least"
        sentences.append(
            f"{best.label} {superlative}: {measure.value(measure.mean(best, split))} on the {rows:,} {split} rows."
        )
    behind, level, unknown = [], [], []
    for model in able:
        if model is best:
            continue
        test = find_test(table.tests, best, model)
        gap = measure.gap(measure.mean(model, split) - measure.mean(best, split))
        interval = None if test is None or test.p_holm is None else test.ahead(model.label)
        if test is None or interval is None:
            unknown.append(f"{model.label} ({gap})")
        elif test.supported:
            behind.append(f"{model.label} ({gap}, 95 % {measure.range(*interval)})")
        else:
            level.append(f"{model.label} ({gap})")
    if behind:
        sentences.append(f"Behind it, beyond chance: {words(behind)}.")
    if level:
        sentences.append(f"No difference from it is supported for {words(level)}.")
    if unknown:
        sentences.append(f"Not tested against it: {words(unknown)}.")
    misses = [
        f"{model.label} never says {never}."
        for model in able
        if not judge(table).ranks and (never := _never_said(table, model)[0])
    ]
    return [*sentences, *misses, *faults]


def _why(table: ClassificationTable, model: ClassifierSummary, measure: Measure) -> list[str]:
    """What models are judged by and why, and what an answer for all costs; nothing where that is accuracy as ever."""
    split = table.headline_split
    unequal = are_unequal(sum(row) for row in model.scores[split].confusion_matrix)
    if measure.key == (MACRO_F1 if unequal else ACCURACY).key:
        reason = f"The classes are unequal, so models are judged by {measure.in_text} and not by accuracy"
    else:
        reason = f"Models are judged by {measure.in_text}, as asked"
    if isinstance(table, CostTable):
        said, cost = cheapest_answer(table.costs, model.scores[split].confusion_matrix)
        return [f"{reason}; it is {measure.value(cost)} for who always says '{table.label_names[said]}'."]
    return [] if measure.key == ACCURACY.key and not unequal else [f"{reason}."]


def without_reading(table: ClassificationTable, model: ClassifierSummary) -> str:
    """What the commonest label gets, and what length and punctuation do, on the rows that a model was judged on."""
    share = f"the commonest label alone is right on {_percent(majority_share(model, table.headline_split))}"
    if table.form_accuracy is None:
        return share
    return f"{share}, length and punctuation alone on {_percent(table.form_accuracy)}"


def said_costs(table: CostTable) -> str:
    """The costs of mistakes, as many as can be read."""
    names = table.label_names
    cells = [
        f"'{true}' said '{said}' {cost:g}"
        for true, row in zip(names, table.costs, strict=True)
        for said, cost in zip(names, row, strict=True)
        if cost
    ]
    more = f" and {len(cells) - MOST_COSTS} more" if len(cells) > MOST_COSTS else ""
    return f"{'; '.join(cells[:MOST_COSTS])}{more}"


def fault_of(table: ClassificationTable, model: ClassifierSummary) -> str:
    """Why a model should not be used whatever it scores: it has one answer, no gain over that, or ignores a class.

    A class counts as ignored if no seed ever names it and `FEWEST` rows or more of the split are of it. Of more than
    `MANY_LABELS` labels a weak model misses some by chance: it is at fault if those have `MOST_IGNORED` of the rows. By
    a measure of ranks no answer is held against a model.
    """
    if model.barred or judge(table).ranks:
        return model.barred
    split = table.headline_split
    score = model.scores[split]
    never, share = _never_said(table, model)
    if never and (len(table.label_names) <= MANY_LABELS or share >= MOST_IGNORED):
        return f"it never says {never}"
    if isinstance(table, CostTable):
        said, least = cheapest_answer(table.costs, score.confusion_matrix)
        mean = judge(table).mean(model, split)
        name = table.label_names[said]
        return f"it costs {mean:.4f} a row, who always says '{name}' {least:.4f}" if mean >= least else ""
    share = majority_share(model, split)
    if table.judged_by == ACCURACY.key and score.accuracy.mean <= share:
        return f"it is right on {_percent(score.accuracy.mean)}, who always gives one answer on {_percent(share)}"
    return ""


def _never_said(table: ClassificationTable, model: ClassifierSummary) -> tuple[str, float]:
    """Classes that a model ignores, in words, and their share of the rows; nothing if there are none."""
    matrix = np.asarray(model.scores[table.headline_split].confusion_matrix)
    rows = matrix.sum(axis=1)
    ignored = np.flatnonzero((matrix.sum(axis=0) == 0) & (rows >= FEWEST * len(model.runs)))
    names = words([f"'{table.label_names[index]}'" for index in ignored[:3]])
    more = f" and {ignored.size - 3} more classes" if ignored.size > 3 else ""
    return f"{names}{more}" if ignored.size else "", float(rows[ignored].sum() / rows.sum())


def majority_share(model: ClassifierSummary, split: str) -> float:
    """Accuracy of the most frequent answer on the rows that a model was judged on."""
    counts = np.asarray(model.scores[split].confusion_matrix).sum(axis=1)
    return float(counts.max() / counts.sum())


def _audit_sentences(audits: Sequence[AuditLine], split: str) -> list[str]:
    failed = [line for line in audits if line.status == "failed"]
    leaking = list(dict.fromkeys(line.split for line in failed if line.name.startswith("leakage")))
    sentences = []
    if split in leaking or "" in leaking:
        sentences.append(f"The leakage audit of {split} failed: these figures flatter every model.")
    elif leaking:
        sentences.append(f"The leakage audit failed on {words(leaking)}, not on {split}.")
    if any(line.name.startswith("shortcut") and line.split in ("", split) for line in failed):
        sentences.append("The shortcut audit failed: part of the labels can be guessed without reading.")
    if any(line.scope == "model" for line in failed):
        sentences.append("A model audit failed: do not use its figures before the cause is known.")
    return [*sentences, *noted(audits, split)]


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def best_model(models: Sequence[ClassifierSummary], split: str, measure: Measure) -> ClassifierSummary:
    """The model with the best mean; of equals the one with fewer parameters."""
    return max(models, key=lambda model: (measure.merit(measure.mean(model, split)), -model.parameters))


def find_test(tests: Sequence[PairTest], first: ClassifierSummary, second: ClassifierSummary) -> PairTest | None:
    """The test between two models, in whichever order it was made."""
    wanted = {first.label, second.label}
    return next((test for test in tests if {test.first, test.second} == wanted), None)


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
    places=frozenset(("terminal",)),
)
