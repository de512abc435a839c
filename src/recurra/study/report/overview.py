"""One line a table over all studies: ours, the published figure, the linear control, the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recurra.study.report import formatting as form
from recurra.study.report.tables import Plain, grid, text

COMPARED = ("recurrent", "baseline")
LINEAR = "linear"

CAPTION = (
    "Test accuracy; ± half of the 95 % interval over seeds, or over the test rows with one seed. Published figures are "
    "of the papers' own split (for SST-2 the pooled one, which leaks). The gap is recurrent less baseline; a verdict "
    "holds for the rows and seeds that were tested."
)


def overview(summaries: Mapping[str, Plain], addresses: Mapping[str, str]) -> str:
    """Markdown of a table with one line for each table of each study that has both of the papers' models.

    Args:
        summaries: Plain summaries by the study's name, see `recurra.study.report.tables.summarise_runs`.
        addresses: Where the page of a study lies, by the study's name.
    """
    headings = ["Study", "Data", "Seeds", "linear", "baseline", "published", "recurrent", "published"]
    headings += ["Gap in points", "Verdict", "Audits"]
    rows = [
        _row(name, addresses.get(name), table)
        for name, summary in summaries.items()
        for table in summary["tables"]
        if all(_model(table, preset) for preset in COMPARED)
    ]
    return f"{grid(headings, rows, left=2)}\n\n{CAPTION}\n" if rows else "No finished run.\n"


def _row(name: str, address: str | None, table: Plain) -> list[str]:
    recurrent, baseline = (_model(table, preset) for preset in COMPARED)
    contrast = _contrast(table, recurrent, baseline)
    failed = sorted({group for model in table["models"] for group in model["failed_groups"]})
    return [
        f"[{text(name)}]({address})" if address else text(name),
        text(table["title"]),
        _seeds(recurrent, baseline),
        _accuracy(table, _model(table, LINEAR)),
        _accuracy(table, baseline),
        _published(table, baseline),
        _accuracy(table, recurrent),
        _published(table, recurrent),
        _gap(contrast),
        contrast["verdict"] if contrast else "not asked",
        f"**failed**: {text(form.words(failed))}" if failed else "passed",
    ]


def _model(table: Plain, preset: str) -> Plain | None:
    """The model of a preset as it is; a variant of it has another label."""
    return next((model for model in table["models"] if model["label"] == preset), None)


def _contrast(table: Plain, first: Plain | None, second: Plain | None) -> Plain | None:
    if first is None or second is None:
        return None
    asked = (first["label"], second["label"])
    return next((line for line in table["contrasts"] if (line["a"], line["b"]) == asked), None)


def _seeds(*models: Plain | None) -> str:
    counts = sorted({len(model["seeds"]) for model in models if model is not None})
    return " or ".join(map(str, counts))


def _accuracy(table: Plain, model: Plain | None) -> str:
    score = model["scores"].get(table["headline_split"]) if model else None
    if score is None:
        return form.NONE
    estimate = score["accuracy"]
    if estimate["low"] is None:
        return form.decimal(estimate["mean"])
    return f"{form.decimal(estimate['mean'])} ± {form.decimal((estimate['high'] - estimate['low']) / 2, 3)}"


def _published(table: Plain, model: Plain | None) -> str:
    lines: Sequence[Plain] = [line for line in table["published"] if model and line["model"] == model["label"]]
    return "; ".join(form.decimal(line["accuracy"]) for line in lines) or form.NONE


def _gap(contrast: Plain | None) -> str:
    if contrast is None:
        return form.NONE
    if contrast["half"] is not None:
        return form.points(contrast["gap"]).replace(" points", f" ± {contrast['half'] * 100:.1f}")
    rows = f" ({form.point_range(contrast['low'], contrast['high'])})" if contrast["low"] is not None else ""
    return form.points(contrast["gap"]).replace(" points", rows)
