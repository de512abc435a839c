"""Tables in Markdown and for the terminal, and the blocks of them in documents."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from pathlib import Path
from string import Formatter

import pytest
from docs.site.claims import Claim, Claims, Figure
from docs.site.results import _Studies, across, by_split, main, questions_of, render_results_markdown, study_page
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
name: {name}
title: The {name} study
data: [{{name: sst2}}]
models: [baseline, recurrent]
contrasts: [{{name: asked | of {question}, a: recurrent, b: baseline}}]
"""


def block(name: str, inside: str = "old\n") -> str:
    return f"before\n<!-- results:{name} begin -->\n{inside}<!-- results:{name} end -->\nafter\n"


def write_study(root: Path, name: str) -> Path:
    """A study of two models of two seeds under ``results/``."""
    folder = root / "results" / name
    factory = RunFactory(folder / "runs", rows=SMALL)
    folders = [
        factory.run(model, seed=seed, audits=[leakage("test")])
        for model in ("baseline", "recurrent")
        for seed in (0, 1)
    ]
    (folder / "latency.json").write_text(study_latency(folders).model_dump_json(), encoding="utf-8")
    (folder / "study.yaml").write_text(STUDY.format(name=name, question=name), encoding="utf-8")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two studies with records, one without, and two pages for the first."""
    for name in ("first", "second"):
        write_study(tmp_path, name)
    (tmp_path / "results" / "third" / "runs" / "unfinished").mkdir(parents=True)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "mine.md").write_text(block("first.across"), encoding="utf-8")
    (tmp_path / "README.md").write_text(block("first"), encoding="utf-8")
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_study(tmp_path, "first")


def summarise_study(folder: Path) -> Summary:
    runs = read_study(folder)
    exports = [
        export_record(run.name, "fp16", record_hash=str(read_record(run).content_hash))
        for run in runs
        if run.name.startswith("recurrent")
    ]
    return summarise_folders(runs, read_latency_file(folder), questions=questions_of(folder), exports=exports)


def cells(lines: list[str]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a table in Markdown."""
    heading, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    return heading, rows


def test_markdown_tables_are_rectangular_and_no_text_leaves_its_cell(folder: Path) -> None:
    written = study_page(summarise_study(folder), "results/sst2")
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", written, re.MULTILINE)
    assert len(blocks) == 2
    for one in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in one.strip().splitlines()}) == 1
    assert "| asked \\| of first: recurrent − baseline |" in written
    assert "* failed audits: leakage on test" in written
    assert "`recurra study report results/sst2`" in written
    assert study_page(summarise_folders([]), "results/sst2") == "No finished run.\n"
    assert text("a|b\n<script>`x` [y](z) *w*") == "a\\|b &lt;script&gt;\\`x\\` \\[y\\](z) \\*w\\*"


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
    heading, rows = cells(lines)
    assert heading == ["Data", "linear", "recurrent"]
    said = [read_record(folder).metrics["test"].accuracy for folder in folders]
    drawn_score = rows[0][1]
    wanted = [statistics.mean(said[:3]), statistics.stdev(said[:3])]
    assert [float(part) for part in drawn_score.split(" ± ")] == pytest.approx(wanted, abs=6e-4)
    assert rows == [
        ["sst2 · 8 rows a label", drawn_score, "–"],
        ["sst2 · 1,000 rows a label", f"{said[3]:.3f}", "–"],
        ["yelp · 8 rows a label", f"{said[4]:.3f}", f"{said[5]:.3f}"],
    ]
    assert lines[-1] == "Accuracy on test, mean ± standard deviation over 3 draws of the rows."


def test_every_reported_split_has_a_line(folder: Path) -> None:
    summary = summarise_study(folder)
    heading, rows = cells(by_split(summary).splitlines())
    (table,) = summary.tables
    assert heading == ["Split", *(model.label for model in table.models)]
    assert [row[0] for row in rows] == list(table.reported_splits)
    for split, *scores in rows:
        for cell, model in zip(scores, table.models, strict=True):
            runs = (folder / "runs").glob(f"*{model.label}*")
            values = [read_record(run).metrics[split].accuracy for run in runs]
            assert float(cell.partition(" ± ")[0]) == pytest.approx(statistics.mean(values), abs=6e-4)
    assert by_split(summarise_folders([])) == "No finished run.\n"


def test_blocks_and_pages_are_written_from_the_records_and_then_hold(project: Path) -> None:
    results, pages = project / "results", project / "docs" / "results"
    readme, mine, second = project / "README.md", pages / "mine.md", pages / "second.md"
    assert render_results_markdown(results, [readme]) == [readme] and not second.exists()
    content = readme.read_text(encoding="utf-8")
    assert content.startswith("before\n<!-- results:first begin -->\n")
    assert content.endswith("<!-- results:first end -->\nafter\n") and "\nold\n" not in content
    # A study with records that no page shows gets one.
    assert set(render_results_markdown(results)) == {mine, second}
    assert "| sst2 |" in mine.read_text(encoding="utf-8")
    assert not (pages / "first.md").exists() and not (pages / "third.md").exists()
    page = second.read_text(encoding="utf-8")
    assert page.startswith("# The second study\n")
    assert "asked \\| of second: recurrent − baseline" in page
    assert render_results_markdown(results, check=True) == []


def test_the_smallest_model_within_a_point_of_the_best_stands_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, scores in {"near": (0.80, 0.805, 0.9), "far": (0.70, 0.75, 0.75)}.items():
        factory = RunFactory(tmp_path / "results" / name / "runs", data=f"{name}.csv", rows=SMALL | {"test": 1_000})
        for model, accuracy in zip(("linear", "recurrent", "baseline"), scores, strict=True):
            factory.run(model, accuracy)
    monkeypatch.setattr("docs.site.results.RUNGS", ("linear", "recurrent"))
    monkeypatch.setattr("docs.site.results.TRIED_IN", ("near", "far"))
    readme = tmp_path / "README.md"
    readme.write_text(block("default-ladder"), encoding="utf-8")
    render_results_markdown(tmp_path / "results", [readme])
    heading, rows = cells(readme.read_text(encoding="utf-8").splitlines())
    assert heading == ["Corpus", "linear", "recurrent"]
    assert [[row[0], *(cell.startswith("**") for cell in row[1:])] for row in rows] == [
        ["near", True, False],
        ["far", False, True],
    ]
    assert [float(cell.strip("*")) for cell in rows[0][1:]] == pytest.approx([0.80, 0.805], abs=0.01)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (block("frist"), "did you mean 'first'"),
        ("<!-- results:first begin -->\n", "has no end"),
        ("<!-- results:first end -->\n", "has no begin"),
        ("<!-- results:first begin -->\n<!-- results:first.across begin -->\n", "has no end before"),
    ],
)
def test_wrong_markers_are_refused_and_nothing_is_written(folder: Path, content: str, message: str) -> None:
    readme = folder.parents[1] / "README.md"
    readme.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        render_results_markdown(folder.parent)
    assert readme.read_text(encoding="utf-8") == content


def test_the_study_file_of_the_project_asks_of_what_is_packed_in_it_and_of_nothing_else(project: Path) -> None:
    files, second, moved = project / "configs" / "studies", project / "results" / "second", project / "runs" / "second"
    third = project / "results" / "third"
    files.mkdir(parents=True)

    def asked(folder: Path) -> list[str]:
        return [item.name.removeprefix("asked | of ") for item in questions_of(folder).contrasts]

    newer = STUDY.format(name="second", question="later")
    (files / "second.yaml").write_text(newer, encoding="utf-8")
    assert asked(second) == ["second"], "it lies there as it was run"
    pack_study(second, moved)
    assert asked(moved) == ["second"]
    shutil.rmtree(second)
    shutil.copytree(moved, second)
    assert asked(second) == ["later"]
    (files / "second.yaml").write_text(newer.replace("name: second", "name: another"), encoding="utf-8")
    assert asked(second) == ["second"]
    assert asked(third) == []
    (files / "third.yaml").write_text(newer, encoding="utf-8")
    assert asked(third) == ["later"]
    (files / "second.yaml").write_text("name: second\ncontrasts: [{name: without sides}]\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"second\.yaml"):
        render_results_markdown(project / "results")
    with pytest.raises(DataError, match="holds no runs"):
        read_study(project / "docs")


def test_the_command_tells_stale_from_fresh_and_refuses_a_record_edited_by_hand(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = folder.parents[1]
    (root / "README.md").write_text(block("first"), encoding="utf-8")
    monkeypatch.chdir(root)
    assert [main(["--check"]), main([]), main(["--check"])] == [1, 0, 0]
    path = next(folder.rglob("record.json"))
    record = read_record(path)
    write_record(path.parent, record.model_copy(update={"model": record.model.model_copy(update={"preset": "hashed"})}))
    assert main(["--check"]) == 1
    path.write_text(path.read_text(encoding="utf-8").replace('"created": "2026', '"created": "2025'), encoding="utf-8")
    capsys.readouterr()
    assert main(["--check"]) == 2
    said = capsys.readouterr().err
    assert "was changed after it was written" in said and said.count("\n") == 1


# The page of claims: each has a verdict, a place and a published figure, and rests on records.

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "results" / "claims.md"
STUDIES = _Studies(ROOT / "results")
NAMED = [
    pytest.param(claim, id=f"{claim.where}: {claim.claim}") for claim in Claims.load(PAGE.with_suffix(".yaml")).claims
]


@pytest.mark.parametrize("claim", NAMED)
def test_a_claim_has_a_place_and_a_published_figure_and_its_verdict_rests_on_records(claim: Claim) -> None:
    assert claim.where.startswith(("Guo, ", "CRT, "))
    assert claim.claim.endswith(".") and claim.why
    assert claim.published == "none" or re.search(r"\d", claim.published)
    assert claim.study is None or (ROOT / "configs" / "studies" / f"{claim.study}.yaml").is_file()
    benches = re.findall(r"results/(bench-[a-z-]+\.json)", claim.ours)
    assert claim.figures or benches or claim.verdict == "not tested"
    named = {name for text in (claim.ours, claim.why) for _, name, _, _ in Formatter().parse(text) if name}
    assert named == set(claim.figures)
    for figure in claim.figures.values():
        assert re.search(r"\d", figure.read(STUDIES.read(figure.study))[0])
    # No figure of ours that may change stands in a text by hand, but those of a benchmark, which are its record's.
    by_hand = re.findall(r"\d+\.\d+", f"{claim.ours} {claim.why}".replace("0.13 ms", ""))
    measured = set()
    for record in (json.loads((ROOT / "results" / name).read_text()) for name in benches):
        values = [line[key] for line in record.get("measures", ()) for key in ("ours", "other", "result")]
        values += [line["ms"] for line in record.get("paths", ()) if "ms" in line]
        measured |= {f"{value:{form}}" for value in values for form in (".2f", ".3g")}
    assert set(by_hand) <= measured


@pytest.mark.parametrize("claim", [case for case in NAMED if case.values[0].verdict in ("holds", "does not hold")])
def test_a_difference_is_called_only_where_the_seeds_support_it(claim: Claim) -> None:
    for figure in claim.figures.values():
        if figure.contrast:
            (table,) = (each for each in STUDIES.read(figure.study).tables if figure.table in each.title)
            (line,) = (each for each in table.contrasts if each.name == figure.contrast)
            level = line.half is not None and line.gap - line.half > -0.01
            competitive = claim.verdict == "holds" and "competitive" in claim.claim and level
            assert line.verdict == "distinguishable" or competitive


def test_the_page_is_what_the_records_say_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    read = STUDIES.read
    monkeypatch.setattr(_Studies, "read", lambda _, name: read(name))
    assert render_results_markdown(ROOT / "results", [PAGE], check=True) == []
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.split()) < 2600
    for address in re.findall(r"\]\(([^)#\s]+)\)", text):
        assert (PAGE.parent / address).exists(), address


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"table": ""}, "not in the title of one table of 'domains'"),
        ({"contrast": "sharing"}, "unknown contrast of a claim 'sharing'"),
        ({"model": "recurent", "measure": "accuracy"}, "did you mean 'recurrent'"),
        ({"model": "recurrent", "measure": "acuracy"}, "did you mean 'accuracy'"),
        ({"model": "recurrent", "export": "fp16"}, "unknown export of a claim 'fp16'"),
    ],
)
def test_a_figure_that_no_record_has_is_named(values: dict[str, str], message: str) -> None:
    figure = Figure.parse({"study": "domains", "table": "natural protocol · 0.2", **values})
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        figure.read(STUDIES.read("domains"))
