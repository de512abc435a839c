"""Early exits of a finished run: a threshold chosen on validation rows, judged and timed on reported ones, and kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from recurra.core.environment import environment_record
from recurra.core.exits_record import EXITS_NAME, ExitsRecord, TimedEarlyExit
from recurra.core.record import read_any_record
from recurra.evaluation.latency import measure_side_by_side, synchroniser
from recurra.models.exits.rules import ConfidenceRule, ExitRule, FixedExit
from recurra.models.exits.thresholds import CalibratedExits
from recurra.models.inference import default_device, torch_threads
from recurra.tasks.base import Given, allowed_options, task
from recurra.tasks.exits import EXITS, FULL, ExitSubject, MeasuredExit
from recurra.tasks.run_folder import accelerator_name

PUBLISHED = ConfidenceRule(start=0.92, decay=0.98, floor=0.80)


@dataclass(frozen=True)
class ExitChoice:
    """A calibrated threshold, its quality on the reported split and its times.

    Attributes:
        asked: The quality to keep, in words.
        measured: The rule on the reported split; None if there is no rule.
        published: The published schedule of "CRT-Deep", measured.
        fixed: Every exit by itself, if requested.
    """

    subject: ExitSubject
    asked: str
    chosen: CalibratedExits
    measured: MeasuredExit | None
    published: MeasuredExit
    fixed: list[MeasuredExit]
    threads: int

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        measured = {"judged": None, "timed": []} if self.measured is None else self.measured.plain()
        return {
            "run_id": self.subject.run_id,
            "asked": self.asked,
            "chosen_on": self.subject.chosen_on,
            "chosen": self.chosen.plain(),
            "judged": measured["judged"],
            "timed": measured["timed"],
            "fixed": [fixed_exit.plain() for fixed_exit in (*self.fixed, self.published)],
        }


# Batch sizes at which exits are timed.
_TIMED_BATCHES = (1, 32)


def choose_exits(
    run: Path,
    *,
    keep: Given,
    kind: str,
    threads: int,
    data_root: Path | None,
    each: bool,
) -> ExitChoice:
    """Chooses the threshold of a rule for a finished run, judges it and times it.

    Args:
        keep: How much of the quality must stay, by the option of its task: ``--bound``, the share by which a language
            model's loss may grow, or ``--agreement``, the share of rows that keep the full model's label.
        each: Also judge and time every exit by itself.

    Raises:
        CheckpointError: If the run is not finished or damaged.
        ConfigurationError: If it has no exits, or an option is not one of its task.
        DataError: If its data are no longer available.
    """
    run_task = task(read_any_record(run).task)
    option_name = run_task.exit_option.removeprefix("--")
    given_options = allowed_options(keep, [option_name], f"for '{run}' it is '{run_task.exit_option}'")
    share = float(given_options.get(option_name, run_task.exit_default))
    with torch_threads(threads):
        subject = run_task.exit_subject(run, data_root)
        chosen = subject.choose(share, kind)

        def measure(rule: ExitRule, label: str = "") -> MeasuredExit:
            return replace(subject.judge(rule, label), timed=[_time(subject, rule, size) for size in _TIMED_BATCHES])

        return ExitChoice(
            subject=subject,
            asked=run_task.exit_quality.format(100 * share),
            chosen=chosen,
            measured=None if chosen.rule is None else measure(chosen.rule),
            # These rules were not calibrated: every exit by itself, and the published schedule.
            fixed=[measure(FixedExit(number), f"after loop {number}") for number in subject.model.config.exits if each],
            published=measure(PUBLISHED, f"published schedule: {PUBLISHED.describe()}"),
            threads=torch.get_num_threads(),
        )


def _time(subject: ExitSubject, rule: ExitRule, batch_size: int) -> TimedEarlyExit:
    records = measure_side_by_side(
        subject.calls(rule),
        subject.batches(batch_size),
        warmup=2,
        synchronise=synchroniser(str(default_device())),
        threads=torch.get_num_threads(),
    )
    return TimedEarlyExit(batch_size=batch_size, full_ms=records[FULL].mean_ms, exits_ms=records[EXITS].mean_ms)


def keep_exits(run: Path, choice: ExitChoice) -> None:
    """Writes ``exits.json`` into a run's folder, with every exit by itself; replaces an earlier file."""
    published = choice.published
    ExitsRecord(
        run_id=choice.subject.run_id,
        num_recurrences=int(choice.subject.model.config.num_recurrences),
        split=published.split,
        chosen_on=choice.subject.chosen_on,
        asked=choice.asked,
        full_loss=published.full if published.agreement is None else None,
        full_accuracy=None if published.agreement is None else published.full,
        fixed=[measured.record() for measured in (*choice.fixed, choice.published)],
        chosen=None if choice.measured is None else choice.measured.record(),
        environment=environment_record(threads=choice.threads, precision="fp32", accelerator=accelerator_name()),
    ).write(run / EXITS_NAME)
