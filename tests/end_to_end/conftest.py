"""What tests of a user's whole way share: a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser without a window; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra: dev)")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser on PATH (looked for {', '.join(BROWSERS)})")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()
