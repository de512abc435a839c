"""Tables in Markdown and for the terminal, and the blocks of them in documents."""

from __future__ import annotations

import re
import shutil
import statistics
from pathlib import Path

import pytest
from docs.site.results import across, by_split, main, questions_of, render_results_markdown, study_page
from docs.site.results import escaped as text

from exported import export_record
from factories import RunFactory, leakage, study_latency
from recurra.core.errors import ConfigurationError, DataError
from recurra.core.record import read_record, write_record
from recurra.report.summary import read_latency_file, read_study
from recurra.study.packing import pack_study
from recurra.tasks.summary import Summary
from rendered import summarise_folders

SMALL = {"train": 900, "validation": 300, "test": 400}
STUDY = """\
name: sst2
data: [{name: sst2}]
models: [linear, recurrent]
contrasts: [{name: against | a linear model, a: recurrent, b: linear}]
"""
BLOCK = "before\n<!-- results:{name} begin -->\nold\n<!-- results:{name} end -->\nafter\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    factory = RunFactory(tmp_path / "results" / "sst2" / "runs", rows=SMALL)
    folders = [
        factory.run(name, seed=seed, audits=[leakage("test")]) for name in ("linear", "recurrent") for seed in (0, 1)
    ]
    latency = study_latency(folders).model_dump_json()
    (tmp_path / "results" / "sst2" / "latency.json").write_text(latency, encoding="utf-8")
    (tmp_path / "results" / "sst2" / "study.yaml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "README.md").write_text(BLOCK.format(name="sst2"), encoding="utf-8")
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / "deep" / "page.md").write_text(BLOCK.format(name="sst2.across"), encoding="utf-8")
    return tmp_path


def summarise_study(project: Path) -> Summary:
    folder = project / "results" / "sst2"
    runs = read_study(folder)
    exports = [
        export_record(run.name, "fp16", record_hash=str(read_record(run).content_hash))
        for run in runs
        if run.name.startswith("recurrent")
    ]
    return summarise_folders(runs, read_latency_file(folder), questions=questions_of(folder), exports=exports)


def test_markdown_tables_are_rectangular(project: Path) -> None:
    written = study_page(summarise_study(project), "results/sst2")
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", written, re.MULTILINE)
    assert len(blocks) == 2
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.strip().splitlines()}
        assert len(widths) == 1
    assert "| against \\| a linear model: recurrent − linear |" in written
    assert "* failed audits: leakage on test" in written
    assert "`recurra study report results/sst2`" in written
    assert study_page(summarise_folders([]), "results/sst2") == "No finished run.\n"


def test_draws_of_the_same_rows_share_a_line(tmp_path: Path) -> None:
    drawn = [{"rows_per_label": 8, "split_seed": seed} for seed in range(3)]
    given = [("sst2", keys, accuracy) for keys, accuracy in zip(drawn, (0.6, 0.7, 0.8), strict=True)]
    given += [("sst2", {"rows_per_label": 1_000}, 0.9), ("yelp", {"rows_per_label": 8}, 0.75)]
    folders = [
        RunFactory(tmp_path / str(place), data=data, rows=SMALL, data_config=keys, seed=place).run(model, accuracy)
        for place, (data, keys, accuracy) in enumerate(given)
        for model in ("linear", *(["recurrent"] if data == "yelp" else []))
    ]
    lines = across(summarise_folders(folders)).splitlines()
    heading, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    assert heading == ["Data", "linear", "recurrent"]
    said = [read_record(folder).metrics["test"].accuracy for folder in folders]
    mean, sd = statistics.mean(said[:3]), statistics.stdev(said[:3])
    drawn_score = rows[0][1]
    assert [float(part) for part in drawn_score.split(" ± ")] == pytest.approx([mean, sd], abs=6e-4)
    assert rows == [
        ["sst2 · 8 rows a label", drawn_score, "–"],
        ["sst2 · 1,000 rows a label", f"{said[3]:.3f}", "–"],
        ["yelp · 8 rows a label", f"{said[4]:.3f}", f"{said[5]:.3f}"],
    ]
    assert lines[-1] == "Accuracy on test, mean ± standard deviation over 3 draws of the rows."


def test_every_reported_split_has_a_line(project: Path) -> None:
    summary = summarise_study(project)
    lines = by_split(summary).splitlines()
    heading, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    (table,) = summary.tables
    assert heading == ["Split", *(model.label for model in table.models)]
    assert [row[0] for row in rows] == list(table.reported_splits)
    for row in rows:
        for cell, model in zip(row[1:], table.models, strict=True):
            values = [read_record(folder).metrics[row[0]].accuracy for folder in folders_of(project, model.label)]
            assert float(cell.partition(" ± ")[0]) == pytest.approx(statistics.mean(values), abs=6e-4)
    assert by_split(summarise_folders([])) == "No finished run.\n"


def folders_of(project: Path, model: str) -> list[Path]:
    return sorted((project / "results" / "sst2" / "runs").glob(f"*{model}*"))


def test_cell_text_cannot_leave_its_cell() -> None:
    assert text("a|b\n<script>`x` [y](z) *w*") == "a\\|b &lt;script&gt;\\`x\\` \\[y\\](z) \\*w\\*"


def test_blocks_are_written_from_the_records_and_then_hold(project: Path) -> None:
    readme, page = project / "README.md", project / "docs" / "deep" / "page.md"
    assert render_results_markdown(project / "results", check=True) == [readme, page]
    assert "old" in readme.read_text(encoding="utf-8")
    assert render_results_markdown(project / "results") == [readme, page]
    content = readme.read_text(encoding="utf-8")
    assert content.startswith("before\n<!-- results:sst2 begin -->\n")
    assert content.endswith("<!-- results:sst2 end -->\nafter\n")
    assert "\nold\n" not in content
    assert "| sst2 |" in page.read_text(encoding="utf-8")
    assert render_results_markdown(project / "results") == []


def test_a_record_edited_by_hand_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    assert main([]) == 0
    path = next((project / "results").rglob("record.json"))
    path.write_text(path.read_text(encoding="utf-8").replace('"created": "2026', '"created": "2025'), encoding="utf-8")
    capsys.readouterr()
    assert main(["--check"]) == 2
    said = capsys.readouterr().err
    assert "was changed after it was written" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BLOCK.format(name="sst3"), "did you mean 'sst2'"),
        ("<!-- results:sst2 begin -->\n", "has no end"),
        ("<!-- results:sst2 end -->\n", "has no begin"),
        ("<!-- results:sst2 begin -->\n<!-- results:sst2.across begin -->\n", "has no end before"),
    ],
)
def test_wrong_markers_are_refused_and_nothing_is_written(project: Path, content: str, message: str) -> None:
    (project / "README.md").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        render_results_markdown(project / "results")
    assert (project / "README.md").read_text(encoding="utf-8") == content


def test_a_folder_that_is_no_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no runs"):
        read_study(tmp_path)


# Pages of their own.


EITHER = """\
name: {name}
title: {title}
data: [{{name: sst2}}]
models: [baseline, recurrent]
contrasts: [{{name: {question}, a: recurrent, b: baseline}}]
"""


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    """Two studies with records, one without, and a page for the first."""
    for name in ("first", "second"):
        factory = RunFactory(tmp_path / "results" / name / "runs", rows=SMALL)
        for model in ("baseline", "recurrent"):
            factory.run(model)
        text = EITHER.format(name=name, title=f"The {name} study", question=f"asked of {name}")
        (tmp_path / "results" / name / "study.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "results" / "third" / "runs" / "unfinished").mkdir(parents=True)
    pages = tmp_path / "docs" / "results"
    pages.mkdir(parents=True)
    block = "<!-- results:first{part} begin -->\n<!-- results:first{part} end -->\n"
    (pages / "mine.md").write_text(block.format(part=""), encoding="utf-8")
    (tmp_path / "README.md").write_text(block.format(part=""), encoding="utf-8")
    return tmp_path


def test_a_study_with_records_that_no_page_shows_gets_one(studies: Path) -> None:
    pages = studies / "docs" / "results"
    changed = render_results_markdown(studies / "results")
    assert pages / "second.md" in changed
    assert not (pages / "first.md").exists() and not (pages / "third.md").exists()
    content = (pages / "second.md").read_text(encoding="utf-8")
    assert content.startswith("# The second study\n")
    assert "asked of second: recurrent − baseline" in content
    assert render_results_markdown(studies / "results", check=True) == []


def test_the_study_file_of_the_project_asks_of_what_is_packed_in_it_and_of_nothing_else(studies: Path) -> None:
    files, second = studies / "configs" / "studies", studies / "results" / "second"
    files.mkdir(parents=True)

    def asked(folder: Path) -> list[str]:
        return [item.name for item in questions_of(folder).contrasts]

    newer = EITHER.format(name="second", title="x", question="asked later")
    (files / "second.yaml").write_text(newer, encoding="utf-8")
    assert asked(second) == ["asked of second"], "it lies there as it was run"
    pack_study(second, studies / "runs" / "second")
    assert asked(studies / "runs" / "second") == ["asked of second"]
    shutil.rmtree(second)
    shutil.copytree(studies / "runs" / "second", second)
    assert asked(second) == ["asked later"]
    (files / "second.yaml").write_text(newer.replace("name: second", "name: another"), encoding="utf-8")
    assert asked(second) == ["asked of second"]
    assert asked(studies / "results" / "third") == []
    (files / "third.yaml").write_text(newer, encoding="utf-8")
    assert asked(studies / "results" / "third") == ["asked later"]
    (files / "second.yaml").write_text("name: second\ncontrasts: [{name: without sides}]\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"second\.yaml"):
        render_results_markdown(studies / "results")


def test_named_documents_alone_are_written_if_some_are_named(studies: Path) -> None:
    readme = studies / "README.md"
    assert render_results_markdown(studies / "results", [readme]) == [readme]
    assert not (studies / "docs" / "results" / "second.md").exists()


def test_the_overview_has_a_line_for_each_table_and_links_to_the_pages_made_with_it(studies: Path) -> None:
    readme = studies / "README.md"
    readme.write_text("<!-- results:overview begin -->\n<!-- results:overview end -->\n", encoding="utf-8")
    render_results_markdown(studies / "results")
    lines = [line for line in readme.read_text(encoding="utf-8").splitlines() if line.startswith("| [")]
    assert len(lines) == 2
    # The first is shown by a page of its own making, the second gets its page in the same call.
    assert lines[0].startswith("| [first](docs/results/mine.md) |")
    assert lines[1].startswith("| [second](docs/results/second.md) |")
    page = (studies / "docs" / "results" / "second.md").read_text(encoding="utf-8")
    gap = next(line for line in page.splitlines() if line.startswith("| asked of second")).split("|")[2].strip()
    assert f"| {gap} (" in lines[1] and "| not distinguishable |" in lines[1]
    assert render_results_markdown(studies / "results", check=True) == []


def test_command_tells_stale_from_fresh(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    path = next((project / "results").rglob("record.json"))
    record = read_record(path)
    write_record(path.parent, record.model_copy(update={"model": record.model.model_copy(update={"preset": "hashed"})}))
    assert main(["--check"]) == 1
