"""The record of a language model's run: what is not as in a classifier's."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from recurra.core.record_parts import AnyTrainingRecord, Part, RunRecordBase

FINAL_HEAD = "final"
# The audit's results on batch norms as they are in training: the evaluated figures do not leak for that.
IN_TRAINING = "causality.training."


def is_of_causality(audit: str) -> bool:
    """Whether an audit of this name says that evaluated figures leak, if it fails."""
    return audit.startswith("causality.") and not audit.startswith(IN_TRAINING)


class LanguageSplitRecord(Part):
    """One split as it was used: all of it, or in mode ``lines`` its long lines.

    ``words`` count one end-of-line a line, ``bytes`` are UTF-8 with one for each end of line, ``tokens`` include
    end-of-text; ``samples`` are those of training, none for other splits, which are evaluated whole.
    """

    fingerprint: str
    texts: int
    words: int
    bytes: int
    tokens: int
    samples: int | None = None


class LanguageDataRecord(Part):
    """What it ran on. ``selection_split`` chose the checkpoint; ``reported_splits`` are evaluated.

    Attributes:
        fingerprint: Of the corpus as it was read, all splits.
        tokenizer: What the tokenizer is; ``lossless`` says whether figures by word and byte mean anything.
    """

    name: str
    unit: str
    mode: Literal["packed", "lines"]
    context: int
    fingerprint: str
    selection_split: str
    reported_splits: list[str]
    splits: dict[str, LanguageSplitRecord]
    notes: list[str] = Field(default_factory=list)
    tokenizer: dict[str, Any] = Field(default_factory=dict)

    @property
    def protocol(self) -> str:
        """How the text becomes samples, in a word."""
        return f"{self.mode}-{self.context}"


class LanguageEpochRecord(Part):
    """One epoch. ``wall_s`` is the epoch's own.

    Attributes:
        train_loss: Mean of the objective over the epoch's steps, nats a token: the weighed mean of all heads, in
            training mode.
        validation_loss: The objective on the selection split, in evaluation mode.
        validation_heads: Nats a token there by head, ``exit-2`` and so on and ``final``.
    """

    epoch: int
    train_loss: float
    validation_loss: float
    validation_heads: dict[str, float]
    learning_rate: float
    wall_s: float


class LanguageTrainingRecord(AnyTrainingRecord):
    """How a language model's training went, epoch by epoch."""

    history: list[LanguageEpochRecord] = Field(default_factory=list)


class HeadRecord(Part):
    """How well one head predicts a split.

    Attributes:
        loss: Nats a token.
        token_perplexity: ``exp(loss)``; comparable for one tokenizer only. None where it is beyond all numbers.
        word_perplexity: By words of the text, the unit of published WikiText figures; None also if the tokenizer loses
            part of a text.
        bits_per_byte: None if the tokenizer loses part of a text.
    """

    loss: float
    token_perplexity: float | None
    word_perplexity: float | None
    bits_per_byte: float | None


class LanguageMetricsRecord(Part):
    """Quality on one split, every token scored once.

    Attributes:
        tokens: Tokens, end-of-text included.
        words: Words, one end-of-line a line included.
        bytes: Bytes in UTF-8.
        context: Tokens that are read at once.
        stride: Tokens from one window to the next; equal to ``context`` for blocks that do not overlap.
        heads: By head: ``exit-N`` after recurrence N, and ``final``.
    """

    tokens: int
    words: int
    bytes: int
    context: int
    stride: int
    heads: dict[str, HeadRecord]

    @property
    def final(self) -> HeadRecord:
        """The last head."""
        return self.heads[FINAL_HEAD]


class LanguageRunRecord(RunRecordBase):
    """Everything about one run of a language model. See the parts; it came with schema 3."""

    schema_version: Literal[3, 4] = 4
    task: Literal["language modelling"] = "language modelling"
    data: LanguageDataRecord
    training: LanguageTrainingRecord
    metrics: dict[str, LanguageMetricsRecord]

    @property
    def leaks(self) -> bool:
        """Whether the causality audit failed: its predictions read what they are to predict."""
        return any(is_of_causality(audit.name) for audit in self.failed_audits())

    @property
    def label(self) -> str:
        """The model's name for tables; that of a leaking model says so."""
        name = self.model.preset
        return f"{name} (leaks)" if self.leaks and "leaks" not in name else name
