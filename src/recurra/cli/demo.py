"""``recurra demo``: the main job on an embedded corpus, without a network."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import present_study


def demo(
    output: options.Output = Path("runs/demo"),
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings of each model.")] = 3,
    cache_dir: options.CacheDir = None,
    workers: options.Workers = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare a linear model, a stacked and a recurrent Transformer on generated reviews, in a few minutes.

    Example: recurra demo --output runs/demo
    """
    from recurra.comparison import carry_out, demonstration
    from recurra.core.progress import Reporter
    from recurra.tasks.machine import Machine

    command = shlex.join(["recurra", *sys.argv[1:]])
    machine = Machine(cache_dir=cache_dir, threads=1)
    reporter = Reporter(quiet=quiet)
    result = carry_out(demonstration(seeds=seeds), output, machine, workers=workers, reporter=reporter, command=command)
    present_study(result, as_json=as_json)
