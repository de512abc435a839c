"""Every measure of every task in every output: the same values, and no label that takes effect."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exported import export_record
from factories import RunFactory, leakage, study_latency
from language_records import exits_record, kept_exits, language_record
from recurra.core.exits_record import EXITS_NAME, EarlyExitRecord, TimedEarlyExit
from recurra.core.record import read_record, write_record
from recurra.evaluation.predictions import read_predictions
from recurra.report.figures import draw
from recurra.report.render import long_table, render_report, results_frame, terminal_tables, write_files
from recurra.report.summary import load_runs, reporting_of, summarise
from recurra.tasks import PACKAGES
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.measures import Estimate, Measure
from recurra.tasks.questions import Contrast, PublishedReference, Questions
from recurra.tasks.summary import Summary
from recurra.tasks.tables import Table

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
        factory.run(
            name,
            seed=seed,
            audits=audits,
            telling=HOSTILE if name == "linear" else None,
            spoke=HOSTILE,
            exit_accuracy={1: 0.7 + seed / 100} if name == "recurrent" else None,
        )
        for name in ("linear", "recurrent", "baseline")
        for seed in (0, 1)
    ]
    timed = [TimedEarlyExit(batch_size=1, full_ms=2.0, exits_ms=1.0)]
    left = EarlyExitRecord(label=HOSTILE, accuracy=0.6, agreement=0.9, taken={1: 60, 3: 20}, timed=timed)
    for path in folders:
        if path.name.startswith("recurrent"):
            kept_exits(read_record(path), [left], full_accuracy=0.7).write(path / EXITS_NAME)
    made = [
        export_record(path.name, "fp16", rows=80, right=60, record_hash=str(read_record(path).content_hash))
        for path in folders
        if path.name.startswith("recurrent")
    ]
    runs, _ = load_runs(folders)
    rows = read_predictions(folders[0], "test")
    texts = {"test": dict.fromkeys(rows.ids, HOSTILE)}
    questions = Questions(
        [Contrast(name=HOSTILE[:100], a="recurrent", b="baseline")],
        [PublishedReference(table="6")],
        texts=texts,
        fingerprint=runs[0].record.data.fingerprint,
        words={rows.key: np.arange(len(rows.ids))},
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


def parts(study: Study) -> list[Table]:
    return list(reporting_of(study.summary.task).tables(study.summary.tables[0]))


def csv_files(study: Study, folder: Path) -> dict[str, list[dict[str, str]]]:
    write_files(folder, study.summary, draw(study.summary, study.runs))
    files = sorted((folder / "tables").iterdir())
    return {path.stem: list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))) for path in files}


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
    assert all(part.rows for part in parts(study))


def test_the_page_has_every_cell(study: Study) -> None:
    found = Grids(render_report(study.summary, study.runs, title=HOSTILE)).tables
    for part in parts(study):
        headings, *cells = found[part.heading]
        assert headings == part.headings()
        for drawn, row in zip(cells, part.cells(headings), strict=True):
            for shown, cell in zip(drawn, row, strict=True):
                assert flat(cell).lower() in flat(shown).lower()


def test_the_long_table_has_every_figure_of_every_seed_in_full(study: Study, tmp_path: Path) -> None:
    (table,) = study.summary.tables
    found = csv_files(study, tmp_path)
    rows = {(row["model"], row["split"], row["measure"], row["seed"]): row["value"] for row in found["results"]}
    assert len(rows) == len(found["results"]) == len(long_table(study.summary))
    for model in table.models:
        assert float(rows[model.label, "", "parameters", ""]) == model.parameters
        for measure in reporting_of(study.summary.task).figures(table):
            for split in model.scores:
                value = measure.of(model, split)
                if value is not None:
                    assert float(rows[model.label, split, measure.key, ""]) == value.mean
                    for seed, of_seed in zip(model.seeds, value.values, strict=True):
                        assert float(rows[model.label, split, measure.key, str(seed)]) == of_seed
    assert [float(row["gap"]) for row in found["contrasts"]] == [line.gap for line in table.contrasts]
    odds = [pair.odds_ratio for pair in table.tests]
    assert [float(row["odds_ratio"]) if row["odds_ratio"] else None for row in found["tests"]] == odds
    assert "audits" in found


def test_a_measure_that_a_task_adds_is_in_every_output(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    class Letters(Measure):
        def of(self, model: Any, split: str) -> Estimate:
            return Estimate(len(model.label) / 3, None, None, None, (), "none")

    added = Letters("letters", "Letters & more", "", higher_is_better=True, read=len)
    reporting = reporting_of(study.summary.task)
    figures = reporting.figures
    monkeypatch.setattr(type(reporting), "figures", lambda self, table: [*figures(table), added])
    value = added.value(len(study.summary.tables[0].models[0].label) / 3)
    page = render_report(study.summary, study.runs, title="x")
    assert "Letters &amp; more</th>" in page and f"<span>{value}</span>" in page
    _, first, _ = next(terminal_tables(study.summary))
    assert first.rows[0]["Letters & more"] == value
    assert [row for row in long_table(study.summary) if row["measure"] == "letters"]
    table = results_frame(study.summary)
    assert "letters" in table.columns and set(table["training_precision"]) == {study.summary.tables[0].precision}
