"""What ``recurra study plan`` and ``status`` print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from recurra.cli.output import print_json, print_lines, print_table
from recurra.core.terminal import one_line

if TYPE_CHECKING:
    from recurra.study.export_plan import PlannedExport
    from recurra.study.plan import PlannedRun
    from recurra.study.planning import CostedPlan
    from recurra.study.status import StudyStatus

EXIT_USAGE = 2
# A longer plan is shown by groups of runs that differ in the seed alone.
MOST_LINES = 100


def present_plan(plan: CostedPlan, *, as_json: bool) -> None:
    """Prints a plan and what it costs.

    Raises:
        typer.Exit: 2 if a record cannot be trusted.
    """
    from recurra.core.formatting import amount, duration

    if as_json:
        print_json(plan.plain())
        return _refuse(plan.runs)
    groups = [[run] for run in plan.runs] if len(plan.runs) <= MOST_LINES else plan.groups()
    rows = []
    for group in groups:
        first = group[0]
        name = (
            first.config.run_id if len(group) == 1 else f"{first.config.run_id.rsplit('-s', 1)[0]}, {len(group)} seeds"
        )
        flops = seconds = None
        if plan.cost is not None:
            flops, seconds = plan.cost.flops(group), plan.cost.seconds(group)
        rows.append(
            [
                name,
                _counted(group),
                amount(flops) if flops else "–",
                duration(seconds) if seconds else "–",
                next((run.reason for run in group if run.reason), ""),
            ]
        )
    done = sum(run.state == "done" for run in plan.runs)
    headings = ["Run", "State", "Training FLOPs", "Time", "Reason"]
    title = f"{plan.name}: {len(plan.runs)} runs, {done} done"
    print_table(title, headings, rows, left=("State", "Reason"))
    if plan.cost is None:
        print_lines([plan.note] if plan.note else [])
    else:
        left = duration(plan.remaining_s) if plan.remaining_s is not None else "not known"
        print_lines(
            [
                f"to do: {len(plan.pending)} runs, at most {amount(plan.cost.flops(plan.pending))} training FLOPs; "
                f"time with {plan.workers} at once: {left}",
                *(f"time of {line}" for line in plan.cost.basis),
            ]
        )
    _print_exports(plan.exports)
    return _refuse(plan.runs)


def present_status(status: StudyStatus, *, as_json: bool) -> None:
    """Prints how far a study is.

    Raises:
        typer.Exit: 2 if a record cannot be trusted.
    """
    from recurra.core.formatting import duration

    if as_json:
        print_json(status.plain())
        return _refuse(status.runs)
    rows = [[run.config.run_id, run.state, _progress(run), run.reason or ""] for run in status.runs]
    counts = ", ".join(f"{number} {state}" for state, number in status.counts.items())
    headings = ["Run", "State", "Progress", "Reason"]
    print_table(f"{status.spec.name}: {counts}", headings, rows, left=headings[1:])
    if status.remaining_s:
        print_lines([f"all done in about {duration(status.remaining_s)}, as things go"])
    elif status.remaining_s is None:
        print_lines(["nothing runs, or nothing has run for long enough to say when all will be done"])
    _print_exports(status.exports)
    return _refuse(status.runs)


def _print_exports(exports: Sequence[PlannedExport]) -> None:
    from recurra.study.export_plan import describe_exports

    failed = [f"failed: {export.key}: {export.reason}" for export in exports if export.state == "failed"]
    print_lines([*filter(None, [describe_exports(exports)]), *failed])


def _counted(runs: Sequence[PlannedRun]) -> str:
    states = [run.state for run in runs]
    if len(runs) == 1:
        return states[0]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _progress(run: PlannedRun) -> str:
    from recurra.core.formatting import duration

    progress = run.progress
    if progress is None:
        return ""
    parts = [progress.stage]
    if progress.steps:
        parts.append(f"epoch {progress.epoch} of {progress.epochs}, step {progress.step:,} of {progress.steps:,}")
    if run.state == "running":
        parts.append(f"for {duration(progress.elapsed_s)}")
    return ", ".join(parts)


def _refuse(runs: Sequence[PlannedRun]) -> None:
    refused = [run for run in runs if run.state == "refused"]
    for run in refused:
        sys.stderr.write(one_line(f"error: {run.reason}") + "\n")
    if refused:
        raise typer.Exit(EXIT_USAGE)
