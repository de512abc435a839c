"""Reports of language models: figures that follow from records, and no leaking one without the word."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from docs.site import results as documents
from docs.site.results import render_results_markdown, study_page

from language_records import BYTES, TOKENS, WORDS, exits_record, language_record
from recurra.core.exits_record import EXITS_NAME
from recurra.core.record import LanguageRunRecord, write_record
from recurra.report.figures import draw
from recurra.report.render import named_figures, write_study_report
from recurra.report.summary import load_runs, read_study, summarise
from recurra.tasks import drawing
from recurra.tasks.language.reporting import REPORTING, shares_by_loops
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.summary import Summary
from rendered import part_rows

LANGUAGE = "language modelling"


def runs(*records: LanguageRunRecord) -> list[LoadedRun]:
    return [LoadedRun(Path("runs") / record.run_id, record) for record in records]


def study() -> Summary:
    seeds = [language_record(seed=seed, loss=4.0 + seed / 10) for seed in (0, 1, 2)]
    better = language_record(preset="stacked", loss=3.9, model_overrides={"preset": "crt-tiny", "feed_forward": "conv"})
    return summarise(runs(language_record(preset="crt-tiny", leaks=True, loss=0.05, kind="x"), *seeds, better))


def test_seeds_are_averaged_and_what_leaks_comes_last() -> None:
    models = study().tables[0].models
    assert [(model.label, model.seeds) for model in models] == [
        ("stacked", [0]), ("crt-tiny", [0, 1, 2]), ("crt-tiny (leaks)", [0]),
    ]  # fmt: skip
    figures = models[1].scores["test"].figures
    assert (figures["loss"].mean, figures["loss"].sd) == (pytest.approx(4.1), pytest.approx(0.1))
    assert figures["token_perplexity"].mean == pytest.approx(math.exp(4.1))
    assert figures["word_perplexity"].mean == pytest.approx(math.exp(4.1 * TOKENS / WORDS))
    assert figures["bits_per_byte"].mean == pytest.approx(4.1 * TOKENS / math.log(2) / BYTES)
    assert models[0].scores["test"].figures["loss"].sd is None
    assert (models[2].leaks, models[2].reach_tokens) == (True, 51)
    assert models[2].verdict == "LEAKS: reads 51 tokens ahead"
    assert models[2].failed_audits == ["causality.final", "perplexity.too-good"]


def as_lines(record: LanguageRunRecord) -> LanguageRunRecord:
    data = record.data.model_copy(update={"mode": "lines"})
    return record.model_copy(update={"data": data, "run_id": "other"})


def test_texts_read_differently_are_different_tables() -> None:
    record, part = language_record(), language_record(data={"fraction": 0.1})
    found = summarise(runs(record, as_lines(record), part)).tables
    assert len(found) == 3 and {table.protocol for table in found} == {"packed-128", "lines-128"}


def test_every_row_with_a_leaking_figure_says_so() -> None:
    summary = study()
    table = summary.tables[0]
    told = 0
    for headings, rows in (part_rows(LANGUAGE, table, key) for key in ("results", "exits", "published")):
        assert all(len(row) == len(headings) for row in rows)
        columns = [place for place, name in enumerate(headings) if "erplexity" in name or "a word" in name]
        for row in rows:
            cells = [cell for place in columns for cell in row[place].split(" / ") if cell != "–"]
            values = [float(cell.replace(",", "")) for cell in cells]
            if any(value < 15 for value in values):
                told += 1
                assert "leaks" in " ".join(row).lower(), row
    # The leaking model once with its results, once beside the published, and three heads; four published exits.
    assert told == 1 + 1 + 3 + 4
    quoted = [line for line in study_page(summary, "results/x").splitlines() if "1.093" in line or "1.06" in line]
    assert all("leaks" in line.lower() for line in quoted)


def test_drawings_are_whole_and_name_their_models() -> None:
    table = study().tables[0]
    charts = REPORTING.charts(table, "t")
    assert [chart.heading for chart in charts] == ["Objective by epoch", "Loss by loop on test"]
    for chart in charts:
        root = ElementTree.fromstring(str(chart.drawing))
        assert {item.text for item in root.iter("text")} >= {model.label for model in table.models}
    one = summarise(runs(language_record(epochs=1))).tables[0]
    assert [chart.kind for chart in REPORTING.charts(one, "t")] == ["by-loop"]


def test_documents_show_a_language_study_beside_the_others_and_read_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, readme, read = tmp_path / "results", tmp_path / "README.md", list[int]()
    for record in (language_record(), language_record(leaks=True, preset="crt-tiny-leaks", loss=0.05)):
        write_record(results / "lm-leak" / "runs" / record.run_id, record)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    readme.write_text("<!-- results:lm-leak.across begin -->\n<!-- results:lm-leak.across end -->\n", encoding="utf-8")

    def counted(folders: list[Path]) -> Any:
        read.append(len(folders))
        return load_runs(folders)

    monkeypatch.setattr(documents, "load_runs", counted)
    # The scores are in the README, the rest on a page of its own.
    assert render_results_markdown(results) and read == [2]
    page = (tmp_path / "docs" / "results" / "lm-leak.md").read_text(encoding="utf-8")
    assert "crt-tiny-leaks" in page and "LEAKS: reads 51 tokens ahead" in page
    assert "crt-tiny-leaks" in readme.read_text(encoding="utf-8").partition("lm-leak.across begin")[2]
    assert render_results_markdown(results, check=True) == []


def test_figures_of_two_tables_have_names_of_their_own(tmp_path: Path) -> None:
    for one in (language_record(), as_lines(language_record())):
        write_record(tmp_path / "runs" / one.run_id, one)
    finished, _ = load_runs(read_study(tmp_path))
    summary = summarise(finished)
    files = named_figures(summary, draw(summary))
    assert len({chart.heading for chart in files.values()}) == 3 and len(files) == 6


def with_exits(*records: LanguageRunRecord, chosen: bool = True) -> Summary:
    made = [LoadedRun(Path("runs") / one.run_id, one, exits_record(one, chosen=chosen)) for one in records]
    return summarise([*made, *runs(language_record(preset="stacked", loss=3.9))])


def test_exits_that_were_kept_are_drawn_and_listed_with_means_over_seeds() -> None:
    (table,) = with_exits(*(language_record(seed=seed, loss=4.0 + seed / 10) for seed in (0, 1))).tables
    kept = next(model for model in table.models if model.exits)
    assert shares_by_loops(kept.exits) == {1: 0.6, 3: 0.4}
    *_, taken = REPORTING.charts(table, "t")
    assert taken.heading == "Loops taken on test"
    root = ElementTree.fromstring(str(taken.drawing))
    (line,) = root.iter("polyline")
    assert line.get("class") == f"line solid s{kept.color}" and kept.color > 0
    heights = [drawing.BOTTOM - float(point.split(",")[1]) for point in str(line.get("points")).split()]
    assert len(heights) == 2 and heights[0] / heights[1] == pytest.approx(1.5, rel=1e-3)
    headings, rows = part_rows(LANGUAGE, table, "leaving")
    assert headings[-2:] == ["Times as fast, batch 1", "Times as fast, batch 32"]
    assert rows[:4] == [
        ["crt-tiny, 0", "nowhere", "4.0000", "3.00", "1.00", "1.00"],
        ["crt-tiny, 0", "after loop 1", "4.2000", "1.00", "2.00", "2.00"],
        ["crt-tiny, 0", "after loop 2", "4.1000", "2.00", "1.50", "1.50"],
        ["crt-tiny, 0", "confidence 0.8", "4.1500", "1.80", "1.75", "1.75"],
    ]
    assert len(rows) == 8


def test_without_a_rule_the_exits_are_listed_alone() -> None:
    (table,) = with_exits(language_record(), chosen=False).tables
    assert "Loops taken on test" not in [chart.heading for chart in REPORTING.charts(table, "t")]
    rows = part_rows(LANGUAGE, table, "leaving")[1]
    assert [row[1] for row in rows] == ["nowhere", "after loop 1", "after loop 2"]


def test_kept_exits_travel_with_their_run_and_are_refused_if_changed_or_anothers(tmp_path: Path) -> None:
    record, other = language_record(), language_record(seed=1)
    folder = tmp_path / "runs" / record.run_id
    write_record(folder, record)
    exits_record(record).write(folder / EXITS_NAME)
    (run,), failed = load_runs([folder])
    assert run.exits == exits_record(record).write(folder / EXITS_NAME) and not failed
    page = write_study_report(tmp_path, summarise([run]), [run], title="x").read_text(encoding="utf-8")
    assert "Leaving early" in page and "Loops taken on test" in page
    path = folder / EXITS_NAME
    path.write_text(path.read_text(encoding="utf-8").replace("4.2", "4.1"), encoding="utf-8")
    assert "was changed after it was written" in load_runs([folder])[1][0]["reason"]
    exits_record(other).write(path)
    assert f"are of run '{other.run_id}'" in load_runs([folder])[1][0]["reason"]
