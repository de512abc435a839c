"""One way of writing for texts that were tokenised in different ways.

Corpora differ in more than their words: the Penn Treebank's tokeniser sets marks apart and cuts ``do n't``, other texts
are as people typed them, quotes are `` ``, '' or ", brackets ``-lrb-``. A classifier that has to tell such corpora
apart can look at that alone. `one_convention` writes all of them the same way. What it cannot make equal is what the
texts themselves differ in: length, word lengths, how often a mark occurs.
"""

from __future__ import annotations

import re
import unicodedata

# Marks that every corpus of ours keeps. Others are lost in one release or another, so their presence gives it away.
MARKS = '.,!?;:()$%-"/'

# Applied one after the other; a pass over the text for each costs less than one regular expression for all.
_ESCAPES = {
    "-lrb-": "(", "-rrb-": ")", "-lsb-": "(", "-rsb-": ")", "-lcb-": "(", "-rcb-": ")",
    "``": '"', "''": '"', "`": "'", "\\/": "/", "[": "(", "]": ")", "{": "(", "}": ")", "&": " and ",
}  # fmt: skip
_PAIRS = {" can not ": " cannot ", " gon na ": " gonna ", " wan na ": " wanna ", " got ta ": " gotta "}
_TYPOGRAPHIC = str.maketrans({"‘": "'", "’": "'", "‛": "'", "´": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "."})
_NOT = re.compile(r"(?<=[a-z]) n't\b")
_CLITIC = re.compile(r"(?<=[a-z0-9]) '(s|re|ve|ll|d|m)\b")
_HALF_AT_START = re.compile(r"^(?:[^a-z0-9]*(?:n't|'(?:s|re|ve|ll|d|m))(?![a-z0-9']))+")
_RUN = re.compile(rf"([{re.escape(MARKS)}])(?: \1)+")
_TOKEN = re.compile(rf"[a-z0-9]+(?:'[a-z0-9]+)*|[{re.escape(MARKS)}]")


def one_convention(text: str) -> str:
    """Writes a cleaned text in one convention.

    Accents and characters beyond ASCII go, treebank escapes and typographic quotes become plain marks, split clitics
    and pairs are joined (``do n't`` to ``don't``, ``can not`` to ``cannot``), every mark stands alone, a run of one
    mark is one, other marks go, and so do marks at either end (one of the releases cuts them off).

    Args:
        text: A text from `recurra.data.cleaning.clean_text`.

    Returns:
        Words and marks with one space between them; empty if there is no word. Applied twice it changes nothing.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text.translate(_TYPOGRAPHIC)).encode("ascii", "ignore").decode().lower()
    for escape, plain in _ESCAPES.items():
        text = text.replace(escape, plain)
    if " n't" in text:
        text = _NOT.sub("n't", text)
    if " '" in text:
        text = _CLITIC.sub(r"'\1", text)
    text = _HALF_AT_START.sub("", text)
    written = _RUN.sub(r"\1", " ".join(_TOKEN.findall(text))).strip(MARKS + " ")
    if " not" in written or " na" in written or " ta" in written:
        written = f" {written} "
        for pair, word in _PAIRS.items():
            written = written.replace(pair, word)
    return written.strip()


def bare_words(text: str) -> str:
    """The words of a text in one convention, without its marks."""
    return " ".join(word for word in text.split() if word not in MARKS)
