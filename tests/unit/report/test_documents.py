"""A page for each study that has records."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.site.results import questions_of, render_results_markdown

from factories import RunFactory
from recurra.core.errors import ConfigurationError

SMALL = {"train": 900, "validation": 300, "test": 400}
STUDY = """\
name: {name}
title: {title}
data: [{{name: sst2}}]
models: [baseline, recurrent]
contrasts: [{{name: {question}, a: recurrent, b: baseline}}]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two studies with records, one without, and a page for the first."""
    for name in ("first", "second"):
        factory = RunFactory(tmp_path / "results" / name / "runs", rows=SMALL)
        for model in ("baseline", "recurrent"):
            factory.run(model)
        text = STUDY.format(name=name, title=f"The {name} study", question=f"asked of {name}")
        (tmp_path / "results" / name / "study.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "results" / "third" / "runs" / "unfinished").mkdir(parents=True)
    pages = tmp_path / "docs" / "results"
    pages.mkdir(parents=True)
    block = "<!-- results:first{part} begin -->\n<!-- results:first{part} end -->\n"
    (pages / "mine.md").write_text(block.format(part=""), encoding="utf-8")
    (tmp_path / "README.md").write_text(block.format(part=""), encoding="utf-8")
    return tmp_path


def test_a_study_with_records_that_no_page_shows_gets_one(project: Path) -> None:
    pages = project / "docs" / "results"
    changed = render_results_markdown(project / "results")
    assert pages / "second.md" in changed
    assert not (pages / "first.md").exists() and not (pages / "third.md").exists()
    content = (pages / "second.md").read_text(encoding="utf-8")
    assert content.startswith("# The second study\n")
    assert "asked of second: recurrent − baseline" in content
    assert render_results_markdown(project / "results", check=True) == []


def test_the_study_file_of_the_project_asks_before_the_one_of_the_runs(project: Path) -> None:
    files = project / "configs" / "studies"
    files.mkdir(parents=True)
    assert [item.name for item in questions_of(project / "results" / "second").contrasts] == ["asked of second"]
    newer = STUDY.format(name="second", title="x", question="asked later")
    (files / "second.yaml").write_text(newer, encoding="utf-8")
    assert [item.name for item in questions_of(project / "results" / "second").contrasts] == ["asked later"]
    assert list(questions_of(project / "results" / "third").contrasts) == []
    (files / "second.yaml").write_text("name: second\ncontrasts: [{name: without sides}]\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"second\.yaml"):
        render_results_markdown(project / "results")


def test_named_documents_alone_are_written_if_some_are_named(project: Path) -> None:
    readme = project / "README.md"
    assert render_results_markdown(project / "results", [readme]) == [readme]
    assert not (project / "docs" / "results" / "second.md").exists()


def test_the_overview_has_a_line_for_each_table_and_links_to_the_pages_made_with_it(project: Path) -> None:
    readme = project / "README.md"
    readme.write_text("<!-- results:overview begin -->\n<!-- results:overview end -->\n", encoding="utf-8")
    render_results_markdown(project / "results")
    lines = [line for line in readme.read_text(encoding="utf-8").splitlines() if line.startswith("| [")]
    assert len(lines) == 2
    # The first is shown by a page of its own making, the second gets its page in the same call.
    assert lines[0].startswith("| [first](docs/results/mine.md) |")
    assert lines[1].startswith("| [second](docs/results/second.md) |")
    page = (project / "docs" / "results" / "second.md").read_text(encoding="utf-8")
    gap = next(line for line in page.splitlines() if line.startswith("| asked of second")).split("|")[2].strip()
    assert f"| {gap} (" in lines[1] and "| not distinguishable |" in lines[1]
    assert render_results_markdown(project / "results", check=True) == []
