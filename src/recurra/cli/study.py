"""``recurra study``: plans, runs, shows and reports a study file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recurra.cli import options
from recurra.cli.output import EXIT_INPUT, command_line, complain, present, present_study

if TYPE_CHECKING:
    from recurra.study.export_plan import PlannedExport
    from recurra.study.plan import PlannedRun
    from recurra.study.status import StudyView


# A longer plan is shown by groups of runs that differ only in the seed.
MOST_LINES = 100


def present_view(view: StudyView, *, as_json: bool) -> None:
    """Prints the runs of a study with their progress, or for a plan with their costs."""
    from recurra.core.terminal import amount, duration
    from recurra.tasks.tables import NONE, CommandResult, Table

    planned = view.workers > 0
    groups = view.groups() if planned and len(view.runs) > MOST_LINES else [("", [run]) for run in view.runs]
    rows = []
    for name, group in groups:
        columns = {"Progress": _progress(group[0])}
        if planned:
            flops = view.cost.flops(group) if view.cost else None
            seconds = view.cost.seconds(group) if view.cost else None
            columns = {
                "Training FLOPs": amount(flops) if flops else NONE, "Time": duration(seconds) if seconds else NONE
            }  # fmt: skip
        rows.append(
            {
                "Run": group[0].config.run_id if len(group) == 1 else f"{name}, {len(group)} seeds",
                "State": _count_states(group),
                **columns,
                "Reason": next((run.reason for run in group if run.reason), ""),
            }
        )
    lines = [view.note] if view.note else []
    remaining = "not known" if view.remaining_s is None else duration(view.remaining_s)
    if view.cost is not None:
        lines = [
            f"to do: {len(view.pending)} runs, at most {amount(view.cost.flops(view.pending))} training FLOPs; "
            f"time with {view.workers} at once: {remaining}",
            *(f"time of {line}" for line in view.cost.basis),
        ]
    elif not planned and view.remaining_s is None:
        lines.append("time left: not known, because no run is active or none has run for long enough")
    elif not planned and view.remaining_s:
        lines.append(f"about {remaining} left at the present speed")
    counts = ", ".join(f"{number} {state}" for state, number in view.counts.items())
    table = Table("runs", f"{view.name}: {counts}", rows)
    present(CommandResult(view.plain(), [table, [*lines, *_exports(view.exports)]]), as_json=as_json)
    if refused := [f"error: {run.reason}" for run in view.runs if run.state == "refused"]:
        complain(*refused)
        raise typer.Exit(EXIT_INPUT)


def _exports(exports: Sequence[PlannedExport]) -> list[str]:
    from recurra.study.export_plan import describe_exports

    failed = [f"failed: {export.key}: {export.reason}" for export in exports if export.state == "failed"]
    return [*filter(None, [describe_exports(exports)]), *failed]


def _count_states(runs: Sequence[PlannedRun]) -> str:
    states = [run.state for run in runs]
    if len(runs) == 1:
        return states[0]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _progress(run: PlannedRun) -> str:
    from recurra.core.terminal import duration

    progress = run.progress
    if progress is None:
        return ""
    parts = [progress.stage]
    if progress.steps:
        parts.append(f"epoch {progress.epoch} of {progress.epochs}, step {progress.step:,} of {progress.steps:,}")
    if run.state == "running":
        parts.append(f"for {duration(progress.elapsed_s)}")
    return ", ".join(parts)


app = typer.Typer(no_args_is_help=True, help="Run every combination of data, models, protocols and seeds in a file.")

File = Annotated[Path, typer.Argument(help="Study file (YAML).")]
FileOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Keys of the study file, e.g. seeds=[0,1] protocol_overrides.max_epochs=3.",
    ),
]
StudyOutput = Annotated[Path | None, typer.Option("--output", "-o", help="Folder; default runs/NAME.")]


@app.command("plan")
def plan(
    file: File,
    assignments: FileOverrides = None,
    output: StudyOutput = None,
    cost: Annotated[bool, typer.Option(help="Count operations and estimate time; this reads the data.")] = True,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Time training steps if no record has it.")] = False,
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
    from recurra.study.spec import load_study
    from recurra.study.status import plan_with_cost
    from recurra.tasks.study_data import Machine, StudyData

    spec = load_study(file, assignments or [])
    study_data = StudyData(Machine(data_root=data_root, cache_dir=cache_dir, threads=threads))
    folder = output or Path("runs") / spec.name
    planned = plan_with_cost(
        spec, folder, study_data, workers=workers, cost=cost, calibrated=calibrate, reporter=Reporter(quiet=as_json)
    )
    present_view(planned, as_json=as_json)


@app.command("status")
def status(
    path: Annotated[Path, typer.Argument(metavar="FOLDER|FILE", help="A study's folder or file.")],
    output: StudyOutput = None,
    as_json: options.Json = False,
) -> None:
    """Show the progress of a study, also while it runs. Example: recurra study status runs/sst2."""
    from recurra.study.status import find_study, study_status

    present_view(study_status(*find_study(path, output)), as_json=as_json)


@app.command("run")
def run(
    file: File,
    assignments: FileOverrides = None,
    output: StudyOutput = None,
    data_root: options.DataRoot = None,
    workers: options.Workers = 0,
    threads: options.Threads = 0,
    latency: Annotated[bool, typer.Option(help="Time all models side by side at the end.")] = True,
    executor: Annotated[
        options.Executor, typer.Option(help="This machine, or a Ray cluster.")
    ] = options.Executor.LOCAL,
    address: Annotated[
        str | None, typer.Option(help="Ray: HOST:PORT of the cluster's head, or auto. Default: auto.")
    ] = None,
    run_cpus: Annotated[float | None, typer.Option(min=0.01, help="Ray: cores of one run. Default: 1.")] = None,
    run_gpus: Annotated[float | None, typer.Option(min=0, help="Ray: accelerators of one run. Default: 0.")] = None,
    retries: Annotated[
        int | None, typer.Option(min=0, help="Ray: how often to start a run again after its node died. Default: 3.")
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run what a study lacks, then write its report. After an interruption, the same command continues.

    Example: recurra study run configs/studies/sst2.yaml
    """
    from recurra.core.errors import ConfigurationError
    from recurra.core.progress import Reporter
    from recurra.reported_study import run_and_report
    from recurra.study.ray_executor import Cluster
    from recurra.study.spec import load_study
    from recurra.tasks.study_data import Machine, StudyData

    of_ray: dict[str, Any] = {"address": address, "run-cpus": run_cpus, "run-gpus": run_gpus, "retries": retries}
    of_ray = {option: value for option, value in of_ray.items() if value is not None}
    if executor is not options.Executor.RAY:
        for option, value in of_ray.items():
            raise ConfigurationError(
                f"--{option} is {value}, without a Ray cluster; add --executor ray, or leave it out"
            )
    spec = load_study(file, assignments or [])
    study_data = StudyData(Machine(data_root=data_root, threads=threads, latency=latency))
    result = run_and_report(
        spec,
        output or Path("runs") / spec.name,
        study_data,
        workers=workers,
        reporter=Reporter(quiet=quiet),
        command=command_line(),
        cluster=Cluster(**{option.removeprefix("run-"): value for option, value in of_ray.items()})
        if executor is options.Executor.RAY
        else None,
    )
    present_study(result, as_json=as_json, wide=True)


@app.command("report")
def report(
    file: Annotated[Path, typer.Argument(metavar="FOLDER|FILE", help="A study's folder or file.")],
    output: StudyOutput = None,
    assignments: FileOverrides = None,
    by_length: Annotated[
        bool, typer.Option("--by-length", help="Classifiers: also accuracy by length of text; reads the data.")
    ] = False,
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
) -> None:
    """Write the report of finished runs and run nothing. A folder is reported from its records and its study file.

    Example: recurra study report results/sst2 --output /tmp/sst2
    """
    from recurra.core.errors import ConfigurationError
    from recurra.reported_study import report_records, report_study
    from recurra.study.spec import load_study

    command = command_line()
    if file.is_dir():
        if assignments:
            raise ConfigurationError(
                f"'{assignments[0]}' changes a study file, but '{file}' is a folder; give the file"
            )
        result = report_records(file, output, command=command, by_length=by_length, data_root=data_root)
    else:
        spec = load_study(file, assignments or [])
        folder = output or Path("runs") / spec.name
        result = report_study(spec, folder, command=command, by_length=by_length, data_root=data_root)
    present_study(result, as_json=as_json, wide=True)


@app.command("pack")
def pack(
    folder: Annotated[Path, typer.Argument(metavar="RUNS_DIR", help="A study's output folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Packed study; an existing one gains the runs.")],
    as_json: options.Json = False,
) -> None:
    """Store the records of a study's finished runs in two files; weights are left out, the folder is not touched.

    Example: recurra study pack runs/sst2 --output results/sst2
    """
    from recurra.study.packing import pack_study
    from recurra.tasks.tables import CommandResult

    packed = pack_study(folder, output)
    unfinished = f"; left out {packed.unfinished} unfinished" if packed.unfinished else ""
    size = f"{packed.size_bytes / 2**20:.1f} MiB"
    line = f"{output}: {packed.runs} runs, {packed.added} new, {packed.replaced} replaced, {size}{unfinished}"
    present(CommandResult({**vars(packed), "output": str(packed.output)}, [[line]]), as_json=as_json)
