"""What tests of a user's whole way share: a real browser, and what a page in it asks for and complains of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from benchmarks.browser import BROWSERS, find_browser, started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser without a window; skips the test where there is none."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra: dev)")
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser on PATH (looked for {', '.join(BROWSERS)})")
    with started(path) as opened:
        yield opened


@dataclass
class Visit:
    """A page that is open, and what it complained of and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def reads_well(self, width: int, scheme: str) -> None:
        """Nothing sticks out, ink is told from paper, and paper is light or dark as was asked; nobody complained."""
        assert self.page.evaluate("document.documentElement.scrollWidth") <= width
        paper, ink = self.page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
            ".map(text => text.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 3)"
        )
        assert abs(paper - ink) > 150 and (paper > ink) == (scheme == "light")
        assert self.complaints == []


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Opens an address in a window of its own."""
    with contextlib.ExitStack() as stack:

        def start(address: str, *, width: int = 1280, scheme: str = "light", **how: Any) -> Visit:
            context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme, **how)
            stack.callback(context.close)
            found = Visit(context.new_page())
            found.page.goto(address, wait_until="networkidle")
            return found

        yield start
