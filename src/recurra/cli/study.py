"""``recurra study``: plan, run, look at and report a study file."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import present_study
from recurra.cli.study_output import present_plan, present_status

app = typer.Typer(no_args_is_help=True, help="Run every combination of data, models, protocols and seeds in a file.")

File = Annotated[Path, typer.Argument(help="Study file (YAML).", show_default=False)]
StudyOutput = Annotated[Path | None, typer.Option("--output", "-o", help="Folder; default runs/NAME.")]


class ExecutorName(StrEnum):
    """Where runs are carried out."""

    LOCAL = "local"
    RAY = "ray"


@app.command("plan")
def plan(
    file: File,
    assignments: options.Overrides = None,
    output: StudyOutput = None,
    cost: Annotated[bool, typer.Option(help="Count operations and estimate time; looks at the data.")] = True,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Time training steps where no record tells.")] = False,
    data_root: options.DataRoot = None,
    cache_dir: options.CacheDir = None,
    workers: options.Workers = 0,
    threads: options.Threads = 0,
    as_json: options.Json = False,
) -> None:
    """Show the runs of a study, what they cost and which are done. Runs nothing.

    Example: recurra study plan configs/studies/sst2.yaml --calibrate
    """
    from recurra.core.progress import Reporter
    from recurra.study.planning import plan_with_cost
    from recurra.study.spec import load_study
    from recurra.tasks.machine import Machine

    spec = load_study(file, assignments or [])
    machine = Machine(data_root=data_root, cache_dir=cache_dir, threads=threads)
    folder = output or Path("runs") / spec.name
    planned = plan_with_cost(
        spec, folder, machine, workers=workers, cost=cost, calibrated=calibrate, reporter=Reporter(quiet=as_json)
    )
    present_plan(planned, as_json=as_json)


@app.command("status")
def status(
    path: Annotated[Path, typer.Argument(metavar="FOLDER|FILE", help="A study's folder or file.", show_default=False)],
    output: StudyOutput = None,
    as_json: options.Json = False,
) -> None:
    """Show how far a study is, also while it runs elsewhere. Example: recurra study status runs/sst2."""
    from recurra.study.status import find_study, look_at_study

    present_status(look_at_study(*find_study(path, output)), as_json=as_json)


@app.command("run")
def run(
    file: File,
    assignments: options.Overrides = None,
    output: StudyOutput = None,
    data_root: options.DataRoot = None,
    workers: options.Workers = 0,
    threads: options.Threads = 0,
    latency: Annotated[bool, typer.Option(help="Time all models side by side at the end.")] = True,
    executor: Annotated[ExecutorName, typer.Option(help="This machine, or a Ray cluster.")] = ExecutorName.LOCAL,
    address: Annotated[str, typer.Option(help="Ray: HOST:PORT of the cluster's head, or auto.")] = "auto",
    run_cpus: Annotated[float, typer.Option(min=0.01, help="Ray: cores of one run.")] = 1.0,
    run_gpus: Annotated[float, typer.Option(min=0, help="Ray: accelerators of one run.")] = 0.0,
    retries: Annotated[int, typer.Option(min=0, help="Ray: times a run is started again after its node died.")] = 3,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run what a study lacks, then write its report; killed and started again, it goes on where it stopped.

    Example: recurra study run configs/studies/sst2.yaml
    """
    from recurra.comparison import carry_out
    from recurra.core.progress import Reporter
    from recurra.study.cluster import Cluster
    from recurra.study.spec import load_study
    from recurra.tasks.machine import Machine

    spec = load_study(file, assignments or [])
    machine = Machine(data_root=data_root, threads=threads, latency=latency)
    result = carry_out(
        spec,
        output or Path("runs") / spec.name,
        machine,
        workers=workers,
        reporter=Reporter(quiet=quiet),
        command=shlex.join(["recurra", *sys.argv[1:]]),
        cluster=Cluster(address, run_cpus, run_gpus, retries) if executor is ExecutorName.RAY else None,
    )
    present_study(result, as_json=as_json, wide=True)


@app.command("report")
def report(
    file: File, output: StudyOutput = None, assignments: options.Overrides = None, as_json: options.Json = False
) -> None:
    """Write the report of what is done and run nothing. Example: recurra study report configs/studies/sst2.yaml."""
    from recurra.comparison import report_study
    from recurra.study.spec import load_study

    spec = load_study(file, assignments or [])
    command = shlex.join(["recurra", *sys.argv[1:]])
    present_study(report_study(spec, output or Path("runs") / spec.name, command=command), as_json=as_json, wide=True)
