"""What browsers are told: headers of every answer, and the page at ``/``, whose policy lets it load nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib import resources

# Of every answer that says nothing else: it is no document, is shown in no frame and kept nowhere.
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # For browsers that do not know frame-ancestors.
    "X-Frame-Options": "DENY",
}
RAW_HEADERS = "".join(f"{name.lower()}: {value}\r\n" for name, value in HEADERS.items()).encode("ascii")

_BLOCK = r"<{tag}>(.*?)</{tag}>"


@dataclass(frozen=True)
class Page:
    """A page and the headers that it is sent with."""

    content: bytes
    headers: dict[str, str]


def read_page() -> Page:
    """Reads the page; its policy names the hashes of its own script and style, and nothing else runs."""
    text = (resources.files("recurra.deployment.serving") / "page.html").read_text(encoding="utf-8")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(text, 'script')}",
            f"style-src {_hashes(text, 'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": policy,
        "Cache-Control": "no-cache",
    }
    return Page(text.encode("utf-8"), headers)


def _hashes(text: str, tag: str) -> str:
    blocks = re.findall(_BLOCK.format(tag=tag), text, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(block.encode("utf-8")).digest()).decode("ascii") for block in blocks)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
