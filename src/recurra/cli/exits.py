"""``recurra exits``: chooses when a run's model may stop early, and says what that costs and saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from recurra.cli import options
from recurra.cli.output import present
from recurra.models.exits.rules import threshold_rule_names

if TYPE_CHECKING:
    from recurra.study.exits import ExitChoice
    from recurra.tasks.tables import Table


def exits(
    run: options.Run,
    bound: Annotated[
        float | None, typer.Option("--bound", help="Language model: share by which the loss may grow. Default: 0.01.")
    ] = None,
    agreement: Annotated[
        float | None,
        typer.Option("--agreement", help="Classifier: share of rows that keep the full model's label. Default: 0.99."),
    ] = None,
    rule: Annotated[str, typer.Option("--exit-rule", help=f"{' or '.join(threshold_rule_names())}.")] = "confidence",
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Measure every exit by itself too, and write all to RUN/exits.json for the study's report.",
        ),
    ] = False,
    threads: options.Threads = 0,
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
) -> None:
    """Choose the threshold of an exit rule on a run's validation rows; test and time it on the reported rows.

    Example: recurra exits runs/wikitext --bound 0.01
    """
    from recurra.core.environment import tune_allocator
    from recurra.core.exits_record import EXITS_NAME
    from recurra.models.quiet import quieten_libraries
    from recurra.study.exits import choose_exits
    from recurra.tasks.tables import CommandResult

    run = options.one_run(run)
    quieten_libraries()
    tune_allocator()
    choice = choose_exits(
        run,
        keep={"bound": bound, "agreement": agreement},
        kind=rule,
        threads=threads,
        data_root=data_root,
        fixed_exits=keep,
    )
    if keep:
        choice.record.write(run / EXITS_NAME)
    present(CommandResult(choice.plain(), _parts(choice)), as_json=as_json)


def _parts(choice: ExitChoice) -> list[Table | list[str]]:
    from recurra.tasks.tables import Table

    subject, record, judged = choice.subject, choice.record, choice.record.chosen
    if judged is None:
        no_threshold = f"{record.run_id}: no threshold keeps {record.asked} on {record.chosen_on}: do not stop early"
        return [[no_threshold], _fixed_exits(choice)]
    rule = f"{record.run_id}: {judged.label}, chosen on {record.chosen_on} for {record.asked}"
    total = sum(judged.taken.values())
    shares = [
        {"Recurrences taken": str(number), subject.unit: f"{count:,}", "Share": f"{100 * count / total:.1f} %"}
        for number, count in judged.taken.items()
    ]
    lines = [f"{subject.quality}: {subject.full:.4f} in full, {judged.score:.4f} with exits"]
    if judged.agreement is not None:
        lines[0] += f"; {100 * judged.agreement:.2f} % of labels agree"
    taken = [number for number, count in judged.taken.items() if count]
    if len(taken) == 1:
        lines.append(f"all stop after recurrence {taken[0]}: --recurrences {taken[0]} does the same without a rule")
    rows = [
        {
            "Batch": str(timed.batch_size),
            "In full": f"{timed.full_ms:.3f}",
            "With exits": f"{timed.exits_ms:.3f}",
            "Speed-up": f"{timed.speed_up:.2f} x",
        }
        for timed in judged.timed
    ]
    timed_table = Table("timed", f"Wall-clock, ms for {subject.timed}", rows)
    return [[rule], Table("shares", f"On {record.split}", shares), lines, timed_table, _fixed_exits(choice)]


def _fixed_exits(choice: ExitChoice) -> Table:
    from recurra.tasks.tables import Table

    fixed, quality = choice.record.fixed, choice.subject.quality.capitalize()
    rows = [
        {"Leaves": measured.label, quality: f"{measured.score:.4f}"}
        | {f"Batch {timed.batch_size}": f"{timed.speed_up:.2f} x" for timed in measured.timed}
        for measured in fixed
    ]
    full = dict.fromkeys(rows[0], "1.00 x") | {"Leaves": "nowhere", quality: f"{choice.subject.full:.4f}"}
    title = "Every exit by itself, and the published schedule" if len(fixed) > 1 else "The published schedule"
    return Table("fixed", title, [*rows, full])
