"""``recurra study``: plan, run, look at and report a study file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import present_study, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Run every combination of data, models, protocols and seeds in a file.")

File = Annotated[Path, typer.Argument(help="Study file (YAML).", show_default=False)]
StudyOutput = Annotated[Path | None, typer.Option("--output", "-o", help="Folder; default runs/NAME.")]


@app.command("plan")
def plan(file: File, output: StudyOutput = None, as_json: options.Json = False) -> None:
    """Show the runs of a study: done, failed, to do. Example: recurra study plan configs/studies/sst2.yaml."""
    from recurra.study.spec import load_study
    from recurra.study.study import plan_study

    spec = load_study(file)
    runs = plan_study(spec, output or Path("runs") / spec.name)
    rows = [
        {
            "run_id": run.config.run_id,
            "done": run.record is not None,
            "state": run.state,
            "reason": run.reason,
            "folder": str(run.folder),
        }
        for run in runs
    ]
    if as_json:
        print_json({"name": spec.name, "runs": rows})
        return
    done = sum(run.record is not None for run in runs)
    table = [[run.config.run_id, run.state, run.reason or ""] for run in runs]
    headings = ["Run", "State", "Reason"]
    print_table(f"{spec.name}: {len(runs)} runs, {done} done", headings, table, left=("State", "Reason"))


app.command(
    "status", help="The same as 'recurra study plan'. Example: recurra study status configs/studies/sst2.yaml."
)(plan)


@app.command("run")
def run(
    file: File,
    assignments: options.Overrides = None,
    output: StudyOutput = None,
    data_root: options.DataRoot = None,
    workers: options.Workers = 0,
    threads: options.Threads = 0,
    latency: Annotated[bool, typer.Option(help="Time all models side by side at the end.")] = True,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run what a study lacks, then write its report; killed and started again, it goes on where it stopped.

    Example: recurra study run configs/studies/sst2.yaml
    """
    from recurra.core.progress import Reporter
    from recurra.study.machine import Machine
    from recurra.study.spec import load_study
    from recurra.study.study import run_study

    spec = load_study(file, assignments or [])
    machine = Machine(data_root=data_root, threads=threads, latency=latency)
    command = shlex.join(["recurra", *sys.argv[1:]])
    result = run_study(
        spec,
        output or Path("runs") / spec.name,
        machine,
        workers=workers,
        reporter=Reporter(quiet=quiet),
        command=command,
    )
    present_study(result, as_json=as_json)


@app.command("report")
def report(
    file: File, output: StudyOutput = None, assignments: options.Overrides = None, as_json: options.Json = False
) -> None:
    """Write the report of what is done and run nothing. Example: recurra study report configs/studies/sst2.yaml."""
    from recurra.study.spec import load_study
    from recurra.study.study import report_study

    spec = load_study(file, assignments or [])
    command = shlex.join(["recurra", *sys.argv[1:]])
    present_study(report_study(spec, output or Path("runs") / spec.name, command=command), as_json=as_json)
