"""Keeps the results in the README and the documentation equal to the records under ``results/``.

A document holds ``<!-- results:NAME begin -->`` and ``<!-- results:NAME end -->``; what stands between them is written
from the records of ``results/NAME/``: what follows from them, the results, what the study asked, and the command that
shows everything else. ``NAME.across`` writes the scores on each of its data alone, ``results:overview`` a line for each
table of all studies, ``results:claims`` what `recurra.report.claims` writes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recurra.core.configuration import read_yaml
from recurra.core.errors import CheckpointError, ConfigurationError, DataError, unknown
from recurra.core.files import read_json, write_text
from recurra.core.packed import RUNS_NAME, in_study, run_folders, study_files
from recurra.core.record import RECORD_NAME
from recurra.deployment.export_record import load_export_records
from recurra.report.claims import claims_markdown
from recurra.report.load import load_runs
from recurra.report.render.markdown import across, overview, study_page
from recurra.report.summary import summarise
from recurra.tasks.questions import NO_QUESTIONS, Questions, read_questions
from recurra.tasks.summary import Summary

LATENCY_NAME = "latency.json"
SPEC_NAME = "study.yaml"
STUDY_FILES = "configs/studies"
PAGES = "docs/results"
OVERVIEW = "overview"
CLAIMS = "claims"
ACROSS = ".across"
NOTICE = "<!-- Written by `make results` from the records; changes here are lost. -->"

_MARKER = re.compile(r"^[ \t]*<!-- results:(?P<name>\S+) (?P<edge>begin|end) -->[ \t]*$", re.MULTILINE)


def read_study(folder: Path | str) -> tuple[list[Path], dict[str, Any] | None]:
    """Finds the run folders of a study, packed or not, and reads its ``latency.json``.

    Args:
        folder: A study's output folder, or one under ``results/``.

    Returns:
        Run folders by name, and the latency measurements if there are any.

    Raises:
        DataError: If the folder holds no runs, or the measurements are not JSON.
    """
    path = Path(folder)
    runs = run_folders(path)
    if not runs:
        raise DataError(f"'{path}' holds no runs; give the --output folder of a study, or a packed study")
    latency_path = path / LATENCY_NAME
    if not in_study(latency_path):
        return runs, None
    try:
        latency = read_json(latency_path)
    except (OSError, ValueError) as error:
        raise DataError(f"'{latency_path}' cannot be read as JSON; delete it to use the runs' own latencies") from error
    return runs, latency if isinstance(latency, dict) else None


def study_file_of(folder: Path | str) -> Path | None:
    """The file of a study: ``configs/studies/NAME.yaml`` beside ``results/``, or else its own ``study.yaml``.

    Args:
        folder: A study's folder, ``results/NAME`` for the first.
    """
    path = Path(folder).resolve()
    files = (path.parents[1] / STUDY_FILES / f"{path.name}.yaml", path / SPEC_NAME)
    return next((file for file in files if in_study(file)), None)


def questions_of(folder: Path | str) -> Questions:
    """What a study asks, from its file.

    Raises:
        ConfigurationError: If the file is no study file.
    """
    file = study_file_of(folder)
    return NO_QUESTIONS if file is None else read_questions(file)


@dataclass
class _Studies:
    """The studies under ``results/``, each read once and only if a document asks for it."""

    results: Path
    pages: dict[str, Path] = field(default_factory=dict)
    summaries: dict[str, Summary] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Studies that have a finished run."""
        folders = sorted(path for path in self.results.glob("*") if path.is_dir())
        return [path.name for path in folders if study_files(path, f"{RUNS_NAME}/*/{RECORD_NAME}")]

    def read(self, name: str) -> Summary:
        """Summary of a study."""
        if name not in self.summaries:
            folder = self.results / name
            folders, latency = read_study(folder)
            runs, failed = load_runs(folders)
            for run in failed:
                # A committed record that cannot be read is no run that failed.
                if in_study(folder / RUNS_NAME / run.run_id / RECORD_NAME):
                    raise CheckpointError(run.reason)
            exports = load_export_records(folder)
            self.summaries[name] = summarise(runs, latency, failed, questions=questions_of(folder), exports=exports)
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
        The files that differ from what the records say; unless ``check``, they have been rewritten.

    Raises:
        ConfigurationError: If a marker names no study or part, or has no partner.
        CheckpointError: If a record is there and cannot be trusted.
    """
    studies = _Studies(Path(results_dir))
    root = studies.results.resolve().parent
    paths = list(documents) if documents is not None else [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    on_disk = {path: path.read_text(encoding="utf-8") for path in paths if path.is_file()}
    contents = dict(on_disk)
    if documents is None and (root / PAGES).is_dir():
        contents |= _missing_pages(root, contents, studies)
    pages = {path: path.read_text(encoding="utf-8") for path in (root / PAGES).glob("*.md")}
    studies.pages = _pages(pages | {path: text for path, text in contents.items() if path.parent == root / PAGES})
    wanted = {path: _render(content, path, studies) for path, content in contents.items()}
    stale = [path for path, content in wanted.items() if on_disk.get(path) != content]
    for path in () if check else stale:
        write_text(path, wanted[path])
    return stale


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
            found.setdefault(marker["name"].removesuffix(ACROSS), path)
    return found


def _new_page(name: str, root: Path) -> str:
    file = study_file_of(root / "results" / name)
    title = None if file is None else read_yaml(file).get("title")
    return f"# {title or name}\n\n<!-- results:{name} begin -->\n<!-- results:{name} end -->\n"


def _render(content: str, path: Path, studies: _Studies) -> str:
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
        pieces += [content[position : opened.end()], f"\n{NOTICE}\n\n{_block(name, path, studies)}\n"]
        position, opened = marker.start(), None
    if opened is not None:
        raise ConfigurationError(f"'{path}': block 'results:{opened['name']}' has no end; write both markers")
    return "".join([*pieces, content[position:]])


def _block(name: str, path: Path, studies: _Studies) -> str:
    if name == OVERVIEW:
        return _overview(path, studies)
    if name == CLAIMS:
        return claims_markdown(path, studies.read, _addresses(path, studies))
    study = name.removesuffix(ACROSS)
    present = sorted(item.name for item in studies.results.glob("*") if item.is_dir() and run_folders(item))
    if study not in present:
        raise ConfigurationError(f"'{path}': {unknown('study of a results block', study, present)}")
    summary = studies.read(study)
    return across(summary) if name.endswith(ACROSS) else study_page(summary, f"results/{study}")


def _overview(path: Path, studies: _Studies) -> str:
    return overview({name: studies.read(name) for name in studies.names()}, _addresses(path, studies))


def _addresses(path: Path, studies: _Studies) -> dict[str, str]:
    start = path.resolve().parent
    return {name: Path(os.path.relpath(page.resolve(), start)).as_posix() for name, page in studies.pages.items()}
