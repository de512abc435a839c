"""Early exits of a finished run: a threshold chosen on validation rows, judged and timed on reported ones, and kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recurra.core.environment import environment_record
from recurra.core.exits_record import EXITS_NAME, EarlyExitRecord, ExitsRecord, TimedEarlyExit
from recurra.core.record import read_any_record
from recurra.evaluation.latency import measure_side_by_side, synchroniser
from recurra.models.exits.rules import ConfidenceRule, ExitRule, FixedExit
from recurra.models.exits.thresholds import CalibratedExits
from recurra.models.inference import default_device, torch_threads
from recurra.tasks.base import Given, allowed_options, task
from recurra.tasks.exits import EXITS, FULL, ExitSubject
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
        full: Quality of the full model on the reported split.
    """

    subject: ExitSubject
    asked: str
    chosen: CalibratedExits
    measured: EarlyExitRecord | None
    published: EarlyExitRecord
    fixed: list[EarlyExitRecord]
    full: float
    threads: int

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        measured = {"judged": None, "timed": []} if self.measured is None else self._plain(self.measured)
        return {
            "run_id": self.subject.run_id,
            "asked": self.asked,
            "chosen_on": self.subject.chosen_on,
            "chosen": self.chosen.plain(),
            "judged": measured["judged"],
            "timed": measured["timed"],
            "fixed": [self._plain(fixed_exit) for fixed_exit in (*self.fixed, self.published)],
        }

    def _plain(self, measured: EarlyExitRecord) -> dict[str, Any]:
        scores = {"full": self.full, "exits": measured.score, "agreement": measured.agreement}
        return {
            "label": measured.label,
            "judged": {
                "split": self.subject.split,
                **scores,
                "taken": {str(number): count for number, count in measured.taken.items()},
            },
            "timed": [{**timed.plain(), "speed_up": timed.speed_up} for timed in measured.timed],
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

        def measure(rule: ExitRule, label: str = "") -> EarlyExitRecord:
            timed = [_time(subject, rule, size) for size in _TIMED_BATCHES]
            return subject.judge(rule, label).model_copy(update={"timed": timed})

        return ExitChoice(
            subject=subject,
            asked=run_task.exit_quality.format(100 * share),
            chosen=chosen,
            measured=None if chosen.rule is None else measure(chosen.rule),
            # These rules were not calibrated: every exit by itself, and the published schedule.
            fixed=[measure(FixedExit(number), f"after loop {number}") for number in subject.model.config.exits if each],
            published=measure(PUBLISHED, f"published schedule: {PUBLISHED.describe()}"),
            full=subject.full,
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
    subject, has_loss = choice.subject, choice.published.loss is not None
    ExitsRecord(
        run_id=subject.run_id,
        num_recurrences=int(subject.model.config.num_recurrences),
        split=subject.split,
        chosen_on=subject.chosen_on,
        asked=choice.asked,
        full_loss=choice.full if has_loss else None,
        full_accuracy=None if has_loss else choice.full,
        fixed=[*choice.fixed, choice.published],
        chosen=choice.measured,
        environment=environment_record(threads=choice.threads, precision="fp32", accelerator=accelerator_name()),
    ).write(run / EXITS_NAME)
