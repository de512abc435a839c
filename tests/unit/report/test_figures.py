"""The drawings: well formed, true to the records, and harmless whatever the names are."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as some

from factories import RunFactory
from recurra.core.record import read_record
from recurra.report.figures import charts_of
from recurra.report.summary import load_runs, reporting_of, summarise
from recurra.tasks import drawing
from recurra.tasks.classification.reporting import MOST_LABELS
from recurra.tasks.drawing import Chart
from recurra.tasks.questions import Questions

SMALL = {"train": 900, "validation": 300, "test": 400}


def draw(folders: list[Path], lost: str = "", **asked: Any) -> list[Chart]:
    """Charts of run folders; the first was not evaluated on the split that is lost."""
    runs, _ = load_runs(folders)
    runs[0].record.metrics.pop(lost, None)
    (table,) = summarise(runs, **asked).tables
    return charts_of(table, {run.record.run_id: run for run in runs}, "t0", reporting_of("classification"))


def kinds(charts: list[Chart]) -> list[str]:
    return [chart.kind for chart in charts]


def parse(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(str(chart.drawing))


def bubbles(chart: Chart) -> dict[str, ElementTree.Element]:
    return {item.get("class"): item for item in parse(chart).iter("circle") if "bubble" in str(item.get("class"))}


def test_all_drawings_are_there_named_and_well_formed(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    charts = draw([factory.run(name, seed=seed) for name in ("linear", "baseline", "recurrent") for seed in (0, 1)])
    assert kinds(charts) == ["trade-off"] * 2 + ["accuracy", "loss", "lengths"] + ["confusion"] * 3
    for chart in charts:
        root = parse(chart)
        ids = root.get("aria-labelledby", "").split()
        named = {item.get("id"): item.text for item in root if item.tag in ("title", "desc")}
        assert set(ids) == set(named)
        assert all(named.values())
        _, _, width, height = map(float, root.get("viewBox", "").split())
        for item in root.iter("text"):
            assert 0 <= float(item.get("x", "nan")) <= width
            assert 0 <= float(item.get("y", "nan")) <= height
        axis_titles = [item for item in root.iter("text") if item.get("class") == "axis-title"]
        assert len(axis_titles) == 2
        marks = [item for item in root.iter() if str(item.get("class")).split(" ")[0] in ("mark", "bubble")]
        hints = [hint for item in marks if (hint := item.findtext("title"))]
        assert hints or chart.kind in ("lengths", "confusion")
        assert all(re.search(r"\d", hint) for hint in hints), chart.kind


def line_points(chart: Chart, place: int = 0) -> list[tuple[float, float]]:
    """Coordinates of the points of a line of a chart."""
    line = [*parse(chart).iter("polyline")][place]
    return [(float(x), float(y)) for x, y in (point.split(",") for point in str(line.get("points")).split())]


def in_proportion(heights: Sequence[float], values: Sequence[float]) -> None:
    """Heights fall as values rise, in proportion."""
    slope = (heights[-1] - heights[0]) / (values[-1] - values[0])
    assert slope < 0
    assert heights == pytest.approx([heights[0] + slope * (value - values[0]) for value in values], abs=0.2)


def test_bubble_area_is_the_size_on_disk_and_places_are_ordered(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    charts = draw([factory.run("baseline", 0.9), factory.run("recurrent", 0.7)])
    circles = bubbles(next(chart for chart in charts if chart.kind == "trade-off"))
    baseline, recurrent = circles["bubble s0"], circles["bubble s1"]
    ratio = (float(baseline.get("r")) / float(recurrent.get("r"))) ** 2
    assert ratio == pytest.approx(103_660_000 / 43_900_000, rel=0.01)
    assert float(baseline.get("cx")) > float(recurrent.get("cx"))
    assert float(baseline.get("cy")) < float(recurrent.get("cy"))


def test_what_costs_nothing_is_drawn_too(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    asked = Questions(prices={"linear": 0.0, "recurrent": 0.1})
    charts = draw([factory.run("linear", 0.7), factory.run("recurrent", 0.9)], questions=asked)
    chart = next(chart for chart in charts if chart.heading == "Accuracy against price")
    assert len(bubbles(chart)) == 2 and "linear and recurrent" in chart.caption


def test_loss_lines_go_through_the_history(tmp_path: Path) -> None:
    folder = RunFactory(tmp_path, rows=SMALL).run("recurrent", epochs=5)
    chart = next(chart for chart in draw([folder]) if chart.kind == "loss")
    losses = [epoch.validation_loss for epoch in read_record(folder).training.history]
    assert len(losses) == 5
    in_proportion([y for _, y in line_points(chart)], losses)


def test_splits_of_rising_difficulty_are_drawn_in_their_order(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows={**SMALL, "hops-1": 200, "hops-2": 210, "hops-3": 220})
    folder = factory.run("baseline", 0.7)
    chart = next(
        chart
        for chart in draw([factory.run("stacked-narrow", 0.6), folder], lost="hops-2")
        if chart.kind == "difficulty"
    )
    lost, points = line_points(chart, 1), line_points(chart)
    assert [x for x, _ in lost] == [points[0][0], points[2][0]]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    metrics = read_record(folder).metrics
    in_proportion([y for _, y in points], [metrics[f"hops-{hops}"].accuracy for hops in (1, 2, 3)])
    ticks = [item.text for item in parse(chart).iter("text") if item.get("class") == "tick"]
    assert [tick for tick in ticks if "hops" in str(tick)] == ["hops-1", "hops-2", "hops-3"]


def test_areas_of_the_histogram_are_shares(tmp_path: Path) -> None:
    folder = RunFactory(tmp_path, rows=SMALL).run("recurrent")
    chart = next(chart for chart in draw([folder]) if chart.kind == "lengths")
    outline = next(parse(chart).iter("polyline"))
    points = [tuple(map(float, point.split(","))) for point in str(outline.get("points")).split()]
    base = points[0][1]
    heights = {round(x, 1): base - y for x, y in points[1:-1:2]}
    counts = read_record(folder).data.splits["train"].words.counts
    drawn = list(heights.values())
    largest = max(range(len(drawn)), key=drawn.__getitem__)
    for index, height in enumerate(drawn):
        assert height / drawn[largest] == pytest.approx(counts[index] / counts[largest], abs=0.01)


def test_little_data_still_draws(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    assert kinds(draw([factory.run("linear", latency=False)])) == ["trade-off", "lengths", "confusion"]
    alone = draw([factory.run("recurrent", epochs=1)])
    assert kinds(alone) == ["trade-off", "trade-off", "accuracy", "loss", "lengths", "confusion"]
    assert all("nan" not in chart.drawing for chart in alone)


def test_many_labels_have_a_matrix_of_the_recommended_model_alone_and_too_many_none(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows={**SMALL, "test": 600}, label_names=tuple(f"label {n}" for n in range(11)))
    charts = draw([factory.run("recurrent", 0.9), factory.run("linear", 0.5)])
    (chart,) = [chart for chart in charts if chart.kind == "confusion"]
    assert chart.heading == "Confusion matrix: recurrent"
    drawn = parse(chart)
    titles = [item.text or "" for item in drawn.iter("title")]
    assert any(re.fullmatch(r"label \d+ predicted as label \d+: \d+ rows", text) for text in titles)
    more = tuple(f"label {index}" for index in range(MOST_LABELS + 1))
    factory = RunFactory(tmp_path / "more", rows={**SMALL, "train": 300}, label_names=more)
    assert "confusion" not in kinds(draw([factory.run("recurrent")]))


@given(some.text(max_size=30), some.text(max_size=30))
def test_elements_escape_text_and_attributes(text: str, value: str) -> None:
    made = drawing.element("text", text, class_=value)
    assert re.fullmatch(r'<text class="[^"<>]*">[^<>]*</text>', str(made), re.DOTALL)


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
