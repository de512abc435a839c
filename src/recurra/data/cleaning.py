"""Cleaning of raw text: the same six steps for every corpus, in a fixed order.

The order matters and is part of the protocol: white space, case, HTML tags, URLs, repeated ``!``, ``?`` and ``.``,
white space again. A tag and a URL leave a space behind, so that ``good<br/>bad`` stays two words; the last step
removes it where it is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from recurra.core.errors import DataError

# What a file that leaves the house says of these steps; a change to one of them gives the whole a new name.
CLEANING_NAME = "recurra-1"
CLEANING_STEPS = (
    "collapse white space",
    "lower-case",
    "replace HTML tags by a space",
    "replace URLs by a space",
    "collapse repeated '!', '?' and '.' to one",
    "collapse white space",
)

# A tag starts with a letter, a slash or an exclamation mark: "3 < 5 and 6 > 2" is not markup. Neither pattern can
# backtrack over more than one token, so a text of any size is cleaned in linear time.
_TAG = re.compile(r"<[a-z/!][^<>]*>")
_URL = re.compile(r"(?:https?://|www\.)\S+")
_REPEATED = re.compile(r"([!?.])\1+")


def clean_text(text: str) -> str:
    """Returns the cleaned text; empty if nothing is left.

    Args:
        text: Raw text of any length and script.
    """
    text = " ".join(text.split()).lower()
    if "<" in text:
        text = _TAG.sub(" ", text)
    if "http" in text or "www." in text:
        text = _URL.sub(" ", text)
    text = _REPEATED.sub(r"\1", text)
    return " ".join(text.split())


def clean_texts(texts: Iterable[str]) -> list[str]:
    """Cleans many texts, in order."""
    return [clean_text(text) for text in texts]


def check_texts(texts: Sequence[str]) -> None:
    """Refuses what no tokenizer takes, without showing it: it may be private.

    Raises:
        TypeError: If one is no string.
        DataError: If one holds a lone surrogate.
    """
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise TypeError(f"text {number:,} of {len(texts):,} is a {type(text).__name__}; give strings")
        if text.isascii():
            continue
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            found, place = f"U+{ord(text[error.start]):04X}", f"at character {error.start + 1:,}"
            raise DataError(
                f"text {number:,} of {len(texts):,} holds the lone surrogate {found} {place}, which is no character: "
                "it was not UTF-8 where it came from; save it as UTF-8"
            ) from None
