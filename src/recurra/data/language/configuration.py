"""What text a language model is trained or judged on, and in which form it comes."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from recurra.data.configuration import RunData, percent

# What people call the corpora whose data sets have a version in their name.
ALIASES = {"wikitext-2": "wikitext-2-v1", "wikitext-103": "wikitext-103-v1"}
PACKED = "packed"
LINES = "lines"
MODES = {
    PACKED: "texts joined by end-of-text and cut in blocks of the context; no padding, the remainder is dropped",
    LINES: "a sample a line of more than min_characters, cut at the context and padded; padding is not counted",
}
MINIMUM_CONTEXT = 2
_LONGEST_CONTEXT = 1_048_576


class LanguageDataConfig(RunData):
    """Names a text corpus. Where local copies lie (``data_root``) is a machine's matter and is passed apart.

    Attributes:
        name: A corpus (``wikitext-2-v1``, or ``wikitext-2`` for short) or the path of a ``.txt`` file of the user.
        min_characters: ``lines`` takes lines of more characters than this, without the white space around them.
        max_lines: ``lines`` takes so many of them from train, the first ones; other splits stay whole.
        fraction: Share of the training texts, from the start, which keeps neighbours together.
        tokenizer: ``gpt2``, ``trained`` (byte-level BPE of the training split), or the path of a tokenizer folder.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({
        "mode", "context", "min_characters", "max_lines", "fraction", "validation", "test", "tokenizer",
        "trained_vocab_size"
    })  # fmt: skip

    name: str
    mode: Literal["packed", "lines"] = "packed"
    context: int = 1024
    min_characters: int = Field(default=50, ge=0)
    max_lines: int | None = Field(default=None, ge=1)
    fraction: float = Field(default=1.0, gt=0, le=1)
    validation: str | None = None
    test: str | None = None
    tokenizer: str = "gpt2"
    trained_vocab_size: int = Field(default=8192, ge=300, le=100_000)

    @field_validator("context")
    @classmethod
    def _predicts(cls, value: int) -> int:
        if not MINIMUM_CONTEXT <= value <= _LONGEST_CONTEXT:
            raise ValueError(
                f"allowed: {MINIMUM_CONTEXT} to {_LONGEST_CONTEXT:,} tokens; one token is read before one is predicted"
            )
        return value

    @field_validator("name")
    @classmethod
    def _whole_name(cls, value: str) -> str:
        return ALIASES.get(value, value)

    @property
    def reading(self) -> str:
        """How the text becomes samples, in a word for names of runs: mode and context."""
        return f"{self.mode}-{self.context}"

    @property
    def part(self) -> str:
        """What sets this part of the corpus apart, for names of runs; empty for the corpus as it is."""
        parts = []
        if self.max_lines is not None:
            parts.append(f"{self.max_lines}-lines")
        if self.fraction != 1:
            parts.append(f"train-{percent(self.fraction)}")
        return "-".join(parts)

    @model_validator(mode="after")
    def _lines_only(self) -> Self:
        if self.mode != LINES and self.max_lines is not None:
            raise ValueError(f"max_lines is for mode '{LINES}', and mode is '{self.mode}'; set mode={LINES}")
        return self
