"""The report in a real browser: phone and desk, light and dark, and on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from factories import RunFactory, invariance, leakage, study_latency
from rendered import write_report

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LONG_WORD = "Donaudampfschifffahrtsgesellschaftskapitänsmütze" * 3
NASTY = "<script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    official = RunFactory(folder / "runs")
    pooled = RunFactory(folder / "runs", protocol="pooled", rows={"train": 5000, "validation": 600, "test": 700})
    models = (("linear", 0.80), ("baseline", 0.82), ("recurrent", 0.81))
    runs = [
        factory.run(name, accuracy, seed=seed, audits=audits)
        for factory, audits in ((official, [invariance()]), (pooled, [leakage("test"), invariance()]))
        for name, accuracy in models
        for seed in range(2)
    ]
    return write_report(
        folder,
        [*runs, folder / "runs" / "never-finished"],
        title="Recurrent against stacked encoders",
        command=f"recurra compare sst2 --output {LONG_WORD}",
        latency=study_latency(runs),
    )


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small run with names that would break a careless page."""
    folder = tmp_path_factory.mktemp("bare")
    factory = RunFactory(
        folder / "runs",
        data=LONG_WORD,
        protocol="split",
        rows={"train": 60, "validation": 20, "test": 30},
        label_names=(NASTY, LONG_WORD, "ok"),
    )
    run = factory.run("recurrent", latency=False, epochs=1, audits=[invariance("neighbours", failed=True)])
    return write_report(folder, [run], title=f"{LONG_WORD} {NASTY}", failures={LONG_WORD: NASTY})


@pytest.fixture(params=["study", "bare"])
def report(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_report_reads_on_any_screen(visit: Any, report: Path, width: int, scheme: str) -> None:
    found = visit(report.as_uri(), width=width, scheme=scheme)
    page = found.page
    assert found.requests == [report.as_uri()]
    assert page.title() != "taken"
    found.reads_well(width, scheme)
    # Wide content scrolls inside its own frame and pushes nothing out of the page.
    outside = page.evaluate(
        """() => [...document.querySelectorAll('main *')].filter(item => {
            const box = item.getBoundingClientRect();
            return box.right > innerWidth + 1 && !item.closest('.frame, pre') && !item.closest('svg');
        }).map(item => item.outerHTML.slice(0, 120))"""
    )
    assert outside == []
    for name in ("answer", "alarm", "machine", "reproduce", "failed-runs", "table-0"):
        assert page.locator(f"#{name}").is_visible(), name
    boxes = [chart.bounding_box() for chart in page.locator("svg.chart").all()]
    assert len(boxes) >= 4 and all(box and box["width"] > 150 and box["height"] > 100 for box in boxes)


def test_on_a_phone_tables_become_cards_that_are_tables_to_a_screen_reader_and_charts_are_read(
    visit: Any, study: Path
) -> None:
    page = visit(study.as_uri(), width=390).page
    table = page.locator("table.results").first
    cell = table.locator("tbody td").first
    assert cell.evaluate("item => getComputedStyle(item, '::before').content") == '"Seeds"'
    assert table.get_attribute("role") == "table"
    assert table.locator("tbody tr").first.bounding_box()["width"] < 390
    smallest = page.evaluate(
        """() => Math.min(...[...document.querySelectorAll('svg.chart')].map(item =>
            item.getBoundingClientRect().width / item.viewBox.baseVal.width * 10))"""
    )
    assert smallest >= 8


def test_paper_is_light_and_holds_the_configurations_and_contents_lead_to_the_sections(
    visit: Any, report: Path
) -> None:
    page = visit(report.as_uri(), width=700, scheme="dark").page
    page.locator("nav a", has_text="How to reproduce").click()
    assert page.locator("#reproduce-title").evaluate(
        "item => { const box = item.getBoundingClientRect(); return box.top >= -20 && box.top < innerHeight; }"
    )
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    assert page.locator("details pre").first.bounding_box()["height"] > 20
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """77 labels and 10,000 rows."""
    folder = tmp_path_factory.mktemp("many")
    labels = tuple(f"intent number {index}" for index in range(77))
    factory = RunFactory(folder / "runs", rows={"train": 7700, "validation": 770, "test": 10_000}, label_names=labels)
    return write_report(folder, [factory.run("linear", 0.7), factory.run("recurrent", 0.9)], title="Intents")


def test_many_labels_are_sorted_searched_and_whole_without_a_script(visit: Any, many: Path) -> None:
    assert many.stat().st_size < 3_000_000
    page = visit(many.as_uri()).page
    rows = page.locator("table.labels tbody tr")

    def figures() -> list[float]:
        return [float(text) for text in rows.locator("td:last-child").all_inner_texts()]

    assert rows.count() == 77 and figures() == sorted(figures())
    page.locator("table.labels thead button", has_text="F1").click()
    assert figures() == sorted(figures(), reverse=True)
    assert page.locator("table.labels thead th[aria-sort=descending]").inner_text().startswith("F1")
    page.get_by_label("Search this table").first.fill("number 7")
    assert page.locator("table.labels tbody tr:visible").count() == 8
    assert page.locator("figure.confusion").count() == 1
    still = visit(many.as_uri(), java_script_enabled=False).page
    assert still.locator("table.labels tbody tr").count() == 77 and still.locator("input[type=search]").count() == 0


def test_gaps_and_amounts_are_sorted_as_numbers(visit: Any, tmp_path: Path) -> None:
    factory = RunFactory(tmp_path / "runs", rows={"train": 900, "validation": 60, "test": 400})
    reached = {"linear": 0.6, "baseline": 0.75, "recurrent-wide": 0.8, "recurrent": 0.9, "stacked-narrow": 0.85}
    runs = [factory.run(model, accuracy) for model, accuracy in reached.items()]
    runs += [factory.run("stacked-shallow", 0.7), factory.run("recurrent", 0.95, run_id="c", settings={"alpha": 0.25})]
    page = visit(write_report(tmp_path, runs, title="Seven models").as_uri()).page
    page.locator("summary", has_text="Tests between the models").click()
    page.locator("table.tests thead button", has_text="Gap").click()
    texts = page.locator("table.tests td[data-label^=Gap]").all_inner_texts()
    gaps = [float(text.replace("−", "-")) for text in texts]
    assert len(gaps) == 21 and gaps == sorted(gaps, reverse=True) and gaps[0] > 10 and gaps[-1] < -10
    values = ["9.5 s", "119 s", "2 min", "3 h 5 min", "28.40 M", "1.20 G", "< 0.001", "2026-11-20 12:00", "0.81–0.85"]
    numbers = [9.5, 119, 120, 10_800, 28.4e6, 1.2e9, 0.001, None, None]
    assert page.evaluate("texts => texts.map(number).map(value => isNaN(value) ? null : value)", values) == numbers
