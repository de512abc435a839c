"""Every column of every task in every renderer: the same values, rectangular, and no label that takes effect."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from exported import export_record
from factories import RunFactory, leakage, study_latency
from language_records import exits_record, language_record
from recurra.core.exits_record import EXITS_NAME
from recurra.core.record import read_record, write_record
from recurra.evaluation.predictions import read_predictions
from recurra.report.load import load_runs
from recurra.report.render.csv import csv_tables, escape, latex_tables
from recurra.report.render.html import render_report
from recurra.report.render.terminal import terminal_blocks
from recurra.report.summary import reporting_of, summarise
from recurra.tasks.columns import EVERYWHERE, Column, Table
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.profile import PACKAGES
from recurra.tasks.questions import Contrast, PublishedReference, Questions
from recurra.tasks.summary import Summary

HOSTILE = 'a|b & <script>alert(1)</script> \\input{x} _*` "c",\n$%#{}~^ −'
SMALL = {"train": 90, "validation": 60, "test": 80}


@dataclass(frozen=True)
class Study:
    """Runs of a task and what is known of them."""

    summary: Summary
    runs: list[LoadedRun]


def classifiers(root: Path) -> Study:
    labels = (HOSTILE, "ok", "fine")
    factory = RunFactory(root, rows=SMALL, data=HOSTILE, label_names=labels, protocol="pooled", temperature=2.0)
    audits = [leakage("test", text=HOSTILE), leakage("validation", failed=False)]
    folders = [
        factory.run(name, seed=seed, audits=audits, telling=HOSTILE if name == "linear" else None, spoke=HOSTILE)
        for name in ("linear", "recurrent", "baseline")
        for seed in (0, 1)
    ]
    made = [
        export_record(path.name, "fp16", rows=80, right=60, record_hash=str(read_record(path).content_hash))
        for path in folders
        if path.name.startswith("recurrent")
    ]
    runs, _ = load_runs(folders)
    texts = {"test": dict.fromkeys(read_predictions(folders[0], "test").ids, HOSTILE)}
    questions = Questions(
        [Contrast(name=HOSTILE[:100], a="recurrent", b="baseline")],
        [PublishedReference(table="6")],
        texts=texts,
        fingerprint=runs[0].record.data.fingerprint,
    )
    return Study(summarise(runs, study_latency(folders), questions=questions, exports=made), runs)


def language_models(root: Path) -> Study:
    records = [
        language_record(preset=name, loss=loss + seed / 10, seed=seed, leaks="leaks" in name, kind=name)
        for name, loss in (("crt", 4.0), (HOSTILE, 4.2), ("leaks", 0.1))
        for seed in (0, 1)
    ]
    folders = [root / str(number) for number, _ in enumerate(records)]
    for folder, record in zip(folders, records, strict=True):
        write_record(folder, record)
        exits_record(record).write(folder / EXITS_NAME)
    runs, failed = load_runs(folders)
    assert not failed
    return Study(summarise(runs, questions=Questions([Contrast(name="x", a="crt", b=HOSTILE)])), runs)


MAKERS: dict[str, Callable[[Path], Study]] = {"classification": classifiers, "language modelling": language_models}


def make(task: str, root: Path) -> Study:
    """A study of a task that came later is made by its own module of the tests: ``study_of_PACKAGE``."""
    if task in MAKERS:
        return MAKERS[task](root)
    module = importlib.import_module(f"study_of_{PACKAGES[task].rpartition('.')[2]}")
    return Study(*module.study(root, HOSTILE))


@pytest.fixture(scope="module", params=sorted(PACKAGES))
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make(request.param, tmp_path_factory.mktemp("study"))


def parts(study: Study) -> tuple[Table, ...]:
    return reporting_of(study.summary.task).tables


class Grids(HTMLParser):
    """Rows of cells of every table of a page, by the table's label; tags inside a cell are no text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.label, self.inside, self.scripts = "", False, 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert tag not in ("input", "b", "img")
        # The page has one of its own.
        self.scripts += tag == "script"
        assert self.scripts <= 1
        if tag == "div" and values.get("class") == "frame":
            self.label = str(values["aria-label"])
            self.tables.setdefault(self.label, [])
        elif tag == "tr":
            self.tables[self.label].append([])
        elif tag in ("td", "th"):
            self.tables[self.label][-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.tables[self.label][-1][-1] += data


def flat(value: str) -> str:
    return " ".join(value.split())


def test_each_task_fills_all_of_its_tables(study: Study) -> None:
    (table,) = study.summary.tables
    filled = {part.key for part in parts(study) if part.rows(table)}
    assert filled == {part.key for part in parts(study)}


def test_the_page_has_every_column_with_its_value(study: Study) -> None:
    (table,) = study.summary.tables
    found = Grids(render_report(study.summary, study.runs, title=HOSTILE)).tables
    for part in parts(study):
        columns, rows = part.shown(table, "html")
        if not columns:
            continue
        headings, *cells = found[part.heading(table)]
        assert headings == [column.heading_in("html") for column in columns]
        assert len(cells) == len(rows)
        for drawn, row in zip(cells, rows, strict=True):
            for shown, column in zip(drawn, columns, strict=True):
                cell = column.cell(row)
                assert flat(cell.text).lower() in flat(shown).lower()
                assert all(flat(line) in flat(shown) for line in (cell.aside, *cell.below, cell.alarm))


def test_latex_has_every_column_with_its_value(study: Study) -> None:
    (table,) = study.summary.tables
    made = latex_tables(table, parts(study))
    for part in parts(study):
        columns, rows = part.shown(table, "latex")
        assert (part.key in made) == bool(columns)
        if columns:
            _, head, *body = [line for line in ["", *made[part.key].splitlines()] if line.endswith(r" \\") or not line]
            assert head == " & ".join(escape(column.heading_in("latex")) for column in columns) + r" \\"
            expected = [" & ".join(escape(column.paper(row)) for column in columns) + r" \\" for row in rows]
            assert body == expected
            assert not any(r"\input" in line for line in body)


def test_csv_has_one_field_for_every_value_in_full(study: Study) -> None:
    (table,) = study.summary.tables
    made = csv_tables(study.summary.tables, parts(study))
    for part in parts(study):
        columns, rows = part.shown(table, "csv")
        assert (part.key in made) == bool(rows and columns)
        if not columns:
            continue
        written = list(csv.DictReader(io.StringIO(made[part.key])))
        assert len(written) == len(rows)
        for found, row in zip(written, rows, strict=True):
            fields = [field for column in columns for field in column.fields(row).items()]
            names = [name for name, _ in fields]
            # No field of a column hides another's, or what names the table.
            assert len(names) == len(set(names))
            assert not set(names) & {"table", "data", "split_protocol", "part", "training", "precision"}
            for name, value in fields:
                assert found[name] == ("" if value is None else str(value))
                if isinstance(value, float):
                    assert float(found[name]) == value


def test_the_terminal_has_every_column_with_its_value(study: Study) -> None:
    (table,) = study.summary.tables
    blocks = list(terminal_blocks(study.summary))
    shown = [(part, *part.shown(table, "terminal")) for part in parts(study)]
    shown = [(part, columns, rows) for part, columns, rows in shown if rows]
    assert len(blocks) == len(shown) >= 2
    for block, (_, columns, rows) in zip(blocks, shown, strict=True):
        assert block.headings == tuple(column.heading_in("terminal") for column in columns)
        assert block.rows == tuple(tuple(column.text(row) for column in columns) for row in rows)
        assert len(block.left) == len(block.headings)


def test_a_column_that_a_task_adds_is_in_every_renderer(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    reporting = reporting_of(study.summary.task)
    results, *others = reporting.tables

    def columns(table: Any) -> list[Column]:
        return [*results.columns(table), Column("letters", "Letters & more", lambda row: len(row.model.label) / 3)]

    monkeypatch.setattr(reporting, "tables", (replace(results, columns=columns), *others))
    model = study.summary.tables[0].models[0]
    value = str(len(model.label) / 3)
    page = render_report(study.summary, study.runs, title="x")
    (latex,) = [made["results"] for made in [latex_tables(study.summary.tables[0], reporting.tables)]]
    first = next(terminal_blocks(study.summary))
    rows = list(csv.DictReader(io.StringIO(csv_tables(study.summary.tables, reporting.tables)["results"])))
    assert "Letters &amp; more</th>" in page and f"<span>{value}</span>" in page
    assert r"Letters \& more \\" in latex and f"& {value} \\\\" in latex
    assert first.headings[-1] == "Letters & more" and first.rows[0][-1] == value
    assert rows[0]["letters"] == value
    assert Column("a", "A", len).places == EVERYWHERE
