"""The report of a language study: one HTML file that needs nothing else, figures and plain values beside it."""

from __future__ import annotations

from pathlib import Path

from recurra.core.files import write_json, write_text
from recurra.study.report.formatting import slug
from recurra.study.report.html import REPORT_NAME, SUMMARY_NAME, environment
from recurra.study.report.language_charts import language_charts
from recurra.study.report.language_summary import LanguageSummary, LanguageTable
from recurra.study.report.language_tables import (
    DIFFERENCES_CAPTION,
    LEAVING_CAPTION,
    RESULTS_CAPTION,
    audit_rows,
    difference_rows,
    exit_rows,
    language_rows,
    leaving_rows,
    published_rows,
)
from recurra.study.report.standalone import standalone

FIGURES = "figures"


def write_language_report(folder: Path, summary: LanguageSummary, *, title: str, command: str = "") -> Path:
    """Writes ``report.html``, ``summary.json`` and ``figures/`` into a study's folder; returns the page's path.

    Raises:
        StorageError: If it cannot be written.
    """
    values = summary.plain()
    tables = [
        {
            "title": table.title,
            "conclusion": table.conclusion,
            "notes": table.notes,
            "leaks": [model.label for model in table.models if model.leaks],
            "blocks": [
                ("Results", language_rows(plain), (0, 12), RESULTS_CAPTION),
                ("Differences", difference_rows(plain), (0, 5), DIFFERENCES_CAPTION),
                ("By head", exit_rows(plain), (0, 1), ""),
                ("Leaving early", leaving_rows(plain), (0, 1), LEAVING_CAPTION),
                ("Published beside ours", published_rows(plain), (0, 1, 2, 5, 6), ""),
                ("Audits", audit_rows(plain), (0, 1, 2, 3), ""),
            ],
            "charts": language_charts(table, f"t{place}"),
        }
        for place, (table, plain) in enumerate(zip(summary.tables, values["tables"], strict=True))
    ]
    page = (
        environment()
        .get_template("language.html.j2")
        .render(title=title, command=command, tables=tables, summary=summary)
    )
    target = folder / REPORT_NAME
    write_text(target, page.encode("utf-8", "replace").decode("utf-8"))
    write_json(folder / SUMMARY_NAME, values)
    for name, content in language_figures(summary).items():
        write_text(folder / FIGURES / name, content)
    return target


def language_figures(summary: LanguageSummary) -> dict[str, str]:
    """Every drawing as a file of its own, by file name."""
    files = {}
    for place, table in enumerate(summary.tables):
        for chart in language_charts(table, f"t{place}"):
            files[f"{_stem(table, summary)}{slug(chart.heading)}.svg"] = standalone(chart, table.title)
    return files


def _stem(table: LanguageTable, summary: LanguageSummary) -> str:
    """Several tables would overwrite each other's figures."""
    return f"{slug(table.title)[:80]}-" if len(summary.tables) > 1 else ""
