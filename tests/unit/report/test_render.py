"""The page, drawings and files of a report: every measure of every task is in each, and no text takes effect."""

from __future__ import annotations

import csv
import importlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from exported import export_record
from factories import RunFactory, leakage, study_latency
from language_records import exits_record, kept_exits, language_record
from recurra.core.exits_record import EXITS_NAME, EarlyExitRecord, TimedEarlyExit
from recurra.core.record import read_record, write_record
from recurra.core.terminal import slug
from recurra.evaluation.predictions import read_predictions
from recurra.report.figures import charts_of, draw
from recurra.report.render import (
    TEMPLATES,
    long_table,
    named_figures,
    render_report,
    results_frame,
    terminal_tables,
    write_files,
)
from recurra.report.summary import load_runs, reporting_of, summarise
from recurra.tasks import PACKAGES, drawing
from recurra.tasks.classification.reporting import MOST_LABELS
from recurra.tasks.drawing import Chart
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


MAKERS: dict[str, Callable[[Path, str], Study]] = {
    "classification": classifiers,
    "language modelling": language_models,
}


@pytest.fixture(scope="module", params=sorted(PACKAGES))
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Study:
    package = PACKAGES[request.param].rpartition(".")[2]
    make = MAKERS.get(request.param) or importlib.import_module(f"study_of_{package}").study
    return Study(*make(tmp_path_factory.mktemp("study"), HOSTILE))


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
    write_files(tmp_path, study.summary, draw(study.summary))
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


# The drawings: well formed, true to the records and harmless; as files they are whole, and nothing is left over.

ROWS = {"train": 900, "validation": 300, "test": 400}
SVG = "{http://www.w3.org/2000/svg}"


def charts_in(folders: list[Path], lost: str = "", **asked: Any) -> list[Chart]:
    """Charts of run folders; the first was not evaluated on the split that is lost."""
    runs, _ = load_runs(folders)
    runs[0].record.metrics.pop(lost, None)
    (table,) = summarise(runs, **asked).tables
    return charts_of(table, "t0", reporting_of("classification"))


def kinds(charts: list[Chart]) -> list[str]:
    return [chart.kind for chart in charts]


def of_kind(charts: list[Chart], kind: str) -> Chart:
    return next(chart for chart in charts if chart.kind == kind)


def parse(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(str(chart.drawing))


def bubbles(chart: Chart) -> dict[str, ElementTree.Element]:
    return {item.get("class"): item for item in parse(chart).iter("circle") if "bubble" in str(item.get("class"))}


def line_points(chart: Chart, place: int = 0) -> list[tuple[float, float]]:
    """Coordinates of the points of a line of a chart."""
    line = [*parse(chart).iter("polyline")][place]
    return [(float(x), float(y)) for x, y in (point.split(",") for point in str(line.get("points")).split())]


def in_proportion(heights: Sequence[float], values: Sequence[float]) -> None:
    """Heights fall as values rise, in proportion."""
    slope = (heights[-1] - heights[0]) / (values[-1] - values[0])
    assert slope < 0
    assert heights == pytest.approx([heights[0] + slope * (value - values[0]) for value in values], abs=0.2)


def test_all_drawings_are_there_named_and_well_formed(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS)
    charts = charts_in(
        [factory.run(name, seed=seed) for name in ("linear", "baseline", "recurrent") for seed in (0, 1)]
    )
    assert kinds(charts) == ["trade-off"] * 2 + ["accuracy", "loss", "lengths"] + ["confusion"] * 3
    for chart in charts:
        root = parse(chart)
        named = {item.get("id"): item.text for item in root if item.tag in ("title", "desc")}
        assert {*root.get("aria-labelledby", "").split()} == {*named} and all(named.values())
        _, _, width, height = map(float, root.get("viewBox", "").split())
        for item in root.iter("text"):
            assert 0 <= float(item.get("x", "nan")) <= width and 0 <= float(item.get("y", "nan")) <= height
        assert [item.get("class") for item in root.iter("text")].count("axis-title") == 2
        marks = [item for item in root.iter() if str(item.get("class")).split(" ")[0] in ("mark", "bubble")]
        hints = [hint for item in marks if (hint := item.findtext("title"))]
        assert hints or chart.kind in ("lengths", "confusion")
        assert all(re.search(r"\d", hint) for hint in hints), chart.kind


def test_bubble_area_is_the_size_on_disk_and_places_are_ordered(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS)
    charts = charts_in([factory.run("baseline", 0.9), factory.run("recurrent", 0.7)])
    circles = bubbles(of_kind(charts, "trade-off"))
    (x, y, radius), (other_x, other_y, other_radius) = (
        [float(circles[f"bubble s{place}"].get(key, "nan")) for key in ("cx", "cy", "r")] for place in (0, 1)
    )
    assert (radius / other_radius) ** 2 == pytest.approx(103_660_000 / 43_900_000, rel=0.01)
    assert x > other_x and y < other_y


@pytest.mark.parametrize("start", ["recurra-small-and-words", "x" * 58])
def test_long_names_that_differ_at_the_end_are_told_apart(tmp_path: Path, start: str) -> None:
    factory = RunFactory(tmp_path, rows={**ROWS, "test": 8000})
    runs, _ = load_runs([factory.run("baseline", 0.9), factory.run("recurrent", 0.7)])
    (table,) = summarise(runs).tables
    names = [f"{start}-{end}" for end in "ab"]
    models = [replace(model, label=name) for model, name in zip(table.models, names, strict=True)]
    chart = of_kind(charts_of(replace(table, models=models), "t0", reporting_of("classification")), "trade-off")
    texts = {str(item.text): item.get("class") for item in parse(chart).iter("text")}
    beside = [text for text, class_ in texts.items() if class_ == "label"]
    assert beside == [name if len(name) < 40 else f"{'x' * 11}…{'x' * 8}{name[-2:]}" for name in names]
    sizes = [text for text in texts if text.endswith(" MiB") and not text.startswith("area")]
    assert len(sizes) == 2 and all(len(text) <= drawing.LONGEST_LABEL for text in sizes)


def test_a_label_of_the_measure_is_written_as_in_the_file(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS, label_names=("Spam", "ham"))
    asked = Questions((Contrast(name="x", a="recurrent", b="linear"),), measure="f1:Spam")
    charts = charts_in([factory.run("linear", 0.7), factory.run("recurrent", 0.9)], questions=asked)
    texts = {chart.kind: [str(item.text) for item in parse(chart).iter("text")] for chart in charts}
    assert "F1 of 'Spam' on test" in texts["trade-off"]
    assert any(text.startswith("gap in F1 of 'Spam' in points") for text in texts["isolation"])


def test_what_costs_nothing_is_drawn_too(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS)
    asked = Questions(prices={"linear": 0.0, "recurrent": 0.1})
    charts = charts_in([factory.run("linear", 0.7), factory.run("recurrent", 0.9)], questions=asked)
    chart = next(chart for chart in charts if chart.heading == "Accuracy against price")
    assert len(bubbles(chart)) == 2 and "linear and recurrent" in chart.caption


def test_lines_and_areas_are_those_of_the_records(tmp_path: Path) -> None:
    folder = RunFactory(tmp_path, rows=ROWS).run("recurrent", epochs=5)
    charts, record = charts_in([folder]), read_record(folder)
    in_proportion(
        [y for _, y in line_points(of_kind(charts, "loss"))],
        [epoch.validation_loss for epoch in record.training.history],
    )
    (_, base), *points = line_points(of_kind(charts, "lengths"))
    drawn = list({round(x, 1): base - y for x, y in points[:-1:2]}.values())
    counts = record.data.splits["train"].words.counts
    largest = max(range(len(drawn)), key=drawn.__getitem__)
    for height, count in zip(drawn, counts, strict=False):
        assert height / drawn[largest] == pytest.approx(count / counts[largest], abs=0.01)


def test_splits_of_rising_difficulty_are_drawn_in_their_order(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows={**ROWS, "hops-1": 200, "hops-2": 210, "hops-3": 220})
    folder = factory.run("baseline", 0.7)
    chart = of_kind(charts_in([factory.run("stacked-narrow", 0.6), folder], lost="hops-2"), "difficulty")
    lost, points = line_points(chart, 1), line_points(chart)
    assert [x for x, _ in lost] == [points[0][0], points[2][0]]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    metrics = read_record(folder).metrics
    in_proportion([y for _, y in points], [metrics[f"hops-{hops}"].accuracy for hops in (1, 2, 3)])
    ticks = [item.text for item in parse(chart).iter("text") if item.get("class") == "tick"]
    assert [tick for tick in ticks if "hops" in str(tick)] == ["hops-1", "hops-2", "hops-3"]


def test_little_data_still_draws(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS)
    assert kinds(charts_in([factory.run("linear", latency=False)])) == ["trade-off", "lengths", "confusion"]
    alone = charts_in([factory.run("recurrent", epochs=1)])
    assert kinds(alone) == ["trade-off", "trade-off", "accuracy", "loss", "lengths", "confusion"]
    assert all("nan" not in chart.drawing for chart in alone)


def test_many_labels_have_a_matrix_of_the_recommended_model_alone_and_too_many_none(tmp_path: Path) -> None:
    def charts(labels: int, **accuracies: float) -> list[Chart]:
        names = tuple(f"label {index}" for index in range(labels))
        factory = RunFactory(tmp_path / str(labels), rows={**ROWS, "test": 600}, label_names=names)
        return charts_in([factory.run(model, accuracy) for model, accuracy in accuracies.items()])

    (chart,) = (chart for chart in charts(11, recurrent=0.9, linear=0.5) if chart.kind == "confusion")
    assert chart.heading == "Confusion matrix: recurrent"
    titles = [item.text or "" for item in parse(chart).iter("title")]
    assert any(re.fullmatch(r"label \d+ predicted as label \d+: \d+ rows", text) for text in titles)
    assert "confusion" not in kinds(charts(MOST_LABELS + 1, recurrent=0.8))


@given(some.text(max_size=30), some.text(max_size=30))
def test_elements_escape_text_and_attributes_and_slugs_are_names_of_files(text: str, value: str) -> None:
    made = drawing.element("text", text, class_=value)
    assert re.fullmatch(r'<text class="[^"<>]*">[^<>]*</text>', str(made), re.DOTALL)
    assert re.fullmatch(r"[a-z0-9.-]+", slug(text)) and set(slug(text)) - {"."}


@given(
    some.lists(some.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=8),
    some.integers(2, 8),
)
def test_linear_scales_hold_their_values_and_have_even_ticks(values: list[float], ticks: int) -> None:
    scale = drawing.linear_axis(values, ends=(200.0, 10.0), ticks=ticks)
    assert scale.low <= min(values) + 1e-6
    assert scale.high >= max(values) - 1e-6
    assert 2 <= len(scale.ticks) <= 2 * ticks + 2
    steps = [second - first for first, second in zip(scale.ticks, scale.ticks[1:], strict=False)]
    assert steps == pytest.approx([steps[0]] * len(steps))
    assert all(10.0 <= scale(value) <= 200.0 for value in values)
    assert scale(scale.low) == 200.0


@given(some.lists(some.floats(1e-4, 1e5), min_size=1, max_size=8))
def test_logarithmic_scales_give_equal_ratios_equal_distances(values: list[float]) -> None:
    scale = drawing.logarithmic_axis(values)
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks)
    middle = math.sqrt(scale.low * scale.high)
    assert scale(middle) == pytest.approx((drawing.LEFT + drawing.RIGHT) / 2, abs=0.01)
    assert all(drawing.LEFT < scale(value) < drawing.RIGHT for value in values)


def test_charts_of_like_names_have_a_file_each(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=ROWS)
    folders = [factory.run(model) for model in ("linear", "baseline", "recurrent")]
    for folder, name in zip(folders, ("gpt-4", "gpt_4", "GPT 4"), strict=True):
        record = read_record(folder)
        model = record.model.model_copy(update={"preset": name})
        write_record(folder, record.model_copy(update={"model": model}))
    summary = summarise(load_runs(folders)[0])
    files = named_figures(summary, drawn := draw(summary))
    assert [*files.values()] == [chart for charts in drawn.values() for chart in charts]
    assert len([name for name in files if "confusion-matrix-gpt-4" in name]) == 3


def test_files_stand_alone_and_what_is_drawn_no_more_is_removed(tmp_path: Path) -> None:
    folders = []
    for fraction, length in ((1.0, 64), (0.5, 64), (0.2, 128), (0.1, 128)):
        rows = {**ROWS, "train": int(900 * fraction)}
        keys = {"fraction": fraction, "max_length": length}
        factory = RunFactory(tmp_path / "runs", rows=rows, data_config=keys)
        folders += [factory.run(name, run_id=f"{name}-{fraction}") for name in ("baseline", "recurrent")]
    questions = Questions((Contrast(name="sharing & width_5", a="recurrent", b="baseline"),))
    write_report(tmp_path, folders, title="A study", latency=study_latency(folders), questions=questions)
    figures, tables = tmp_path / "figures", tmp_path / "tables"
    for path in figures.iterdir():
        text, root = path.read_text(encoding="utf-8"), ElementTree.parse(path).getroot()
        width, height = (float(root.get(key, "0")) for key in ("width", "height"))
        assert root.tag == f"{SVG}svg" and width > 0 and height > 0
        assert not re.search(r"var\(|url\(|@import|<script|href", text)
        # Names of outside only as the name space.
        assert set(re.findall(r"https?://[^\s\"]+", text)) == {"http://www.w3.org/2000/svg"}
        assert all(0 <= float(item.get("y", "nan")) <= height for item in root.iter(f"{SVG}text"))
    # What read texts to another length is another chart.
    drawn = {f"accuracy-against-data-size-sst2-official-paper-fp32-{length}-tokens.svg" for length in (64, 128)}
    assert {path.name for path in figures.glob("accuracy-against-data-size*")} == drawn
    with (tables / "contrasts.csv").open(encoding="utf-8") as stream:
        assert {row["name"] for row in csv.DictReader(stream)} == {"sharing & width_5"}
    ours = [figures / "mine.svg", tmp_path / "outside.svg"]
    for path in ours:
        path.write_text("mine", encoding="utf-8")
    manifest = tmp_path / "exports.json"
    listed = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    manifest.write_text(json.dumps({"files": [*listed, "outside.svg", "figures/../outside.svg"]}), encoding="utf-8")
    write_report(tmp_path, folders[:1], title="A study")
    assert not drawn.intersection(path.name for path in figures.iterdir()) and list(figures.iterdir()) != ours[:1]
    assert all(path.read_text(encoding="utf-8") == "mine" for path in ours)
    assert not (tables / "contrasts.csv").exists()
