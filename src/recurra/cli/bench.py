"""``recurra bench``: a classifier's run or preset against others of equal shape, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import present


def bench(
    model: Annotated[
        str,
        typer.Argument(metavar="RUN|PRESET", help="A classifier: its run folder, a comparison or a preset."),
    ],
    against: Annotated[
        list[str] | None,
        typer.Option("--against", help="bert (with the same width and depth), a preset or a run; may be repeated."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="Corpus or file whose text lengths are used. Default: 8 to 128 tokens."),
    ] = None,
    precision: options.Precision = "fp32",
    threads: options.Threads = 0,
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
) -> None:
    """Time classifiers side by side, in turns after each batch. For language models use recurra exits or generate.

    Example: recurra bench recurrent --against bert --against baseline
    """
    from recurra.evaluation.benchmark import benchmark
    from recurra.models.quiet import quieten_libraries
    from recurra.tasks.tables import CommandResult, Table

    quieten_libraries()
    result = benchmark(
        [options.one_run(name) for name in (model, *(against if against is not None else ["bert"]))],
        data=data,
        precision=precision,
        threads=threads,
        data_root=data_root,
    )
    rows = [
        {
            "Model": entry.name,
            "Batch": str(entry.latency.batch_size),
            "Median ms": f"{entry.latency.median_ms:.3f}",
            "p90 ms": f"{entry.latency.p90_ms:.3f}",
            "Mean ms": f"{entry.latency.mean_ms:.3f}",
            "Ratio to the first": f"{entry.ratio:.2f}",
        }
        for entry in result.entries
    ]
    machine = f"{result.environment.cpu}, {result.environment.threads} thread(s), {precision}"
    table = Table("bench", f"Milliseconds a row, {result.source}; {machine}", rows)
    present(CommandResult(result.plain(), [table]), as_json=as_json)
