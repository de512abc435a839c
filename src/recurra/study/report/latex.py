"""The tables of a study for a paper: LaTeX with the rules of the package booktabs, one ``tabular`` each."""

from __future__ import annotations

from collections.abc import Sequence

from recurra.study.report import formatting as form
from recurra.study.report.exported_rows import EXPORTS_CAPTION, export_rows
from recurra.study.report.summary import Estimate, TableSummary, plain

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "<": "$<$",
    ">": "$>$",
    "·": r"$\cdot$",
    "’": "'",
    "“": "``",
    "”": "''",
}


def escape(text: str) -> str:
    """Makes a text safe inside a cell: nothing in it is a command."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(str(text).split()))


def tabular(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, comment: str = "") -> str:
    """A ``tabular`` environment with booktabs rules; cells are escaped.

    Args:
        headings: One a column.
        rows: Cells.
        left: So many columns are aligned left, the others right.
        comment: A line above, for who opens the file.
    """
    columns = "l" * left + "r" * (len(headings) - left)
    body = [" & ".join(escape(cell) for cell in cells) + r" \\" for cells in rows]
    first = f"% {' '.join(comment.split())}\n" if comment else ""
    lines = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(escape(cell) for cell in headings) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return first + "\n".join(lines) + "\n"


def _percent(estimate: Estimate) -> str:
    """Mean and half the 95 % interval in percent: ``81.2 ± 0.9``; an interval over examples is marked with a star."""
    text = f"{estimate.mean * 100:.1f}"
    if estimate.low is None or estimate.high is None:
        return text
    half = (estimate.high - estimate.low) / 2
    return f"{text} ± {half * 100:.1f}{'*' if estimate.basis == 'examples' else ''}"


def results(table: TableSummary) -> str:
    """Accuracy and F1 with intervals, size, compute and time, one row a model."""
    headings = [
        "Model",
        "Seeds",
        "Accuracy, %",
        "F1, %",
        "Parameters, M",
        "Without embeddings, M",
        "MiB",
        "MFLOP/token",
    ]
    headings += [f"ms, batch {batch}" for batch in table.batch_sizes]
    rows = []
    for model in table.models:
        score = model.scores.get(table.headline_split)
        timings = [model.latency.get(str(batch)) for batch in table.batch_sizes]
        rows.append(
            [
                model.label,
                str(len(model.seeds)),
                _percent(score.accuracy) if score else form.NONE,
                _percent(score.f1) if score else form.NONE,
                f"{model.parameters / 1e6:.2f}",
                f"{model.non_embedding_parameters / 1e6:.2f}",
                form.significant(model.file_size_mib),
                form.significant(model.flops_per_token / 1e6),
                *(form.significant(timing.median_ms if timing else None) for timing in timings),
            ]
        )
    note = f"{table.title}; {table.headline_split} split. Mean ± half the 95 % interval over seeds (*: over examples)."
    return tabular(headings, rows, comment=note)


def contrasts(table: TableSummary) -> str:
    """The contrasts that the study names; empty if there are none."""
    rows = [
        [
            line.name,
            f"{line.a} − {line.b}",
            form.point_range(line.gap, line.gap).partition(" to ")[0]
            + (f" ± {line.half * 100:.1f}" if line.half is not None else ""),
            form.point_range(line.low, line.high) if line.low is not None and line.high is not None else form.NONE,
            form.p_value(line.p_holm),
            form.significant(line.odds_ratio),
            line.verdict,
        ]
        for line in table.contrasts
    ]
    headings = ["Contrast", "Models", "Gap, points", "95 % over rows", "p (Holm)", "Odds ratio", "Verdict"]
    note = f"{table.title}; {table.headline_split} split. Gap ± half its 95 % interval over seeds."
    return tabular(headings, rows, left=2, comment=note) if rows else ""


def tests(table: TableSummary) -> str:
    """All pairs of models; empty if there is only one."""
    rows = [
        [
            f"{test.first} − {test.second}",
            form.points(test.gap).removesuffix(" points"),
            form.point_range(test.low, test.high) if test.low is not None and test.high is not None else form.NONE,
            form.p_value(test.p_holm),
            form.significant(test.odds_ratio),
            "yes" if test.supported else "no",
        ]
        for test in table.tests
    ]
    headings = ["Pair", "Gap, points", "95 % over rows", "p (Holm)", "Odds ratio", "Supported"]
    return tabular(headings, rows, comment=f"{table.title}; {table.headline_split} split.") if rows else ""


def published(table: TableSummary) -> str:
    """Published figures beside ours; empty if none belong here."""
    ours = {model.label: model.scores.get(table.headline_split) for model in table.models}
    rows = []
    for line in table.published:
        score = ours[line.model]
        rows.append(
            [
                line.model,
                line.source,
                _percent(score.accuracy) if score else form.NONE,
                f"{line.accuracy * 100:.1f}",
                form.NONE if line.difference is None else form.points(line.difference).removesuffix(" points"),
                form.yes_no(line.inside),
                line.differs or "nothing known",
            ]
        )
    headings = ["Model", "Published in", "Ours, %", "Published, %", "Difference", "In our interval", "What differs"]
    return tabular(headings, rows, left=2, comment=f"{table.title}; {table.headline_split} split.") if rows else ""


def exports(table: TableSummary) -> str:
    """The exports of each model; empty if there are none."""
    if not table.exports:
        return ""
    headings, rows = export_rows([plain(line) for line in table.exports])
    note = f"{table.title}; {table.headline_split} split. {EXPORTS_CAPTION}"
    return tabular(headings, rows, left=3, comment=note)


KINDS = {"results": results, "contrasts": contrasts, "tests": tests, "published": published, "exports": exports}
