"""Keeps the tables in the README and the documentation equal to the records under ``results/``.

A document holds ``<!-- results:NAME begin -->`` and ``<!-- results:NAME end -->``; what stands between them is written
from the records of ``results/NAME/``. ``NAME.PART`` writes one part only (see `recurra.study.report.tables.PARTS`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from recurra.core.errors import CheckpointError, ConfigurationError, DataError, unknown
from recurra.core.files import read_json, write_text
from recurra.core.record import RECORD_NAME
from recurra.study.report.tables import PARTS, Plain, markdown_table, summarise_runs

RUNS_FOLDER = "runs"
LATENCY_NAME = "latency.json"
NOTICE = "<!-- Written by `make results` from the records; changes here are lost. -->"

_MARKER = re.compile(r"^[ \t]*<!-- results:(?P<name>\S+) (?P<edge>begin|end) -->[ \t]*$", re.MULTILINE)


def read_study(folder: Path | str) -> tuple[list[Path], dict[str, Any] | None]:
    """Finds the run folders of a study and reads its ``latency.json``.

    Args:
        folder: A study's output folder, or one under ``results/``.

    Returns:
        Run folders by name, and the latency measurements if there are any.

    Raises:
        DataError: If the folder holds no runs, or the measurements are not JSON.
    """
    path = Path(folder)
    runs = sorted(item for item in (path / RUNS_FOLDER).glob("*") if item.is_dir() and not item.name.startswith("."))
    if not runs:
        raise DataError(
            f"'{path}' holds no runs ('{RUNS_FOLDER}/' is missing or empty); give the --output folder of a study"
        )
    latency_path = path / LATENCY_NAME
    if not latency_path.is_file():
        return runs, None
    try:
        latency = read_json(latency_path)
    except (OSError, ValueError) as error:
        raise DataError(f"'{latency_path}' cannot be read as JSON; delete it to use the runs' own latencies") from error
    return runs, latency if isinstance(latency, dict) else None


def render_results_markdown(
    results_dir: Path | str, documents: Sequence[Path] | None = None, *, check: bool = False
) -> list[Path]:
    """Writes every block of results in the documents anew.

    Args:
        results_dir: The folder ``results/``, with a folder for each study.
        documents: Markdown files; by default ``README.md`` and all of ``docs/`` beside the results.
        check: Change nothing, only tell.

    Returns:
        The documents that differ from what the records say; unless ``check``, they have been rewritten.

    Raises:
        ConfigurationError: If a marker names no study or part, or has no partner.
        CheckpointError: If a record cannot be trusted.
    """
    results = Path(results_dir)
    root = results.resolve().parent
    paths = list(documents) if documents is not None else [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    summaries: dict[str, Plain] = {}
    stale = []
    for path in paths:
        if not path.is_file():
            continue
        before = path.read_text(encoding="utf-8")
        after = _render(before, path, results, summaries)
        if after != before:
            stale.append(path)
            if not check:
                write_text(path, after)
    return stale


def _render(content: str, path: Path, results: Path, summaries: dict[str, Plain]) -> str:
    pieces: list[str] = []
    position = 0
    opened: re.Match[str] | None = None
    for marker in _MARKER.finditer(content):
        name = marker["name"]
        if marker["edge"] == "begin":
            if opened is not None:
                raise ConfigurationError(
                    f"'{path}': block 'results:{opened['name']}' has no end before 'results:{name}'"
                )
            opened = marker
            continue
        if opened is None or opened["name"] != name:
            raise ConfigurationError(f"'{path}': 'results:{name} end' has no begin; write both markers")
        block = _block(name, path, results, summaries)
        pieces += [content[position : opened.end()], f"\n{NOTICE}\n\n{block}\n"]
        position, opened = marker.start(), None
    if opened is not None:
        raise ConfigurationError(f"'{path}': block 'results:{opened['name']}' has no end; write both markers")
    return "".join([*pieces, content[position:]])


def _block(name: str, path: Path, results: Path, summaries: dict[str, Plain]) -> str:
    study, part = _study_and_part(name)
    if study not in summaries:
        studies = sorted(item.parent.name for item in results.glob(f"*/{RUNS_FOLDER}"))
        if study not in studies:
            raise ConfigurationError(f"'{path}': {unknown('study of a results block', study, studies)}")
        summaries[study] = summarise_runs(*read_study(results / study))
        for run in summaries[study]["failed_runs"]:
            # A committed record that cannot be trusted is no run that failed.
            if (results / study / RUNS_FOLDER / run["run_id"] / RECORD_NAME).exists():
                raise CheckpointError(run["reason"])
    return markdown_table(summaries[study], part=part, link=partial(_link, path.resolve().parent))


def _study_and_part(name: str) -> tuple[str, str]:
    study, _, part = name.rpartition(".")
    return (study, part) if study and part in PARTS else (name, "all")


def _link(start: Path, run: Plain) -> str:
    """The address of a run's record, relative to the folder of the document."""
    return Path(os.path.relpath(Path(run["folder"]).resolve() / "record.json", start)).as_posix()
