"""The page as a document: what stands in it, that it needs nothing else, and that nothing in it is alive."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from factories import RunFactory, leakage, study_latency
from recurra.report.render import TEMPLATES, render_report
from recurra.report.summary import load_runs, summarise
from recurra.tasks.questions import Limits, Questions
from rendered import write_report

SMALL = {"train": 900, "validation": 300, "test": 400}
OUR_SCRIPT = (TEMPLATES / "tables.js").read_text(encoding="utf-8").strip()
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Collects tags, texts by section, and checks that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data.strip())
        elif not {"style", "title", "desc"}.intersection(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Page:
    tmp_path = tmp_path_factory.mktemp("full")
    factory = RunFactory(tmp_path / "runs")
    folders = [
        factory.run(name, accuracy, seed=seed, audits=[leakage("test"), leakage("validation", failed=False)])
        for name, accuracy in (("linear", 0.80), ("baseline", 0.82), ("recurrent", 0.81))
        for seed in range(3)
    ]
    pages = [
        write_report(
            tmp_path / name, folders, title="A study", command="recurra compare sst2 --seeds 3", latency=latency
        )
        for latency in [study_latency(folders)]
        for name in ("first", "second")
    ]
    assert pages[0].name == "report.html" and pages[0].read_bytes() == pages[1].read_bytes()
    return Page(pages[0].read_text(encoding="utf-8"))


def test_failed_audit_stands_before_the_answer_and_in_the_rows(full: Page) -> None:
    assert full.text.index("Audits failed") < full.text.index("The answer")
    rows = [item for item in full.named("tr") if item.get("class") == "spoiled"]
    assert len(rows) == 3
    assert full.text.count("FAILED: leakage on test") == 3
    assert "trust this advice only as far as" in full.text


def test_nothing_is_loaded_from_outside_and_no_script_but_our_own_runs(full: Page) -> None:
    assert full.scripts == [OUR_SCRIPT] and full.named("script") == [{}]
    for tag, attributes in full.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "action", "data"):
                assert str(value).startswith(("#", "data:,"))


def test_every_identifier_is_unique_and_every_reference_is_met(full: Page) -> None:
    ids = [attributes["id"] for _, attributes in full.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in full.tags:
        references = (attributes.get("aria-labelledby") or "").split()
        if str(attributes.get("href", "")).startswith("#"):
            references.append(str(attributes["href"])[1:])
        assert set(references) <= set(ids)


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "</style><img src=x onerror=alert(1)>", "\"'&<b>", "a\x00b\ud800c"]
)
def test_text_from_outside_is_inert_wherever_it_comes_from(tmp_path: Path, text: str) -> None:
    # A record on disk is UTF-8, what a caller passes need not be.
    stored = text.encode("utf-8", "replace").decode()
    audit = leakage("test").model_copy(update={"summary": stored, "details": {"examples": [{"text": stored}]}})
    factory = RunFactory(
        tmp_path / "runs", rows=SMALL, data=stored, protocol=stored, training=stored, label_names=(stored, "ok")
    )
    folder = factory.run("recurrent", audits=[audit], notes=[stored], run_id="run", settings={"note": stored})
    path = write_report(tmp_path, [folder], title=text, command=text, failures={text: text})
    page = Page(path.read_text(encoding="utf-8"))
    assert page.scripts == [OUR_SCRIPT] and page.named("script") == [{}]
    assert page.named("img") == []
    assert page.named("b") == []
    assert len(page.named("style")) == 1


def test_no_run_at_all_is_still_a_page(tmp_path: Path) -> None:
    page = Page(write_report(tmp_path, [tmp_path / "gone"], title="x").read_text(encoding="utf-8"))
    assert "No run finished" in page.text
    assert "1 run failed" in page.text


@pytest.mark.parametrize("name", ["linear", "recurrent"])
def test_one_bare_run_renders(tmp_path: Path, name: str) -> None:
    factory = RunFactory(tmp_path, rows=SMALL, data="reviews.csv", protocol="split")
    folder = factory.run(name, latency=False, predictions=[], epochs=1, dirty=True)
    page = Page(write_report(tmp_path, [folder], title="x").read_text(encoding="utf-8"))
    assert "There is only one model to test" in page.text
    assert "No latency was measured" in page.text
    assert "No audit was run" in page.text
    assert "cannot be repeated exactly" in page.text
    assert "published" not in page.text


def test_where_nothing_can_be_recommended_the_page_says_why(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows=SMALL)
    runs, _ = load_runs([factory.run("linear", 0.8), factory.run("recurrent", 0.9)])
    questions = Questions(limits=Limits(max_mib=0.001))
    page = Page(render_report(summarise(runs, base=tmp_path, questions=questions), runs, title="x"))
    assert "Nothing can be recommended" in page.text and "no model here stays within 0.001 MiB" in page.text
    assert "Use None" not in page.text
