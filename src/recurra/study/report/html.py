"""The report: one HTML file that needs nothing else, from the runs on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from recurra.core.configuration import write_yaml
from recurra.core.files import write_json, write_text
from recurra.study.export_record import ExportRecord
from recurra.study.report import formatting
from recurra.study.report.aggregate import NO_QUESTIONS, Questions, summarise
from recurra.study.report.charts import Drawings, draw
from recurra.study.report.exported_rows import EXPORTS_CAPTION, export_rows
from recurra.study.report.exports import write_exports
from recurra.study.report.runs import LoadedRun, load_runs
from recurra.study.report.summary import Summary, plain

TEMPLATES = Path(__file__).parent / "templates"
REPORT_NAME = "report.html"
SUMMARY_NAME = "summary.json"
FILTERS = (
    "decimal",
    "significant",
    "interval",
    "points",
    "p_value",
    "count",
    "amount",
    "duration",
    "moment",
    "seeds",
    "words",
    "front_name",
    "yes_no",
)


def write_report(
    output: Path | str,
    runs: Sequence[Path],
    *,
    title: str,
    command: str = "",
    latency: Mapping[str, Any] | None = None,
    failures: Mapping[str, str] | None = None,
    questions: Questions = NO_QUESTIONS,
    exports: Sequence[ExportRecord] = (),
) -> Path:
    """Writes ``report.html``, ``summary.json``, ``figures/`` and ``tables/`` from run folders.

    Args:
        output: The study's folder; or a path that ends in ``.html``, then only that file is written.
        runs: Run folders. Those without a readable record are listed as failed.
        title: Heading of the report.
        command: The command that makes these runs again.
        latency: Content of the study's ``latency.json``, if there is one.
        failures: Reasons of failed runs that the caller knows, by run identifier.
        questions: Contrasts and published tables that the study names.
        exports: Records of exports of these runs.

    Returns:
        The path of the HTML file.

    Raises:
        StorageError: If it cannot be written.
    """
    path = Path(output)
    alone = path.suffix == ".html"
    finished, failed = load_runs(runs, failures)
    base = path.parent if alone else path
    summary = summarise(finished, latency, failed, base=base, questions=questions, exports=exports)
    if alone:
        write_text(path, render_report(summary, finished, title=title, command=command))
        return path
    return write_study_report(path, summary, finished, title=title, command=command)


def write_study_report(
    folder: Path, summary: Summary, runs: Sequence[LoadedRun], *, title: str, command: str = ""
) -> Path:
    """Writes everything that a study shows into its folder: the page, its figures and tables, the plain values.

    Args:
        folder: The study's folder.
        summary: Of the runs.
        runs: The runs themselves.
        title: Heading of the report.
        command: The command that makes these runs again.

    Returns:
        The path of the HTML file.

    Raises:
        StorageError: If it cannot be written.
    """
    drawn = draw(summary, runs)
    target = folder / REPORT_NAME
    write_text(target, _render(summary, runs, drawn, title=title, command=command))
    write_json(folder / SUMMARY_NAME, summary.plain())
    write_exports(folder, summary, drawn)
    return target


def render_report(summary: Summary, runs: Sequence[LoadedRun], *, title: str, command: str = "") -> str:
    """Renders the report.

    Args:
        summary: Of the runs.
        runs: The runs themselves, for histories, lengths and configurations.
        title: Heading of the report.
        command: The command that makes these runs again.

    Returns:
        HTML. Every text that came from outside is escaped.
    """
    return _render(summary, runs, draw(summary, runs), title=title, command=command)


def _render(summary: Summary, runs: Sequence[LoadedRun], drawn: Drawings, *, title: str, command: str) -> str:
    created = sorted(run.record.created for run in runs)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            summary=summary,
            charts=drawn.tables,
            study_charts=drawn.study,
            title=title,
            command=command,
            first_created=created[0] if created else "",
            last_created=created[-1] if created else "",
            codes=_codes(runs),
            finished=len(runs),
            settings=_settings(summary, runs),
        )
    )
    # A lone surrogate from a broken file name or label cannot be written as UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """What renders the pages' templates; every text that came from outside is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({name: getattr(formatting, name) for name in FILTERS})
    environment.globals.update(
        point_range=formatting.point_range,
        none=formatting.NONE,
        export_table=lambda table: export_rows([plain(line) for line in table.exports]),
        exports_caption=EXPORTS_CAPTION,
    )
    return environment


def _codes(runs: Sequence[LoadedRun]) -> list[dict[str, Any]]:
    """Versions of the code that ran, each once."""
    found: dict[tuple[str, str | None, bool | None], int] = {}
    for run in runs:
        code = run.record.code
        key = (code.version, code.commit, code.dirty)
        found[key] = found.get(key, 0) + 1
    return [
        {"version": version, "commit": commit, "dirty": dirty, "runs": number}
        for (version, commit, dirty), number in found.items()
    ]


def _settings(summary: Summary, runs: Sequence[LoadedRun]) -> dict[str, str]:
    """The configuration of each model without the seed, as YAML, by the identifier of its first run."""
    shown = {model.runs[0].run_id for table in summary.tables for model in table.models}
    return {run.record.run_id: write_yaml(run.settings) for run in runs if run.record.run_id in shown}
