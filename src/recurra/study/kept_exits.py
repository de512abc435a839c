"""Keeping what `recurra exits` measured beside the record of a language model's run."""

from __future__ import annotations

from pathlib import Path

import torch

from recurra.core.environment import environment_record
from recurra.core.exits_record import EXITS_NAME, ExitsRecord, LeavingRecord
from recurra.study.exit_choice import ExitChoice, Leaving
from recurra.study.run_folder import accelerator_name


def keep_exits(run: Path, choice: ExitChoice) -> ExitsRecord:
    """Writes ``exits.json`` into a run's folder; what stood there before is replaced.

    Args:
        run: The run folder.
        choice: Measured with every exit by itself (`recurra.study.exit_choice.choose_exits`, ``each``).

    Raises:
        StorageError: If it cannot be written.
        ValueError: If the exits were not measured by themselves.
    """
    if not choice.fixed:
        raise ValueError("the exits were not measured one by one")
    first = choice.fixed[0].judged
    rule = choice.chosen.rule
    chosen = None
    if choice.judged is not None and rule is not None:
        chosen = _record(Leaving(rule.describe(), choice.judged, choice.timed))
    return ExitsRecord(
        run_id=choice.run_id,
        num_recurrences=choice.num_recurrences,
        split=first.split,
        chosen_on=choice.chosen_on,
        asked=choice.asked,
        full_loss=first.full,
        fixed=[_record(leaving) for leaving in choice.fixed],
        chosen=chosen,
        environment=environment_record(
            threads=choice.threads,
            precision="fp32",
            accelerator=accelerator_name() if torch.cuda.is_available() else None,
        ),
    ).write(run / EXITS_NAME)


def _record(leaving: Leaving) -> LeavingRecord:
    judged = leaving.judged
    return LeavingRecord(
        label=leaving.label,
        loss=judged.exits,
        taken=dict(sorted(judged.taken.items())),
        timed=leaving.timed,
    )
