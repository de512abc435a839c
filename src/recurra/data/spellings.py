"""Labels that a person would call the same, or missing: found, told, and joined where that is asked for.

Two labels are the same in other spellings if they are equal after, in this order: Unicode's compatibility form (NFKC),
without format characters (category Cf: zero-width spaces and joiners, direction marks, soft hyphens, byte order marks),
every run of white space one space and none at either end, case folded; and, where a plain decimal number is left (a
sign, digits, a point, no exponent), equal as numbers. ``NEG`` is ``neg`` then, and ``1``, ``+1``, ``01`` and ``1.0``
are one label. Labels that look like missing values are told and never joined.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from recurra.data.files import FileTable, listed_places

MISSING_WORDS = frozenset({"", "?", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "nil", "missing", "undefined"})

_NUMBER = re.compile(r"([+-]?)(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?")
_MOST_SHOWN = 10


def spelling_key(label: str) -> str:
    """Returns what all spellings of a label have in common; see the module."""
    visible = "".join(
        character for character in unicodedata.normalize("NFKC", label) if unicodedata.category(character) != "Cf"
    )
    # Folding the case can leave characters that are no longer in the compatibility form.
    key = " ".join(unicodedata.normalize("NFKC", visible.casefold()).split())
    number = _NUMBER.fullmatch(key)
    if number is None:
        return key
    whole, part = number[2].lstrip("0"), (number[3] or "").rstrip("0")
    sign = "-" if number[1] == "-" and (whole or part) else ""
    return f"{sign}{whole or '0'}{f'.{part}' if part else ''}"


def looks_missing(label: str) -> bool:
    """Whether a label is how programs write that there is none."""
    return spelling_key(label) in MISSING_WORDS


def spellings(counts: Mapping[str, int]) -> list[list[str]]:
    """Labels that are the same in several spellings, the one that wins first: the most frequent, of equals the first.

    Args:
        counts: Rows of each label, in the order in which the labels first stand there.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for label in counts:
        groups[spelling_key(label)].append(label)
    return [
        sorted(group, key=lambda label: -counts[label])
        for key, group in groups.items()
        if len(group) > 1 and key not in MISSING_WORDS
    ]


def join_spellings(table: FileTable, names: Iterable[str] | None = None) -> FileTable:
    """Returns a table in which every label is written in one way.

    Args:
        table: Labelled rows.
        names: Names of classes that are to be used, for example those of the training rows; None takes the winning
            spellings of the table. A label that is none of them in any spelling stays as it is.
    """
    if names is None:
        counts = Counter(name for label in table.labels for name in _names(label))
        chosen = {label: group[0] for group in spellings(counts) for label in group}
    else:
        by_key = {spelling_key(name): name for name in names if not looks_missing(name)}
        found = {name for label in table.labels for name in _names(label)}
        chosen = {label: by_key.get(spelling_key(label), label) for label in found}
    return replace(table, labels=[_respelt(label, chosen) for label in table.labels])


def _names(label: str | Sequence[str]) -> Sequence[str]:
    """The label of a row that has one, or all of one that may have several."""
    return (label,) if isinstance(label, str) else label


def _respelt(label: str | Sequence[str], chosen: Mapping[str, str]) -> str | tuple[str, ...]:
    if isinstance(label, str):
        return chosen.get(label, label)
    return tuple(dict.fromkeys(chosen.get(name, name) for name in label))


def label_notes(tables: Sequence[FileTable], *, joined: bool) -> list[str]:
    """Sentences on labels in several spellings or that look missing, and on how files were read and what is odd there.

    Args:
        tables: What the files hold, with labels as they are written there.
        joined: Whether spellings are joined.
    """
    counts = Counter(name for table in tables for label in table.labels for name in _names(label))
    notes = []
    if groups := spellings(counts):
        said = (
            "is written in one way, the first of each (join_labels)"
            if joined
            else "makes classes of its own; data.join_labels=true joins them"
        )
        listed = _listed([_listed(_counted(group, counts), " = ") for group in groups], "; ")
        notes.append(f"What differs in case, spacing, invisible characters or a number's form alone {said}: {listed}.")
    if missing := [label for label in counts if looks_missing(label)]:
        listed = _listed(_counted(missing, counts), ", ")
        notes.append(f"Labels that look like missing values are taken as classes: {listed}; remove rows without label.")
    for table in tables:
        if table.delimiter == ";":
            notes.append(f"'{table.source}' is read with semicolons between its fields, as its header has them.")
        if table.unlabelled:
            notes.append(
                f"{len(table.unlabelled):,} rows of '{table.source}' have no label and are left out ({table.unit} "
                f"{listed_places(table.unlabelled)})."
            )
    for table in tables:
        if table.headers:
            places = _listed([str(place) for place in table.headers], ", ")
            notes.append(
                f"'{table.source}' repeats its header among the rows ({table.unit} {places}), where it is taken as a "
                "text with a label; remove it."
            )
    for table in tables:
        if table.swallowed:
            notes.append(
                f"In '{table.source}' {len(table.swallowed):,} texts hold lines that look like further rows (first: "
                f"line {table.swallowed[0]:,}): a quotation mark opens there and closes lines later, so they are lost; "
                'write "" for a quotation mark inside a quoted text.'
            )
    return notes


def _counted(labels: Iterable[str], counts: Mapping[str, int]) -> list[str]:
    return [f"'{visible_form(label)}' ({counts[label]:,})" for label in labels]


def visible_form(label: str) -> str:
    """A label with what cannot be seen written as its code, cut to 60 characters."""
    shown = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in label
    )
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _listed(items: Sequence[str], separator: str) -> str:
    more = f"{separator}and {len(items) - _MOST_SHOWN:,} more" if len(items) > _MOST_SHOWN else ""
    return separator.join(items[:_MOST_SHOWN]) + more
