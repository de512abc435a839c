"""Choosing an exit rule's threshold for a run on its validation rows, and judging it on its reported ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from recurra.core.errors import ConfigurationError
from recurra.core.exits_record import TimedLeaving
from recurra.evaluation.latency import measure_side_by_side, synchroniser
from recurra.models.exit_rules import CONFIDENCE, ExitRule, FixedExit
from recurra.models.exit_thresholds import CalibratedExits
from recurra.models.inference import default_device, torch_threads
from recurra.study.language_evaluate import is_language_run

FULL, EXITS = "full", "exits"
BATCH_SIZES = (1, 32)


@dataclass(frozen=True)
class Judged:
    """What a rule does on rows that did not choose it.

    Attributes:
        split: Those rows.
        full: Quality without the rule: nats a token, or accuracy.
        exits: Quality with it.
        agreement: Share of rows whose label is the full model's; none for language models.
        taken: Rows or tokens by the recurrences that they took.
    """

    split: str
    full: float
    exits: float
    agreement: float | None
    taken: dict[int, int]


@dataclass(frozen=True)
class Leaving:
    """One way of leaving, judged and timed."""

    label: str
    judged: Judged
    timed: list[TimedLeaving]


@dataclass(frozen=True)
class ExitChoice:
    """A threshold, what chose it, what it does elsewhere and what it saves.

    Attributes:
        run_id: The run.
        asked: What it was to keep, in words.
        chosen_on: The split that chose it.
        chosen: The rule, and what it does there.
        judged: What it does on the reported split; none if there is no rule.
        timed: By batch size; empty if there is no rule.
        fixed: Every exit by itself, if that was asked for.
        threads: Of the numeric library.
        num_recurrences: Of the model.
    """

    run_id: str
    asked: str
    chosen_on: str
    chosen: CalibratedExits
    judged: Judged | None
    timed: list[TimedLeaving]
    fixed: list[Leaving] = field(default_factory=list)
    threads: int = 1
    num_recurrences: int = 1

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "run_id": self.run_id,
            "asked": self.asked,
            "chosen_on": self.chosen_on,
            "chosen": self.chosen.plain(),
            "judged": None if self.judged is None else _plain_judged(self.judged),
            "timed": _plain_timed(self.timed),
            "fixed": [
                {"label": each.label, "judged": _plain_judged(each.judged), "timed": _plain_timed(each.timed)}
                for each in self.fixed
            ],
        }


def _plain_judged(judged: Judged) -> dict[str, Any]:
    return {**vars(judged), "taken": {str(number): count for number, count in sorted(judged.taken.items())}}


def _plain_timed(timed: Sequence[TimedLeaving]) -> list[dict[str, Any]]:
    return [{**each.plain(), "speed_up": each.speed_up} for each in timed]


class Subject(Protocol):
    """A run whose rule is chosen."""

    run_id: str
    chosen_on: str
    model: Any

    def choose(self, keep: float, kind: str) -> CalibratedExits:
        """Chooses on the validation rows."""
        ...

    def judge(self, rule: ExitRule) -> Judged:
        """Judges on the reported rows."""
        ...

    def calls(self, rule: ExitRule) -> Mapping[str, Any]:
        """What is timed, by name."""
        ...

    def batches(self, batch_size: int) -> Sequence[Any]:
        """What it is timed on."""
        ...


def choose_exits(
    run: Path,
    *,
    bound: float | None = None,
    agreement: float | None = None,
    kind: str = CONFIDENCE,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    threads: int = 0,
    data_root: Path | None = None,
    each: bool = False,
) -> ExitChoice:
    """Chooses the threshold of a rule for a finished run, judges it and times it.

    Args:
        run: A run of a Transformer with exits: a classifier or a language model.
        bound: Of a language model: the share by which its loss may grow; none means 0.01.
        agreement: Of a classifier: the share of rows that keep the full model's label; none means 0.99.
        kind: ``confidence`` or ``entropy``.
        batch_sizes: Rows a batch to time.
        threads: Of the numeric library; 0 takes all cores.
        data_root: Local copies of public data.
        each: Also judge and time every exit by itself.

    Raises:
        CheckpointError: If the run is not finished or damaged.
        ConfigurationError: If it has no exits, or something is asked for that is not its own.
        DataError: If its data cannot be had any more.
    """
    with torch_threads(threads):
        if is_language_run(run):
            if agreement is not None:
                raise ConfigurationError("an agreement is for classifiers; of a language model give the loss bound")
            from recurra.study.language_exits import LanguageSubject

            keep = 0.01 if bound is None else bound
            subject: Subject = LanguageSubject(run, data_root)
            asked = f"loss at most {100 * keep:g} % above the full model's"
        else:
            if bound is not None:
                raise ConfigurationError("a loss bound is for language models; of a classifier give the agreement")
            from recurra.study.classifier_exits import ClassifierSubject

            keep = 0.99 if agreement is None else agreement
            subject = ClassifierSubject(run, data_root)
            asked = f"at least {100 * keep:g} % of labels as the full model has them"
        chosen = subject.choose(keep, kind)
        judged = None if chosen.rule is None else subject.judge(chosen.rule)
        timed = [] if chosen.rule is None else [_time(subject, chosen.rule, size) for size in batch_sizes]
        fixed = []
        for number in subject.model.config.exits if each else ():
            rule = FixedExit(number)
            times = [_time(subject, rule, size) for size in batch_sizes]
            fixed.append(Leaving(f"after loop {number}", subject.judge(rule), times))
        return ExitChoice(
            run_id=subject.run_id,
            asked=asked,
            chosen_on=subject.chosen_on,
            chosen=chosen,
            judged=judged,
            timed=timed,
            fixed=fixed,
            threads=torch.get_num_threads(),
            num_recurrences=int(subject.model.config.num_recurrences),
        )


def _time(subject: Subject, rule: ExitRule, batch_size: int) -> TimedLeaving:
    records = measure_side_by_side(
        subject.calls(rule),
        subject.batches(batch_size),
        warmup=2,
        synchronise=synchroniser(str(default_device())),
        threads=torch.get_num_threads(),
    )
    return TimedLeaving(batch_size=batch_size, full_ms=records[FULL].mean_ms, exits_ms=records[EXITS].mean_ms)
