"""What tests of a user's whole way share: a real browser."""

from __future__ import annotations

from collections.abc import Iterator
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
