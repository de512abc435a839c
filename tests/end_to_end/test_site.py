"""The documentation as a site: every page is in it, no link is broken, and nothing is asked for from outside."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from docs.site.build import CONFIGURATION, DOCUMENTS, ROOT, SITE, BrokenLinkError, place, relink, stage

import recurra

SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
# Links that say what a page is or where another is; nothing is loaded by them.
SAID = {"canonical", "next", "prev", "alternate"}
OUTSIDE = re.compile(r"(?!data:)[a-z]+:|//")
STYLED_FROM_OUTSIDE = re.compile(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//")


class Page(HTMLParser):
    """What a page loads, links to, and can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: set[str] = set()
        self.links: set[str] = set()
        self.names: set[str] = set()
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.names |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif tag in LOADED and LOADED[tag] in values and values.get("rel") not in SAID:
            self.loads.add(values[LOADED[tag]])
        self.loads |= {part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()}


def navigation(entry: object) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, list):
        for each in entry:
            yield from navigation(each)
    elif isinstance(entry, dict):
        yield from navigation(list(entry.values()))


def html(source: PurePosixPath) -> Path:
    return SITE / source.with_name("index.html" if source.name == "README.md" else f"{source.stem}.html")


@pytest.fixture(scope="module")
def site() -> dict[Path, Page]:
    built = subprocess.run(
        [sys.executable, "docs/site/build.py"], cwd=ROOT, check=False, capture_output=True, text=True, timeout=200
    )
    lines = (built.stdout + built.stderr).splitlines()
    assert built.returncode == 0, "\n".join(lines)
    assert [line for line in lines if not line.startswith(("Build started", "Build finished"))] == ["No issues found"]
    return {path: Page(path) for path in sorted(SITE.rglob("*.html"))}


@pytest.mark.slow
def test_every_page_and_every_public_name_is_in_the_site(site: dict[Path, Page]) -> None:
    for source in [*SOURCES, *DOCUMENTS]:
        assert html(place(PurePosixPath(source))) in site, source
    names = site[SITE / "reference" / "api.html"].names
    assert {"recurra.Classifier.predict", *(f"recurra.{name}" for name in recurra.__all__)} <= names


@pytest.mark.slow
def test_nothing_is_loaded_from_outside(site: dict[Path, Page]) -> None:
    for path, page in site.items():
        assert [url for url in page.loads if OUTSIDE.match(url)] == [], path
        assert STYLED_FROM_OUTSIDE.findall(page.text) == [], path
    for path in [*SITE.rglob("*.css"), *SITE.rglob("*.svg")]:
        assert STYLED_FROM_OUTSIDE.findall(path.read_text(encoding="utf-8")) == [], path


@pytest.mark.slow
def test_links_and_what_is_loaded_exist(site: dict[Path, Page]) -> None:
    seen = 0
    for path, page in site.items():
        for url in page.links | page.loads:
            to = urlsplit(url)
            if to.scheme or path.name == "404.html":
                continue
            other = (path.parent / unquote(to.path)).resolve() if to.path else path
            assert other.is_file(), f"{path.relative_to(SITE)}: {url}"
            if to.fragment and other in site and not to.fragment.startswith("__"):
                assert unquote(to.fragment) in site[other].names, f"{path.relative_to(SITE)}: {url}"
            seen += 1
    assert seen > 1000


def test_the_reference_names_no_more_than_is_public() -> None:
    text = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: recurra\.(\w+)$", text, re.MULTILINE)) == sorted(recurra.__all__)


def test_the_navigation_leads_to_every_page() -> None:
    named = list(navigation(tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["project"]["nav"]))
    listed = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    pages = {place(PurePosixPath(source)).as_posix() for source in [*SOURCES, *DOCUMENTS]}
    assert len(named) == len(set(named)) and set(named) <= pages
    assert {name for name in pages - set(named) if f"({name.removeprefix('decisions/')})" not in listed} == set()


def test_links_of_a_copy_stay_inside_the_pages_and_those_to_nothing_are_refused(tmp_path: Path) -> None:
    project, pages = tmp_path / "project", tmp_path / "pages"
    for name, text in {
        "README.md": "# A\n", "CHANGELOG.md": "# C\n", "SECURITY.md": "# S\n",
        "CONTRIBUTING.md": "see [it](docs/a/b.md#c)\n",
        "docs/README.md": "# D\n", "docs/site/assets/site.css": "", "docs/a/README.md": "[up](../../README.md)\n",
        "docs/a/b.md": "[r](../../results) [one](../../results/x/record.json) [q](../a#f) [w](https://w.org/a)\n"
        "```md\n[kept](nowhere.md)\n```\n",
        "results/x/record.json": "{}", "results/x/rows.parquet": "", "results/y.yaml": "a: 1",
    }.items():  # fmt: skip
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")
    stage(pages, project)
    assert (pages / "a/b.md").read_text(encoding="utf-8") == (
        "[r](../files/results/README.md) [one](../files/results/x/record.json) [q](README.md#f) [w](https://w.org/a)\n"
        "```md\n[kept](nowhere.md)\n```\n"
    )
    assert (pages / "a/README.md").read_text(encoding="utf-8") == "[up](../README.md)\n"
    assert (pages / "project/contributing.md").read_text(encoding="utf-8") == "see [it](../a/b.md#c)\n"
    assert (pages / "files/results/x/record.json").read_text(encoding="utf-8") == "{}"
    listing = (pages / "files/results/README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((.*)\)", listing) == ["x/record.json", "y.yaml"]
    assert not list(pages.rglob("*.parquet"))
    for target in ("gone.md", "../../../outside.md", "../.."):
        with pytest.raises(BrokenLinkError, match=f"docs/a/b.md links to {target}, which does not exist"):
            relink(f"[x]({target})", PurePosixPath("docs/a/b.md"), project)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_is_read_and_searched_from_files_without_a_request(
    site: dict[Path, Page], visit: Any, width: int, scheme: str
) -> None:
    found = visit((SITE / "reference/api.html").as_uri(), width=width, scheme=scheme)
    page = found.page
    for name in ("reference/api.html", "results/isolate.html", "index.html"):
        page.goto((SITE / name).as_uri(), wait_until="load")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
    page.keyboard.press("Control+k")
    page.keyboard.type("abstain")
    page.get_by_role("option", name="Labels for new rows").click(timeout=20_000)
    page.wait_for_url("**/how-to/own-data.html*")
    # The browser itself says something of a link to a heading.
    assert not [text for text in found.complaints if not text.startswith("Autofocus processing was blocked")]
    assert len(found.requests) > 10 and {urlsplit(url).scheme for url in found.requests} <= {"file", "data", "blob"}
