"""Running text in memory: splits with fingerprints, counted in the units of published figures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from recurra.core.configuration import content_hash


@dataclass(frozen=True, eq=False)
class RunningText:
    """The texts of one split, in order.

    Attributes:
        name: For example ``train``.
        texts: Each ends with an end of line that is not written out; a text may hold more, as line feeds. In a
            corpus of lines a text is one line, and an empty one is an empty line.
    """

    name: str
    texts: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (16 hexadecimal digits) over the texts in their order."""
        digest = hashlib.sha256()
        for text in self.texts:
            encoded = text.encode("utf-8", "surrogatepass")
            # The length in front keeps ("ab", "c") and ("a", "bc") apart.
            digest.update(b"%d:" % len(encoded))
            digest.update(encoded)
        return digest.hexdigest()[:16]

    @cached_property
    def words(self) -> int:
        """Words, separated by white space, and one end-of-line a line, empty lines included (WikiText's count)."""
        return sum(len(text.split()) for text in self.texts) + self.num_lines

    @cached_property
    def num_lines(self) -> int:
        """Lines, empty ones included."""
        return len(self.texts) + sum(text.count("\n") for text in self.texts)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes in UTF-8, one for each end of line."""
        return sum(len(text.encode("utf-8", "surrogatepass")) + 1 for text in self.texts)

    def lines(self) -> Iterator[str]:
        """Yields the lines without the white space around them."""
        for text in self.texts:
            for line in text.split("\n"):
                yield line.strip()

    def long_lines(self, min_characters: int, limit: int | None = None) -> RunningText:
        """Returns the lines of more than ``min_characters`` characters, the first ``limit`` of them."""
        kept: list[str] = []
        for line in self.lines():
            if len(kept) == limit:
                break
            if len(line) > min_characters:
                kept.append(line)
        return RunningText(self.name, kept)


@dataclass(frozen=True, eq=False)
class LanguageDataset:
    """A text corpus.

    Attributes:
        name: Corpus name or the user's file name.
        unit: What one text is: ``line`` or ``novel``.
        splits: Splits by name.
        notes: Sentences that a reader of the results must know.
    """

    name: str
    unit: str
    splits: dict[str, RunningText]
    notes: list[str] = field(default_factory=list)

    @cached_property
    def fingerprint(self) -> str:
        """Hash over the names and fingerprints of all splits."""
        return content_hash({name: split.fingerprint for name, split in self.splits.items()})

    def record(self, min_characters: int = 50) -> dict[str, Any]:
        """Describes the corpus in plain JSON values.

        Args:
            min_characters: What counts as a long line.

        Returns:
            ``name``, ``unit``, ``fingerprint``, ``notes``, and for each of ``splits`` its ``fingerprint``, ``texts``,
            ``lines``, ``long_lines``, ``words``, ``bytes`` and ``seen_lines``: long lines that stand in train as well,
            None for train itself and without it.
        """
        long_lines = {name: split.long_lines(min_characters).texts for name, split in self.splits.items()}
        train = set(long_lines.get("train", ()))
        return {
            "name": self.name,
            "unit": self.unit,
            "fingerprint": self.fingerprint,
            "splits": {
                name: {
                    "fingerprint": split.fingerprint,
                    "texts": len(split),
                    "lines": split.num_lines,
                    "long_lines": len(long_lines[name]),
                    "words": split.words,
                    "bytes": split.num_bytes,
                    "seen_lines": None
                    if name == "train" or not train
                    else sum(line in train for line in long_lines[name]),
                }
                for name, split in self.splits.items()
            },
            "notes": self.notes,
        }
