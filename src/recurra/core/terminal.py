"""Texts of others on a terminal: nothing in them moves the cursor, rings, hides or takes a screen."""

from __future__ import annotations

import unicodedata

LONGEST_LINE = 4000
LONGEST_CELL = 1000
# Marks that turn the direction of what follows: a text could hide its end behind them.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")


def printable(text: str, most: int = LONGEST_LINE) -> str:
    r"""Returns a text with every control character written out, as ``\x1b``; cut where it is longer than ``most``.

    Line breaks are written out as well. Emoji, combining marks and every script stay as they are.
    """
    shown = text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
    if shown.isprintable():
        return shown
    return "".join(_written_out(character) for character in shown)


def one_line(text: str, most: int = LONGEST_LINE) -> str:
    """Returns a text in one line: white space is one blank each, the rest as `printable` has it."""
    # Cut first: the rest of a long text need not be looked at.
    return printable(" ".join(text[: 2 * most].split()) if len(text) > 2 * most else " ".join(text.split()), most)


def _written_out(character: str) -> str:
    if character in _TURNING or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
        return character.encode("unicode_escape").decode("ascii")
    return character
