"""What the documents show of a language study: blocks of tables, and figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from recurra.core.errors import CheckpointError
from recurra.core.record import RECORD_NAME, LanguageRunRecord, read_any_record
from recurra.study.report.language_aggregate import load_language_runs, summarise_language
from recurra.study.report.language_charts import language_charts
from recurra.study.report.language_html import language_figures
from recurra.study.report.language_summary import LanguageSummary
from recurra.study.report.language_tables import LANGUAGE_PARTS, language_markdown
from recurra.study.report.tables import Link, text

FIGURES_PART = "figures"
PARTS = (*LANGUAGE_PARTS, FIGURES_PART)


def is_language_study(folder: Path) -> bool:
    """Whether the runs of a study trained language models, by the first record that is there."""
    records = sorted(folder.glob(f"runs/*/{RECORD_NAME}"))
    return bool(records) and isinstance(read_any_record(records[0]), LanguageRunRecord)


def read_language_study(folder: Path) -> LanguageSummary:
    """Summarises the runs of a language study.

    Raises:
        CheckpointError: If a record is there and cannot be trusted.
    """
    folders = sorted(path for path in (folder / "runs").glob("*") if path.is_dir() and not path.name.startswith("."))
    runs, failed = load_language_runs(folders)
    for run in failed:
        # A committed record that cannot be read is no run that failed.
        if (folder / "runs" / run.run_id / RECORD_NAME).exists():
            raise CheckpointError(run.reason)
    return summarise_language(runs, failed)


def language_block(folder: Path, part: str, link: Link) -> str:
    """The Markdown of one part of a language study.

    Raises:
        ConfigurationError: If there is no such part.
        CheckpointError: If a record cannot be trusted.
    """
    return language_markdown(read_language_study(folder).plain(), part=part, link=link)


def language_figure_block(folder: Path, study: str) -> tuple[str, Mapping[str, str]]:
    """The lines that show a study's figures, and the files that they show, by name."""
    summary = read_language_study(folder)
    files = language_figures(summary)
    headings = [
        chart.heading for place, table in enumerate(summary.tables) for chart in language_charts(table, str(place))
    ]
    lines = [f"![{text(heading)}](figures/{study}/{name})" for heading, name in zip(headings, files, strict=True)]
    return "\n\n".join(lines) + "\n" if lines else "No finished run.\n", files
