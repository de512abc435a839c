"""Formats text for people: lines of a terminal, numbers, durations, lists."""

from __future__ import annotations

import codecs
import re
import unicodedata
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TextIO

LONGEST_LINE = 4000
LONGEST_CELL = 1000
# Marks that change the direction of the text after them: a text could hide its end with them.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")


def is_utf8(stream: TextIO) -> bool:
    """Whether a stream writes UTF-8, as JSON needs for letters that are not escaped; in memory it writes none."""
    return stream.encoding is None or codecs.lookup(stream.encoding).name == "utf-8"


def printable(text: str, most: int = LONGEST_LINE) -> str:
    r"""Returns a text with every control character and line break written out, as ``\x1b``; cut at ``most``."""
    cut_text = text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
    if cut_text.isprintable():
        return cut_text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if character in _TURNING or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
        else character
        for character in cut_text
    )


def one_line(text: str, most: int = LONGEST_LINE) -> str:
    """Returns a text in one line: each run of white space becomes one blank, the rest is as in `printable`."""
    return printable(" ".join(text.split()), most)


NONE = "–"


def decimal(value: float | None, digits: int = 4) -> str:
    """A plain decimal, or a dash."""
    return NONE if value is None else f"{value:.{digits}f}"


def significant(value: float | None) -> str:
    """Three significant digits without an exponent, for figures whose size varies."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{Decimal(text):,f}" if "e" in text else text


def interval(low: float | None, high: float | None) -> str:
    """A 95 % interval, or an empty text."""
    return "" if low is None or high is None else f"{low:.3f}–{high:.3f}"


def signed(difference: float, digits: int = 1) -> str:
    """A difference with its sign; a value that rounds to zero has none."""
    text = f"{abs(difference):.{digits}f}"
    return text if not float(text) else f"{'+' if difference > 0 else '−'}{text}"


def points(difference: float) -> str:
    """A difference of two shares, signed, in percentage points."""
    return f"{signed(100 * difference)} points"


def p_value(value: float | None) -> str:
    """A p-value; below 0.001 only ``< 0.001``."""
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return NONE if value is None else f"{value:,.0f}"


def amount(value: float) -> str:
    """A number in thousands, millions, ... up to 10^18: ``10.97 M``."""
    for limit, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.{2 if value / limit < 100 else 0}f} {unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def times(ratio: float) -> str:
    """How many times more: ``3.2 ×``, ``40 ×``."""
    return f"{ratio:.1f} ×" if ratio < 10 else f"{ratio:,.0f} ×"


def moment(text: str) -> str:
    """A recorded time (ISO 8601) to the minute; any other text as it is."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{time:%Y-%m-%d %H:%M}{' UTC' if time.utcoffset() == timedelta(0) else f'{time:%z}'}"


def seeds(numbers: list[int]) -> str:
    """Seeds in words."""
    return f"{len(numbers)} seeds" if len(numbers) != 1 else f"one seed ({numbers[0]})"


def front_name(cost: str) -> str:
    """The cost axis of a Pareto front in words: ``latency 32`` is ``latency at batch 32``."""
    kind, _, batch = cost.partition(" ")
    return f"{kind} at batch {batch}" if batch else kind


def yes_no(value: bool | None) -> str:
    """Yes, no, or a dash if unknown."""
    return NONE if value is None else "yes" if value else "no"


def slug(text: str) -> str:
    """A text as part of a file name: lower-case letters, digits and dots; anything else becomes a hyphen."""
    return "-".join(part for part in re.split(r"[^a-z0-9.]+", text.lower()) if part.strip(".")) or "x"


def words(parts: list[str]) -> str:
    """Joins parts as a sentence does."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
