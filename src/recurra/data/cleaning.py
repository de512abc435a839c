"""Cleanings of raw text, by name: a model's input is cleaned as its training texts were.

The order of the steps is part of a cleaning. A tag and a URL become a space, so that ``good<br/>bad`` stays two words;
the last step removes spaces that are not needed. No pattern can backtrack over more than one token, so a text of any
size is cleaned in linear time.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from recurra.core.errors import CheckpointError, DataError

# The cleaning of named corpora and of records that name none; the one of users' files; and no cleaning.
FIRST, CAREFUL, NO_CLEANING = "recurra-1", "recurra-2", "none"
# The steps of each cleaning, as exported files describe them; any change to a step needs a new name.
CLEANINGS: Mapping[str, tuple[str, ...]] = {
    FIRST: (
        "collapse white space",
        "lower-case",
        "replace HTML tags by a space",
        "replace URLs by a space",
        "collapse repeated '!', '?' and '.' to one",
        "collapse white space",
    ),
    CAREFUL: (
        "compose accents (NFC)",
        "collapse white space",
        "lower-case",
        "replace tags of HTML, by their names, by a space",
        "replace URLs by a space, unless nothing else is left",
        "collapse repeated '!', '?' and '.' to one",
        "collapse white space",
    ),
    NO_CLEANING: (),
}

# A tag starts with a letter, a slash or an exclamation mark: "3 < 5 and 6 > 2" is not markup.
_TAG = re.compile(r"<[a-z/!][^<>]*>")
_URL = re.compile(r"(?:https?://|www\.)\S+")
_REPEATED = re.compile(r"([!?.])\1+")

_NAMES = (
    "abbr address article aside audio blockquote body br button caption center cite code col dd del details dfn div dl "
    "dt em embed fieldset figcaption figure font footer form h1 h2 h3 h4 h5 h6 head header hr html iframe img input "
    "ins kbd label legend li link main mark meta nav noscript ol optgroup option picture pre script section select "
    "small span strike strong style sub summary sup svg table tbody td textarea tfoot th thead tr tt ul var video wbr"
)
_SURE_TAG = re.compile(
    rf"</?(?:{_NAMES.replace(' ', '|')})(?:\s[^<>]*)?/?>"
    # A tag of one letter may be a type parameter of a program, so only what no program has is matched: an end tag, an
    # attribute, or a start tag that follows no word.
    r"|</[abipqsu]>|<[abipqsu](?:\s+[a-z-]+\s*=[^<>]*|\s*/)>|(?<!\w)<[abipqsu]>"
    r"|<!--[^<>]*-->|<!doctype[^<>]*>"
)
# The characters for which `str.isspace` is true, as a character class.
_BLANKS = r"\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SURE_URL = re.compile(r"(?<!\w)(?:https?://|www\.)\S+")


def clean_text(text: str, cleaning: str = FIRST) -> str:
    """Returns the cleaned text; empty if nothing is left."""
    if cleaning == NO_CLEANING:
        return "" if text.isspace() else text
    careful = cleaning == CAREFUL
    if careful and not text.isascii():
        text = unicodedata.normalize("NFC", text)
    text = " ".join(text.split()).lower()
    if "<" in text:
        text = (_SURE_TAG if careful else _TAG).sub(" ", text)
    if "http" in text or "www." in text:
        without_urls = (_SURE_URL if careful else _URL).sub(" ", text)
        text = text if careful and not without_urls.strip() else without_urls
    text = _REPEATED.sub(r"\1", text)
    return " ".join(text.split())


def leaves_nothing(text: str, cleaning: str = FIRST) -> bool:
    """Whether the cleaned text is empty; few texts have to be cleaned to know it."""
    start = text.lstrip()[:4].lower()
    return (not start or start.startswith(("<", "http", "www."))) and not clean_text(text, cleaning)


def clean_texts(texts: Iterable[str], cleaning: str = FIRST) -> list[str]:
    """Cleans many texts, in order."""
    return [clean_text(text, cleaning) for text in texts]


def removed_by(text: str, cleaning: str) -> set[str]:
    """The kinds of content that a cleaning removes from a text: HTML tags, URLs."""
    if cleaning == NO_CLEANING or not ("<" in text or "://" in text or "www." in text.lower()):
        return set()
    careful, lowered = cleaning == CAREFUL, text.lower()
    without_tags = (_SURE_TAG if careful else _TAG).sub(" ", lowered)
    without_urls = (_SURE_URL if careful else _URL).sub(" ", without_tags)
    urls = without_urls != without_tags and (without_urls.strip() or not careful)
    return {name for name, taken in (("HTML tags", without_tags != lowered), ("URLs", urls)) if taken}


def browser_steps(cleaning: str) -> dict[str, Any]:
    """A cleaning for JavaScript: its steps, and their patterns rewritten to mean there what they mean in Python."""

    def source(pattern: re.Pattern[str]) -> str:
        # Python's classes of white space and words are those of Unicode; JavaScript needs them written out.
        source_text = pattern.pattern.replace(r"(?<!\w)", r"(?<![\p{L}\p{N}_])")
        return source_text.replace(r"\s", f"[{_BLANKS}]").replace(r"\S", f"[^{_BLANKS}]")

    careful = cleaning == CAREFUL
    return {
        "lower": cleaning != NO_CLEANING,
        "nfc": careful,
        "tag": source(_SURE_TAG if careful else _TAG),
        "url": source(_SURE_URL if careful else _URL),
        "keepSoleUrl": careful,
        "repeated": source(_REPEATED),
        "space": _BLANKS,
    }


def recorded_cleaning(config: Mapping[str, Any]) -> str:
    """The cleaning of a recorded run, by its configuration."""
    data = config.get("data")
    name = data.get("clean", FIRST) if isinstance(data, Mapping) else FIRST
    if name not in CLEANINGS:
        raise CheckpointError(
            f"the record needs the cleaning '{name}', which this version does not have; upgrade recurra"
        )
    return str(name)


def check_texts(texts: Sequence[str]) -> None:
    """Refuses texts that no tokenizer takes (`TypeError`, `DataError`); errors quote no text, for it may be private."""
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise TypeError(f"text {number:,} of {len(texts):,} is a {type(text).__name__}; give strings")
        if text.isascii():
            continue
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            character, where = f"U+{ord(text[error.start]):04X}", f"at character {error.start + 1:,}"
            raise DataError(
                f"text {number:,} of {len(texts):,} holds the lone surrogate {character} {where}, which is not a "
                "character: its source was not UTF-8; save it as UTF-8"
            ) from None
