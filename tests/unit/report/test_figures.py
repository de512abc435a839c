"""The drawings: well formed, true to the records and harmless; as files they are whole, and nothing is left over."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as some

from factories import RunFactory, study_latency
from recurra.core.record import read_record
from recurra.core.terminal import slug
from recurra.report.figures import charts_of
from recurra.report.summary import load_runs, reporting_of, summarise
from recurra.tasks import drawing
from recurra.tasks.classification.reporting import MOST_LABELS
from recurra.tasks.drawing import Chart
from recurra.tasks.questions import Contrast, Questions
from rendered import write_report

SMALL = {"train": 900, "validation": 300, "test": 400}
SVG = "{http://www.w3.org/2000/svg}"


def draw(folders: list[Path], lost: str = "", **asked: Any) -> list[Chart]:
    """Charts of run folders; the first was not evaluated on the split that is lost."""
    runs, _ = load_runs(folders)
    runs[0].record.metrics.pop(lost, None)
    (table,) = summarise(runs, **asked).tables
    return charts_of(table, {run.record.run_id: run for run in runs}, "t0", reporting_of("classification"))


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
    factory = RunFactory(tmp_path, rows=SMALL)
    charts = draw([factory.run(name, seed=seed) for name in ("linear", "baseline", "recurrent") for seed in (0, 1)])
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
    factory = RunFactory(tmp_path, rows=SMALL)
    charts = draw([factory.run("baseline", 0.9), factory.run("recurrent", 0.7)])
    circles = bubbles(of_kind(charts, "trade-off"))
    (x, y, radius), (other_x, other_y, other_radius) = (
        [float(circles[f"bubble s{place}"].get(key, "nan")) for key in ("cx", "cy", "r")] for place in (0, 1)
    )
    assert (radius / other_radius) ** 2 == pytest.approx(103_660_000 / 43_900_000, rel=0.01)
    assert x > other_x and y < other_y


def test_what_costs_nothing_is_drawn_too(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    asked = Questions(prices={"linear": 0.0, "recurrent": 0.1})
    charts = draw([factory.run("linear", 0.7), factory.run("recurrent", 0.9)], questions=asked)
    chart = next(chart for chart in charts if chart.heading == "Accuracy against price")
    assert len(bubbles(chart)) == 2 and "linear and recurrent" in chart.caption


def test_lines_and_areas_are_those_of_the_records(tmp_path: Path) -> None:
    folder = RunFactory(tmp_path, rows=SMALL).run("recurrent", epochs=5)
    charts, record = draw([folder]), read_record(folder)
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
    factory = RunFactory(tmp_path, rows={**SMALL, "hops-1": 200, "hops-2": 210, "hops-3": 220})
    folder = factory.run("baseline", 0.7)
    chart = of_kind(draw([factory.run("stacked-narrow", 0.6), folder], lost="hops-2"), "difficulty")
    lost, points = line_points(chart, 1), line_points(chart)
    assert [x for x, _ in lost] == [points[0][0], points[2][0]]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    metrics = read_record(folder).metrics
    in_proportion([y for _, y in points], [metrics[f"hops-{hops}"].accuracy for hops in (1, 2, 3)])
    ticks = [item.text for item in parse(chart).iter("text") if item.get("class") == "tick"]
    assert [tick for tick in ticks if "hops" in str(tick)] == ["hops-1", "hops-2", "hops-3"]


def test_little_data_still_draws(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    assert kinds(draw([factory.run("linear", latency=False)])) == ["trade-off", "lengths", "confusion"]
    alone = draw([factory.run("recurrent", epochs=1)])
    assert kinds(alone) == ["trade-off", "trade-off", "accuracy", "loss", "lengths", "confusion"]
    assert all("nan" not in chart.drawing for chart in alone)


def test_many_labels_have_a_matrix_of_the_recommended_model_alone_and_too_many_none(tmp_path: Path) -> None:
    def charts(labels: int, **accuracies: float) -> list[Chart]:
        names = tuple(f"label {index}" for index in range(labels))
        factory = RunFactory(tmp_path / str(labels), rows={**SMALL, "test": 600}, label_names=names)
        return draw([factory.run(model, accuracy) for model, accuracy in accuracies.items()])

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


def test_files_stand_alone_and_what_is_drawn_no_more_is_removed(tmp_path: Path) -> None:
    folders = []
    for fraction, length in ((1.0, 64), (0.5, 64), (0.2, 128), (0.1, 128)):
        rows = {**SMALL, "train": int(900 * fraction)}
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
