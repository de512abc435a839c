"""What browsers are told of every answer and of the page."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser

from recurra.deployment.serving.headers import HEADERS, RAW_HEADERS, read_page


class Blocks(HTMLParser):
    """The contents of script and style."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[str]] = {"script": [], "style": []}
        self._open: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.found:
            self._open = tag
            self.found[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.found[self._open][-1] += data


def test_the_page_may_run_its_own_script_and_style_and_ask_its_own_server() -> None:
    page = read_page()
    blocks = Blocks()
    blocks.feed(page.content.decode("utf-8"))
    assert all(blocks.found.values())
    hashes = {
        tag: " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()}'" for block in found
        )
        for tag, found in blocks.found.items()
    }
    assert page.headers == {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "Cache-Control": "no-cache",
    }


def test_other_answers_are_no_documents_and_are_kept_nowhere() -> None:
    assert HEADERS == {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }
    lines = RAW_HEADERS.decode("ascii").split("\r\n")
    assert lines == [*(f"{name.lower()}: {value}" for name, value in HEADERS.items()), ""]
