"""Keeps the tables in the README and the documentation equal to the records under ``results/``.

A document holds ``<!-- results:NAME begin -->`` and ``<!-- results:NAME end -->``; what stands between them is written
from the records of ``results/NAME/``. ``NAME.PART`` writes one part only (the key of a table of its task), and
``NAME.figures`` draws the figures into ``figures/NAME/`` beside the document. A part that a document shows by itself is
left out of the whole that it shows too. ``results:overview`` is a line for each table of all studies,
``results:claims`` what `recurra.report.claims` writes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from recurra.core.configuration import read_yaml
from recurra.core.errors import CheckpointError, ConfigurationError, DataError, unknown
from recurra.core.files import read_json, write_text
from recurra.core.record import RECORD_NAME
from recurra.deployment.export_record import load_export_records
from recurra.report.claims import claims_markdown
from recurra.report.figures import draw
from recurra.report.files import named_figures
from recurra.report.load import load_runs
from recurra.report.render.markdown import markdown_table, overview, parts_of, text
from recurra.report.summary import reporting_of, summarise
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.questions import NO_QUESTIONS, Questions, read_questions
from recurra.tasks.registry import PACKAGES
from recurra.tasks.summary import RunEntry, Summary

RUNS_FOLDER = "runs"
LATENCY_NAME = "latency.json"
SPEC_NAME = "study.yaml"
STUDY_FILES = "configs/studies"
PAGES = "docs/results"
OVERVIEW = "overview"
CLAIMS = "claims"
FIGURES_PART = "figures"
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


def questions_of(folder: Path | str) -> Questions:
    """What a study asks: from ``configs/studies/NAME.yaml`` beside ``results/``, or else from its own ``study.yaml``.

    Args:
        folder: A study's folder, ``results/NAME`` for the first.

    Raises:
        ConfigurationError: If the file is no study file.
    """
    path = Path(folder).resolve()
    for file in (path.parents[1] / STUDY_FILES / f"{path.name}.yaml", path / SPEC_NAME):
        if file.is_file():
            return read_questions(file)
    return NO_QUESTIONS


@dataclass
class _Studies:
    """The studies under ``results/``, each read once and only if a document asks for it."""

    results: Path
    pages: dict[str, Path] = field(default_factory=dict)
    summaries: dict[str, tuple[Summary, list[LoadedRun]]] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Studies that have a finished run."""
        return sorted({path.parents[2].name for path in self.results.glob(f"*/{RUNS_FOLDER}/*/{RECORD_NAME}")})

    def read(self, name: str) -> tuple[Summary, list[LoadedRun]]:
        """Summary and runs of a study."""
        if name not in self.summaries:
            folders, latency = read_study(self.results / name)
            runs, failed = load_runs(folders)
            for run in failed:
                # A committed record that cannot be read is no run that failed.
                if (self.results / name / RUNS_FOLDER / run.run_id / RECORD_NAME).exists():
                    raise CheckpointError(run.reason)
            questions = questions_of(self.results / name)
            exports = load_export_records(self.results / name)
            self.summaries[name] = summarise(runs, latency, failed, questions=questions, exports=exports), runs
        return self.summaries[name]


def render_results_markdown(
    results_dir: Path | str, documents: Sequence[Path] | None = None, *, check: bool = False
) -> list[Path]:
    """Writes every block of results in the documents anew, and a page for each study that no page shows.

    Args:
        results_dir: The folder ``results/``, with a folder for each study.
        documents: Markdown files; by default ``README.md`` and all of ``docs/`` beside the results. A study with
            records that no page of ``docs/results/`` names gets a page there, by default only.
        check: Change nothing, only tell.

    Returns:
        The files that differ from what the records say; unless ``check``, they have been rewritten or, if they are
        figures that are drawn no more, removed.

    Raises:
        ConfigurationError: If a marker names no study or part, or has no partner.
        CheckpointError: If a record is there and cannot be trusted.
    """
    studies = _Studies(Path(results_dir))
    root = studies.results.resolve().parent
    paths = list(documents) if documents is not None else [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    contents = {path: path.read_text(encoding="utf-8") for path in paths if path.is_file()}
    if documents is None and (root / PAGES).is_dir():
        contents |= _missing_pages(root, contents, studies)
    on_disk = {path: path.read_text(encoding="utf-8") for path in (root / PAGES).glob("*.md")}
    studies.pages = _pages(
        on_disk | {path: content for path, content in contents.items() if path.parent == root / PAGES}
    )
    wanted: dict[Path, str] = {}
    for path, content in contents.items():
        wanted[path] = _render(content, path, studies, wanted)
    stale = [path for path, content in wanted.items() if not _holds(path, content)]
    gone = [old for folder in {path.parent for path in wanted if path.suffix == ".svg"} for old in folder.glob("*.svg")]
    gone = [old for old in gone if old not in wanted]
    if not check:
        for path in stale:
            write_text(path, wanted[path])
        for path in gone:
            path.unlink()
    return [*stale, *sorted(gone)]


def _holds(path: Path, content: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == content


def _missing_pages(root: Path, contents: Mapping[Path, str], studies: _Studies) -> dict[Path, str]:
    """A page for each study with records that no page in ``docs/results`` has a block of."""
    folder = root / PAGES
    shown = _pages({path: content for path, content in contents.items() if path.parent == folder})
    pages = {}
    for name in studies.names():
        path = folder / f"{name}.md"
        if name not in shown and path not in contents:
            pages[path] = _new_page(name, root)
    return pages


def _pages(contents: Mapping[Path, str]) -> dict[str, Path]:
    """The first page that shows a study, by the study's name."""
    found: dict[str, Path] = {}
    for path, content in sorted(contents.items()):
        for marker in _MARKER.finditer(content):
            found.setdefault(_study_and_part(marker["name"])[0], path)
    return found


def _new_page(name: str, root: Path) -> str:
    file = root / STUDY_FILES / f"{name}.yaml"
    own = root / "results" / name / SPEC_NAME
    title = next((read_yaml(path).get("title") for path in (file, own) if path.is_file()), None)
    made = f"Made by `recurra study run {STUDY_FILES}/{name}.yaml`. " if file.is_file() else ""
    blocks = "\n\n".join(
        f"{heading}<!-- results:{name}{part} begin -->\n<!-- results:{name}{part} end -->"
        for heading, part in (("## Figures\n\n", ".figures"), ("## Tables\n\n", ""))
    )
    return (
        f"# {title or name}\n\n{made}Written from the records under [results/{name}](../../results/{name}) by "
        f"`make results`; [what a contrast means](../explanation/contrasts.md).\n\n{blocks}\n"
    )


def _render(content: str, path: Path, studies: _Studies, wanted: dict[Path, str]) -> str:
    pieces: list[str] = []
    position = 0
    shown = {marker["name"] for marker in _MARKER.finditer(content)}
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
        block = _block(name, path, studies, wanted, shown)
        pieces += [content[position : opened.end()], f"\n{NOTICE}\n\n{block}\n"]
        position, opened = marker.start(), None
    if opened is not None:
        raise ConfigurationError(f"'{path}': block 'results:{opened['name']}' has no end; write both markers")
    return "".join([*pieces, content[position:]])


def _block(name: str, path: Path, studies: _Studies, wanted: dict[Path, str], shown: Collection[str]) -> str:
    if name == OVERVIEW:
        return _overview(path, studies)
    if name == CLAIMS:
        return claims_markdown(path, lambda study: studies.read(study)[0], _addresses(path, studies))
    study, part = _study_and_part(name)
    present = sorted(item.parent.name for item in studies.results.glob(f"*/{RUNS_FOLDER}"))
    if study not in present:
        raise ConfigurationError(f"'{path}': {unknown('study of a results block', study, present)}")
    summary, runs = studies.read(study)
    if part != FIGURES_PART:
        alone = [other for of, other in map(_study_and_part, shown) if of == study]
        return markdown_table(summary, part=part, without=alone, link=partial(_link, path.resolve().parent))
    kinds = reporting_of(summary.task).documented_figures if summary.task else ()
    figures = named_figures(summary, draw(summary, runs), kinds)
    wanted.update({path.parent / "figures" / study / file: content for file, (_, content) in figures.items()})
    lines = [f"![{text(chart.heading)}](figures/{study}/{file})" for file, (chart, _) in figures.items()]
    return "\n\n".join(lines) + "\n" if lines else "No finished run.\n"


def _overview(path: Path, studies: _Studies) -> str:
    return overview({name: studies.read(name)[0] for name in studies.names()}, _addresses(path, studies))


def _addresses(path: Path, studies: _Studies) -> dict[str, str]:
    start = path.resolve().parent
    return {name: Path(os.path.relpath(page.resolve(), start)).as_posix() for name, page in studies.pages.items()}


def _study_and_part(name: str) -> tuple[str, str]:
    study, _, part = name.rpartition(".")
    return (study, part) if study and part in _every_part() else (name, "all")


@cache
def _every_part() -> frozenset[str]:
    """The parts of all tasks."""
    return frozenset((FIGURES_PART, *(part for task in PACKAGES for part in parts_of(reporting_of(task)))))


def _link(start: Path, run: RunEntry) -> str:
    """The address of a run's record, relative to the folder of the document."""
    return Path(os.path.relpath(Path(run.folder).resolve() / "record.json", start)).as_posix()
