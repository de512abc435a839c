"""The page and the other outputs of a report: every measure of every task is in each, and no text takes effect."""

from __future__ import annotations

import csv
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import study_of_multilabel
from exported import export_record
from factories import RunFactory, leakage, study_latency
from language_records import exits_record, kept_exits, language_record
from recurra.core.exits_record import EXITS_NAME, EarlyExitRecord, TimedEarlyExit
from recurra.core.record import read_record, write_record
from recurra.evaluation.predictions import read_predictions
from recurra.report.figures import draw
from recurra.report.render import TEMPLATES, long_table, render_report, results_frame, terminal_tables, write_files
from recurra.report.summary import load_runs, reporting_of, summarise
from recurra.tasks import PACKAGES
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.measures import Estimate, Measure
from recurra.tasks.questions import Contrast, Limits, PublishedReference, Questions
from recurra.tasks.summary import Summary
from recurra.tasks.tables import Table
from rendered import write_report

HOSTILE = 'a|b & <script>alert(1)</script> \\input{x} _*` "c",\n$%#{}~^ −'
SMALL = {"train": 90, "validation": 60, "test": 80}
OUR_SCRIPT = (TEMPLATES / "tables.js").read_text(encoding="utf-8").strip()
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Tags, texts and cells of a page; every element is closed in order, and only our own script runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []
        assert self.scripts == [OUR_SCRIPT] and self.named("script") == [{}]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "div" and values.get("class") == "frame":
            self.rows = self.tables.setdefault(str(values["aria-label"]), [])
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data.strip())
        elif not {"style", "title", "desc"}.intersection(self.open):
            self.words.append(data)
        if {"td", "th"}.intersection(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return flat(" ".join(self.words))

    def named(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name in tags]


def flat(value: str) -> str:
    return " ".join(value.split())


class Study(NamedTuple):
    """Runs of a task and what is known of them."""

    summary: Summary
    runs: list[LoadedRun]


def classifiers(root: Path, text: str) -> Study:
    factory = RunFactory(
        root, rows=SMALL, data=text, label_names=(text, "ok", "fine"), protocol="pooled", temperature=2.0
    )
    audits = [leakage("test", text=text), leakage("validation", failed=False)]
    folders, made = [], []
    timed = [TimedEarlyExit(batch_size=1, full_ms=2.0, exits_ms=1.0)]
    left = EarlyExitRecord(label=text, accuracy=0.6, agreement=0.9, taken={1: 60, 3: 20}, timed=timed)
    for name in ("linear", "recurrent", "baseline"):
        for seed in (0, 1):
            telling = text if name == "linear" else None
            exits = {1: 0.7 + seed / 100} if name == "recurrent" else None
            path = factory.run(name, seed=seed, audits=audits, telling=telling, spoke=text, exit_accuracy=exits)
            folders.append(path)
            if name == "recurrent":
                record = read_record(path)
                kept_exits(record, [left], full_accuracy=0.7).write(path / EXITS_NAME)
                made.append(export_record(path.name, "fp16", rows=80, right=60, record_hash=str(record.content_hash)))
    runs, _ = load_runs(folders)
    rows = read_predictions(folders[0], "test")
    questions = Questions(
        [Contrast(name=text[:100], a="recurrent", b="baseline")],
        [PublishedReference(table="6")],
        texts={"test": dict.fromkeys(rows.ids, text)},
        fingerprint=runs[0].record.data.fingerprint,
        words={rows.key: np.arange(len(rows.ids))},
    )
    return Study(summarise(runs, study_latency(folders), questions=questions, exports=made), runs)


def language_models(root: Path, text: str) -> Study:
    folders = []
    for name, loss in (("crt", 4.0), (text, 4.2), ("leaks", 0.1)):
        for seed in (0, 1):
            record = language_record(preset=name, loss=loss + seed / 10, seed=seed, leaks="leaks" in name, kind=name)
            folders.append(root / str(len(folders)))
            write_record(folders[-1], record)
            exits_record(record).write(folders[-1] / EXITS_NAME)
    runs, _ = load_runs(folders)
    return Study(summarise(runs, questions=Questions([Contrast(name="x", a="crt", b=text)])), runs)


MAKERS: dict[str, Callable[[Path, str], tuple[Summary, list[LoadedRun]]]] = {
    "classification": classifiers,
    "language modelling": language_models,
    "multi-label classification": study_of_multilabel.study,
}


@pytest.fixture(scope="module", params=sorted(PACKAGES))
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(*MAKERS[request.param](tmp_path_factory.mktemp("study"), HOSTILE))


def parts(study: Study) -> list[Table]:
    return list(reporting_of(study.summary.task).tables(study.summary.tables[0]))


def test_each_task_fills_all_of_its_tables_and_the_page_has_every_cell(study: Study) -> None:
    page = Page(render_report(study.summary, study.runs, title=HOSTILE))
    assert not page.named("input", "b", "img")
    for part in parts(study):
        assert part.rows
        headings, *cells = page.tables[part.heading]
        assert headings == part.headings()
        for drawn, row in zip(cells, part.cells(headings), strict=True):
            for shown, cell in zip(drawn, row, strict=True):
                assert flat(cell).lower() in flat(shown).lower()


def test_the_long_table_has_every_figure_of_every_seed_in_full(study: Study, tmp_path: Path) -> None:
    (table,) = study.summary.tables
    write_files(tmp_path, study.summary, draw(study.summary, study.runs))
    found = {}
    for path in (tmp_path / "tables").iterdir():
        with path.open(encoding="utf-8", newline="") as stream:
            found[path.stem] = list(csv.DictReader(stream))
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


def test_a_page_needs_nothing_else_and_failed_audits_stand_before_the_answer(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path / "runs", rows={**SMALL, "test": 400})
    folders = [
        factory.run(name, accuracy, seed=seed, audits=[leakage("test"), leakage("validation", failed=False)])
        for name, accuracy in (("linear", 0.80), ("baseline", 0.82), ("recurrent", 0.81))
        for seed in range(2)
    ]
    latency = study_latency(folders)
    first, second = (
        write_report(tmp_path / name, folders, title="A study", command="recurra compare sst2", latency=latency)
        for name in ("first", "second")
    )
    assert first.name == "report.html" and first.read_bytes() == second.read_bytes()
    page = Page(first.read_text(encoding="utf-8"))
    assert page.text.index("Audits failed") < page.text.index("The answer")
    assert [item.get("class") for item in page.named("tr")].count("spoiled") == 3
    assert page.text.count("FAILED: leakage on test") == 3
    assert "trust this advice only as far as" in page.text
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        references = (attributes.get("aria-labelledby") or "").split()
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "action", "data"):
                assert str(value).startswith(("#", "data:,"))
                references += [str(value)[1:]] if str(value).startswith("#") else []
        assert set(references) <= set(ids)


def test_text_from_outside_is_inert_wherever_it_comes_from(tmp_path: Path) -> None:
    text = "<script>alert(1)</script></style><img src=x onerror=alert(1)>\"'&<b>a\x00b\ud800c"
    # A record on disk is UTF-8, what a caller passes need not be.
    stored = text.encode("utf-8", "replace").decode()
    audit = leakage("test").model_copy(update={"summary": stored, "details": {"examples": [{"text": stored}]}})
    factory = RunFactory(
        tmp_path / "runs", rows=SMALL, data=stored, protocol=stored, training=stored, label_names=(stored, "ok")
    )
    folder = factory.run("recurrent", audits=[audit], notes=[stored], run_id="run", settings={"note": stored})
    path = write_report(tmp_path, [folder], title=text, command=text, failures={text: text})
    page = Page(path.read_text(encoding="utf-8"))
    assert page.named("img", "b") == [] and len(page.named("style")) == 1


def test_no_run_at_all_is_still_a_page(tmp_path: Path) -> None:
    page = Page(write_report(tmp_path, [tmp_path / "gone"], title="x").read_text(encoding="utf-8"))
    assert "No run finished" in page.text and "1 run failed" in page.text


@pytest.mark.parametrize("name", ["linear", "recurrent"])
def test_one_bare_run_renders(tmp_path: Path, name: str) -> None:
    factory = RunFactory(tmp_path, rows=SMALL, data="reviews.csv", protocol="split")
    folder = factory.run(name, latency=False, predictions=[], epochs=1, dirty=True)
    text = Page(write_report(tmp_path, [folder], title="x").read_text(encoding="utf-8")).text
    for said in ("only one model to test", "No latency was measured", "No audit was run", "cannot be repeated exactly"):
        assert said in text
    assert "published" not in text


def test_where_nothing_can_be_recommended_the_page_says_why(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    runs, _ = load_runs([factory.run("linear", 0.8), factory.run("recurrent", 0.9)])
    questions = Questions(limits=Limits(max_mib=0.001))
    text = Page(render_report(summarise(runs, base=tmp_path, questions=questions), runs, title="x")).text
    assert "Nothing can be recommended" in text and "no model here stays within 0.001 MiB" in text
    assert "Use None" not in text
