"""What a report of language models knows, as plain frozen values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recurra.core.exits_record import ExitsRecord
from recurra.core.language_record import LanguageEpochRecord, LanguageRunRecord
from recurra.study.report.language_differences import LossDifference
from recurra.study.report.runs import FailedRun

TASK = "language modelling"


@dataclass(frozen=True)
class LanguageRun:
    """A finished run: the folder it lies in, its record, and what was kept of its exits."""

    folder: Path
    record: LanguageRunRecord
    exits: ExitsRecord | None = None


@dataclass(frozen=True)
class HeadSummary:
    """One head on one split over seeds: the mean loss, and the perplexities and bits that belong to it.

    Perplexities are means of their logarithms over seeds, as losses are; ``sd`` is the loss's, none with one seed.
    ``losses`` are those of each seed, in the order of the model's seeds.
    """

    loss: float
    losses: tuple[float, ...]
    sd: float | None
    token_perplexity: float | None
    word_perplexity: float | None
    bits_per_byte: float | None


@dataclass(frozen=True)
class LanguageModelSummary:
    """One model of a table.

    Attributes:
        label: Its name; that of a leaking one says so.
        leaks: Whether the causality audit failed for any seed.
        reach_tokens: How far ahead a prediction reads, at most.
        verdict: What the audits say, in a few words.
        feed_forward: What a cycle is made of; none of a model without cycles.
        as_trained: The final head on the selection split in the kept epoch, cut in blocks as in training: there the
            last position of a block predicts nothing, because its token lies outside. An honest model scores the same
            with it; one that reads ahead can read all that is counted, and not the token that is left out.
        scores: By split and head.
        history: Epochs of each seed.
        exits: What leaving early gave, of the seeds of which it was kept.
    """

    label: str
    leaks: bool
    reach_tokens: int | None
    verdict: str
    failed_audits: list[str]
    seeds: list[int]
    runs: list[dict[str, Any]]
    parameters: int
    non_embedding_parameters: int
    flops_per_token: float
    file_size_mib: float
    training_wall_s: float
    tokens_per_s: float
    steps: int
    feed_forward: str | None
    as_trained: HeadSummary
    scores: dict[str, dict[str, HeadSummary]]
    history: list[list[LanguageEpochRecord]]
    exits: list[ExitsRecord] = field(default_factory=list)


@dataclass(frozen=True)
class LanguageTable:
    """All models on one text, read in one way; ``differences`` are between those that do not leak."""

    key: str
    title: str
    data: str
    reading: str
    protocol: str
    precision: str
    headline_split: str
    splits: dict[str, dict[str, int]]
    notes: list[str]
    conclusion: str
    models: list[LanguageModelSummary]
    differences: list[LossDifference]
    audits: list[dict[str, str]]


@dataclass(frozen=True)
class LanguageSummary:
    """Everything that a report of language models shows."""

    tables: list[LanguageTable]
    failed_runs: list[FailedRun]
    task: str = TASK
    machines: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        values = asdict(self)
        for table, shown in zip(self.tables, values["tables"], strict=True):
            for model, of_model in zip(table.models, shown["models"], strict=True):
                of_model["history"] = [[epoch.model_dump(mode="json") for epoch in run] for run in model.history]
                of_model["exits"] = [exits.model_dump(mode="json") for exits in model.exits]
        return values
