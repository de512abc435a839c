"""Keeps the results in the README and the documentation equal to the records under ``results/``: ``make results``.

A document holds ``<!-- results:NAME begin -->`` and ``<!-- results:NAME end -->``; what stands between them is written
from the records of ``results/NAME/``: what follows from them, the results, what the study asked, and the command that
shows everything else. ``NAME.across`` writes the scores on each of its data alone, ``NAME.splits`` those on each split,
``NAME.depths`` those after each recurrence, ``NAME.passes`` the recurrences that rows took, ``NAME.exports`` those of
each export, ``results:default-ladder`` the models of the default ladder on every corpus that all were tried on,
``results:claims`` the verdicts on the papers' claims (`claims_markdown`).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from docs.site.claims import claims_markdown, markdown_grid
from scipy.stats import spearmanr

from recurra.core import terminal as form
from recurra.core.configuration import read_yaml
from recurra.core.errors import CheckpointError, ConfigurationError, RecurraError, unknown
from recurra.core.files import write_text
from recurra.core.packed import RUNS_NAME, in_study, run_folders, study_files
from recurra.core.progress import Reporter
from recurra.core.record import RECORD_NAME, MetricsRecord, read_record
from recurra.data.depth_corpora import DEPTH_CORPORA, level_name
from recurra.deployment.export_record import load_export_records
from recurra.report.summary import load_runs, read_latency_file, read_study, reporting_of, study_file_of, summarise
from recurra.study.spec import load_study
from recurra.tasks.classification.measures import ACCURACY, exit_measures
from recurra.tasks.measures import Estimate, Measure, over_seeds
from recurra.tasks.questions import NO_QUESTIONS, Questions
from recurra.tasks.summary import Comparison, PooledContrast, Summary, TableSummary
from recurra.tasks.tables import Table

PAGES = "docs/results"
DEFAULT_LADDER = "default-ladder"
CLAIMS = "claims"
NOTICE = "<!-- written by `make results` -->"

_MARKER = re.compile(r"^[ \t]*<!-- results:(?P<name>\S+) (?P<edge>begin|end) -->[ \t]*$", re.MULTILINE)


def questions_of(folder: Path | str) -> Questions:
    """What a study asks, from its file.

    Raises:
        ConfigurationError: If the file is no study file.
    """
    file = study_file_of(folder)
    return NO_QUESTIONS if file is None else load_study(file).questions


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
            runs, failed = load_runs(read_study(folder))
            for run in failed:
                # A committed record that cannot be read is no run that failed.
                if in_study(folder / RUNS_NAME / run["run_id"] / RECORD_NAME):
                    raise CheckpointError(run["reason"])
            exports = load_export_records(folder)
            self.summaries[name] = summarise(
                runs, read_latency_file(folder), failed, questions=questions_of(folder), exports=exports
            )
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
            found.setdefault(marker["name"].partition(".")[0], path)
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
    if name == DEFAULT_LADDER:
        return _ladder(studies)
    if name == CLAIMS:
        return claims_markdown(path, studies.read, _addresses(path, studies))
    study, _, part = name.partition(".")
    if not run_folders(studies.results / study):
        present = sorted(item.name for item in studies.results.glob("*") if item.is_dir() and run_folders(item))
        raise ConfigurationError(f"'{path}': {unknown('study of a results block', study, present)}")
    summary = studies.read(study)
    parts = {"across": across, "splits": by_split, "depths": by_depth, "exports": by_export}
    if part == "passes":
        return by_passes(studies.results / study)
    if part and part not in parts:
        raise ConfigurationError(f"'{path}': {unknown('part of a study', part, [*parts, 'passes'])}")
    return parts[part](summary) if part else study_page(summary, f"results/{study}")


NO_RUN = "No finished run.\n"
_MOST_COLUMNS = 6
_ON_OTHERS = ("Behind it", "No difference from it ", "Not tested against it")


def study_page(summary: Summary, folder: str) -> str:
    """What a page shows of a study, and the command that shows the rest."""
    if not summary.tables:
        return NO_RUN
    reporting = reporting_of(summary.task)
    blocks: list[str] = []
    names = dict(zip((table.key for table in summary.tables), _short_names(summary.tables), strict=True))
    if len(summary.tables) > 1:
        blocks.append(_across(summary.tables))
        forms = [(names[table.key], getattr(table, "form_accuracy", None)) for table in summary.tables]
        alone = [f"{escaped(name)} {value:.3f}" for name, value in forms if value is not None]
        short = 0 < len(alone) <= _MOST_COLUMNS
        blocks.append(f"Length and punctuation alone: {', '.join(alone)}." if short else "")
    else:
        (table,) = summary.tables
        blocks.append(escaped(_brief(table.conclusion) if table.contrasts else table.conclusion))
        blocks += [
            markdown_table(reporting.tables(table)[0], brief=True),
            f"On the {escaped(table.headline_split)} split of {escaped(table.title)}.",
        ]
    blocks.append(_asked(summary))
    several = len(summary.tables) > 1
    lines = [
        f"* failed audits{f' on {escaped(names[table.key])}' if several else ''}: {escaped(form.words(failed))}"
        for table in summary.tables
        if (failed := list(table.failed_groups))
    ]
    lines += [f"* failed run: {escaped(run['run_id'])}: {escaped(run['reason'])}" for run in summary.failed_runs]
    blocks.append("\n".join(lines))
    blocks.append(f"More: `recurra study report {folder}`.")
    return "\n\n".join(filter(None, blocks)) + "\n"


def _brief(conclusion: str) -> str:
    """A conclusion without its sentences on every other model, whose figures the tables beside it show."""
    sentences = conclusion.replace(". ", ".\n").splitlines()
    return " ".join(each for each in sentences if not each.startswith(_ON_OTHERS))


def across(summary: Summary) -> str:
    """What each model of a study scores on each of its data."""
    return _across(summary.tables) + "\n" if summary.tables else NO_RUN


def by_split(summary: Summary) -> str:
    """What each model scores on each reported split, a table for each of the data."""
    blocks = []
    for table in summary.tables:
        judge = table.judged_by
        rows = []
        for split in table.reported_splits:
            # A level of difficulty has its mean alone, so that a row fits a page.
            text = (lambda value: f"{value.mean:.3f}") if any(map(str.isdigit, split)) else _mean_and_spread
            values = [judge.of(model, split) for model in table.models]
            rows.append([escaped(split), *(form.NONE if value is None else text(value) for value in values)])
        seeds = max(len(model.seeds) for model in table.models)
        spread = f", mean over {seeds} seeds, of whole splits ± standard deviation" if seeds > 1 else ""
        grid = markdown_grid(["Split", *(escaped(model.label) for model in table.models)], rows)
        blocks.append(f"{grid}\n\n{escaped(judge.heading)} on each split{spread}.")
    return "\n\n".join(blocks) + "\n" if blocks else NO_RUN


def by_depth(summary: Summary) -> str:
    """What each model with exits scores after each recurrence with a head, on each of a study's data."""
    exits = {measure.key: measure for table in summary.tables for measure in exit_measures(table)}
    measures = [*(exits[key] for key in sorted(exits, key=_natural)), ACCURACY]
    rows = []
    for table, name in zip(summary.tables, _short_names(summary.tables), strict=True):
        for model in table.models:
            values = [measure.of(model, table.headline_split) for measure in measures]
            if any(value is not None for value in values[:-1]):
                cells = [form.NONE if value is None else _mean_and_spread(value) for value in values]
                rows.append([escaped(name), escaped(model.label), *cells])
    headings = ["Data", "Model", *(measure.heading for measure in measures[:-1]), "After the last"]
    several = any(len(model.seeds) > 1 for table in summary.tables for model in table.models)
    over = ", mean ± standard deviation over seeds" if several else ""
    return f"{markdown_grid(headings, rows, (True, True))}\n\nAccuracy on test{over}.\n"


def by_export(summary: Summary) -> str:
    """What each model scores in each format and precision, and how many labels differ from its own in FP32."""
    blocks = []
    for table in summary.tables:
        cells: dict[str, dict[str, str]] = {}
        for row in table.exports:
            if row["exits"] is None:
                kind = f"{row['format']} {row['precision']}, {row['computed']}"
                cells.setdefault(row["model"], {})[kind] = f"{row['accuracy'].mean:.4f} ({row['labels_changed']})"
        kinds = list(dict.fromkeys(kind for found in cells.values() for kind in found))
        rows = [[escaped(model), *(found.get(kind, form.NONE) for kind in kinds)] for model, found in cells.items()]
        told = (
            f"Accuracy on {escaped(table.headline_split)}, and labels that differ from those of the run's model in FP32"
        )
        if rows:
            grid = markdown_grid(["Model", *map(escaped, kinds)], rows)
            blocks.append(f"{grid}\n\n{told}, by stored weights and computation.")
    return "\n\n".join(blocks) + "\n" if blocks else "No export.\n"


def by_passes(folder: Path) -> str:
    """The recurrences that rows took of each difficulty, where the model decides it, and whether both rank alike."""
    records = [read_record(run) for run in run_folders(folder)]
    halting = [record for record in records if any(part.recurrences for part in record.metrics.values())]
    blocks = []
    for corpus in DEPTH_CORPORA:
        levels = [level_name(corpus, level) for level in corpus.levels]
        models: dict[str, list[Mapping[str, MetricsRecord]]] = {}
        for record in halting:
            if record.config["data"]["name"] == corpus.name:
                models.setdefault(record.config["model"], []).append(record.metrics)
        if not models:
            continue
        rows = [
            [
                level,
                *(f"{statistics.fmean(_mean_taken(seed[level]) for seed in seeds):.2f}" for seeds in models.values()),
            ]
            for level in levels
        ]
        for name, among in (("inside training", levels[: corpus.inside]), ("all", levels)):
            correlations = [[_correlation(seed, among) for seed in seeds] for seeds in models.values()]
            rows.append([f"rank correlation, {name}", *map(_mean_of, correlations)])
        grid = markdown_grid([escaped(corpus.name), *map(escaped, models)], rows)
        blocks.append(f"{grid}\n\nPasses a row, and their rank correlation (Spearman) with the {corpus.unit}.")
    return "\n\n".join(blocks) + "\n" if blocks else NO_RUN


def _mean_taken(metrics: MetricsRecord) -> float:
    taken = metrics.recurrences or {}
    return sum(number * rows for number, rows in taken.items()) / max(1, sum(taken.values()))


def _correlation(metrics: Mapping[str, MetricsRecord], levels: Sequence[str]) -> float:
    counts = [
        (step, number, rows)
        for step, level in enumerate(levels)
        for number, rows in (metrics[level].recurrences or {}).items()
    ]
    steps, taken, times = np.array(counts).T
    if len(set(taken)) == 1:
        return 0.0  # the same for every row: it follows nothing
    return float(spearmanr(np.repeat(steps, times), np.repeat(taken, times)).statistic)


def _mean_of(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def _mean_and_spread(value: Estimate) -> str:
    return f"{value.mean:.3f}" + (f" ± {value.sd:.3f}" if value.sd else "")


def _asked(summary: Summary) -> str:
    """What the study asked, a line a contrast and a column for each of its data; nothing if it asked nothing."""
    tables = [table for table in summary.tables if table.contrasts]
    if not tables:
        return ""
    measure = tables[0].judged_by
    columns: dict[str, Sequence[Comparison | PooledContrast]] = {"Over all data": summary.pooled}
    if not summary.pooled or len(tables) <= _MOST_COLUMNS:
        names = _short_names(tables) if len(tables) > 1 else ["Gap"]
        columns = {**{name: table.contrasts for name, table in zip(names, tables, strict=True)}, **columns}
    columns = {name: lines for name, lines in columns.items() if lines}
    asked = dict.fromkeys((line.name, line.a, line.b) for table in tables for line in table.contrasts)
    rows = []
    for name, a, b in asked:
        of_column = (
            next((line for line in lines if (line.name, line.a, line.b) == (name, a, b)), None)
            for lines in columns.values()
        )
        gaps = [form.NONE if line is None else _gap(line, measure) for line in of_column]
        rows.append([f"{escaped(name)}: {escaped(a)} − {escaped(b)}", *gaps])
    note = f"{measure.unit.capitalize()} of {measure.in_text} ± half of the 95 % interval; bold: distinguishable"
    note += ", † by the rows of one seed alone." if any("†" in cell for row in rows for cell in row) else "."
    return "\n\n".join([markdown_grid(["Asked", *map(escaped, columns)], rows), note])


def _gap(line: Comparison | PooledContrast, measure: Measure) -> str:
    gap = escaped(measure.gap(line.gap, measure.width(line.half), unit=False))
    marks = {"distinguishable": f"**{gap}**", "by rows only": f"{gap} †"}
    return marks.get(line.verdict, gap)


def _across(tables: Sequence[TableSummary]) -> str:
    """What each model of a study scores on each of its data: all tables in one, draws of the same rows in one line."""
    labels = list(dict.fromkeys(model.label for table in tables for model in table.models))
    draws: dict[tuple[str, ...], list[TableSummary]] = {}
    for table in tables:
        draws.setdefault((table.data, table.protocol, table.subset, table.training, table.precision), []).append(table)

    def score(drawn: Sequence[TableSummary], label: str) -> str:
        found = [
            estimate
            for table in drawn
            for model in table.models
            if model.label == label and (estimate := table.judged_by.of(model, table.headline_split))
        ]
        if not found:
            return form.NONE
        value = (over_seeds(tuple(draw.mean for draw in found), (None, None)) if len(found) > 1 else None) or found[0]
        return _mean_and_spread(value)

    names = _short_names([drawn[0] for drawn in draws.values()])
    scores = zip(names, ([score(drawn, label) for label in labels] for drawn in draws.values()), strict=True)
    rows = [[escaped(name), *cells] for name, cells in sorted(scores, key=lambda line: _natural(line[0]))]
    measures = dict.fromkeys(table.judged_by.heading for table in tables)
    seeds = max(len(model.seeds) for table in tables for model in table.models)
    spread = [f"{seeds} seeds"] if seeds > 1 else []
    spread += [f"{most} draws of the rows"] if (most := max(map(len, draws.values()))) > 1 else []
    over = f", mean ± standard deviation over {' and '.join(spread)}" if spread else ""
    caption = f"{' or '.join(measures)} on {form.words(sorted({table.headline_split for table in tables}))}{over}."
    return f"{markdown_grid(['Data', *map(escaped, labels)], rows)}\n\n{escaped(caption)}"


def _short_names(tables: Sequence[TableSummary]) -> list[str]:
    """The data of each table, or else what tells its title from the others."""
    parts = [table.title.split(" · ") for table in tables]
    common = set.intersection(*map(set, parts))
    levels = [
        [table.data for table in tables],
        [f"{table.data} · {table.subset}" for table in tables],
        [" · ".join(part for part in of_table if part not in common) for of_table in parts],
    ]
    return next((names for names in levels if len(set(names)) == len(tables)), [table.title for table in tables])


def _natural(name: str) -> list[tuple[float, str]]:
    """A key that sorts 64 behind 8."""
    parts = re.split(r"(\d+(?:[.,]\d+)*)", name)
    return [(float(part.replace(",", "")), "") if part[:1].isdigit() else (0.0, part) for part in parts]


# The models of the default ladder, the cheap ones first, and the studies that tried them.
RUNGS = ("linear-tuned", "words-and-encoder", "recurra-small", "minilm")
TRIED_IN = ("small", "rungs")
_A_POINT = 0.01


def _ladder(studies: _Studies) -> str:
    """What each model of the default ladder scores on each corpus; the smallest within a point of the best in bold."""
    rows = []
    for table in (table for name in TRIED_IN for table in studies.read(name).tables):
        models = {model.label: model for model in table.models if model.label in RUNGS}
        values = {name: table.judged_by.of(model, table.headline_split) for name, model in models.items()}
        means = {name: value.mean for name, value in values.items() if value is not None}
        near = [name for name, mean in means.items() if mean >= max(means.values()) - _A_POINT]
        smallest = min(near, key=lambda name: models[name].file_size_mib)
        cells = {name: f"{mean:.3f}" for name, mean in means.items()} | {smallest: f"**{means[smallest]:.3f}**"}
        rows.append([escaped(table.data.removesuffix(".csv")), *(cells.get(name, form.NONE) for name in RUNGS)])
    return f"{markdown_grid(['Corpus', *map(escaped, RUNGS)], rows)}\n"


def _addresses(path: Path, studies: _Studies) -> dict[str, str]:
    start = path.resolve().parent
    return {name: Path(os.path.relpath(page.resolve(), start)).as_posix() for name, page in studies.pages.items()}


def escaped(value: str) -> str:
    """Makes a text safe inside a Markdown table: no pipes, tags or line breaks take effect."""
    plain = " ".join(str(value).split()).replace("&", "&amp;").replace(">", "&gt;")
    # Before a space it begins no tag: "p < 0.001" stays as it is.
    plain = re.sub(r"<(?! )", "&lt;", plain)
    for character in "\\`*_[]|":
        plain = plain.replace(character, f"\\{character}")
    return plain


def markdown_table(table: Table, *, brief: bool = False) -> str:
    """A table as Markdown; what failed is in bold."""
    headings = table.headings(brief=brief)
    rows = [
        [re.sub("^failed", "**failed**", escaped(cell), flags=re.IGNORECASE) for cell in cells]
        for cells in table.cells(headings)
    ]
    return markdown_grid([escaped(heading) for heading in headings], rows, table.left(headings))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0, 1 if a document is stale, 2 if a marker is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.site.results",
        description="Write the results blocks of README.md and docs/ from the records under results/.",
    )
    parser.add_argument("documents", nargs="*", type=Path, help="Markdown files (default: README.md and docs/)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of records (default: results)")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a block is stale")
    options = parser.parse_args(arguments)
    reporter = Reporter()
    try:
        stale = render_results_markdown(options.results, options.documents or None, check=options.check)
    except RecurraError as error:
        reporter.say(f"error: {error}")
        return error.exit_code
    for path in stale:
        reporter.say(f"{path}: {'stale; run make results' if options.check else 'written'}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
