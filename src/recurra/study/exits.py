"""Early exits of a finished run: a threshold chosen on validation rows, judged and timed on reported ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recurra.core.environment import environment_record
from recurra.core.exits_record import EarlyExitRecord, ExitsRecord, TimedEarlyExit
from recurra.core.record import read_any_record
from recurra.evaluation.latency import measure_side_by_side, synchroniser
from recurra.models.exits.rules import ConfidenceRule, ExitRule, FixedExit
from recurra.models.exits.thresholds import CalibratedExits
from recurra.models.inference import default_device, torch_threads
from recurra.tasks.base import Given, allowed_options, task
from recurra.tasks.exits import EXITS, FULL, ExitSubject
from recurra.tasks.run_folder import accelerator_name

PUBLISHED = ConfidenceRule(start=0.92, decay=0.98, floor=0.80)
# Batch sizes at which exits are timed.
_TIMED_BATCHES = (1, 32)


@dataclass(frozen=True)
class ExitChoice:
    """An exit rule that was chosen for a run, and the measurements of this rule and others on the reported split."""

    subject: ExitSubject
    chosen: CalibratedExits
    record: ExitsRecord

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        measured = {"judged": None, "timed": []} if self.record.chosen is None else self._plain(self.record.chosen)
        return {
            "run_id": self.record.run_id,
            "asked": self.record.asked,
            "chosen_on": self.record.chosen_on,
            "chosen": self.chosen.plain(),
            "judged": measured["judged"],
            "timed": measured["timed"],
            "fixed": [self._plain(fixed_exit) for fixed_exit in self.record.fixed],
        }

    def _plain(self, measured: EarlyExitRecord) -> dict[str, Any]:
        scores = {"full": self.subject.full, "exits": measured.score, "agreement": measured.agreement}
        return {
            "label": measured.label,
            "judged": {
                "split": self.record.split,
                **scores,
                "taken": {str(number): count for number, count in measured.taken.items()},
            },
            "timed": [{**timed.plain(), "speed_up": timed.speed_up} for timed in measured.timed],
        }


def choose_exits(
    run: Path,
    *,
    keep: Given,
    kind: str,
    threads: int,
    data_root: Path | None,
    fixed_exits: bool,
) -> ExitChoice:
    """Chooses the threshold of a rule for a finished run, judges it and times it.

    Args:
        keep: How much of the quality must stay, by the option of its task: ``--bound``, the share by which a language
            model's loss may grow, or ``--agreement``, the share of rows that keep the full model's label.
        fixed_exits: Also judge and time every exit by itself.

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
        chosen, threads = subject.choose(share, kind), torch.get_num_threads()

        def measure(rule: ExitRule, label: str = "") -> EarlyExitRecord:
            timed = [_time(subject, rule, size) for size in _TIMED_BATCHES]
            return subject.judge(rule, label).model_copy(update={"timed": timed})

        # These rules were not calibrated: every exit by itself, and the published schedule of "CRT-Deep".
        exits = subject.model.config.exits if fixed_exits else ()
        fixed = [measure(FixedExit(number), f"after loop {number}") for number in exits]
        published = measure(PUBLISHED, f"published schedule: {PUBLISHED.describe()}")
        record = ExitsRecord(
            run_id=subject.run_id,
            num_recurrences=int(subject.model.config.num_recurrences),
            split=subject.split,
            chosen_on=subject.chosen_on,
            asked=run_task.exit_quality.format(100 * share),
            full_loss=None if published.loss is None else subject.full,
            full_accuracy=subject.full if published.loss is None else None,
            fixed=[*fixed, published],
            chosen=None if chosen.rule is None else measure(chosen.rule),
            environment=environment_record(threads=threads, precision="fp32", accelerator=accelerator_name()),
        )
    return ExitChoice(subject, chosen, record)


def _time(subject: ExitSubject, rule: ExitRule, batch_size: int) -> TimedEarlyExit:
    records = measure_side_by_side(
        subject.calls(rule),
        subject.batches(batch_size),
        warmup=2,
        synchronise=synchroniser(str(default_device())),
        threads=torch.get_num_threads(),
    )
    return TimedEarlyExit(batch_size=batch_size, full_ms=records[FULL].mean_ms, exits_ms=records[EXITS].mean_ms)
