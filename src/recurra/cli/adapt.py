"""``recurra adapt``: a pretrained encoder's layers made shared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import present


def adapt(
    encoder: Annotated[
        str,
        typer.Argument(
            metavar="ENCODER", help="minilm, e5, a folder of a BERT-like encoder, or OWNER/NAME of the hub."
        ),
    ],
    output: options.Output,
    assignments: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys of the model, e.g. recurrence_norms=true low_rank=8."),
    ] = None,
    plan: Annotated[
        str, typer.Option("--plan", help="Layers in order, a group to repeat in brackets: '0 (3 4)x2 5'; or auto.")
    ] = "auto",
    texts: Annotated[Path | None, typer.Option("--texts", help="File with your texts, to compare plans on.")] = None,
    text_column: options.InputTextColumn = "text",
    encoding: options.Encoding = None,
    stored: Annotated[
        int | None, typer.Option("--stored", min=1, help="For auto: number of layers to keep. Default: two thirds.")
    ] = None,
    applied: Annotated[
        int | None,
        typer.Option(
            "--applied", min=1, help="For auto: most layer applications. Default: the encoder's number of layers."
        ),
    ] = None,
    max_parameters: Annotated[
        int | None, typer.Option("--max-parameters", min=1, help="For auto: most parameters, without a head.")
    ] = None,
    max_ms: Annotated[
        float | None,
        typer.Option(
            "--max-ms", min=0.001, help="For auto: most milliseconds for a single text, estimated on this machine."
        ),
    ] = None,
    teach: Annotated[
        list[str] | None,
        typer.Option(
            "--teach",
            metavar="NAME|FILE",
            help="Texts on which the small encoder learns the large one's states; a corpus gives its training texts. "
            "May be given several times.",
        ),
    ] = None,
    apart: Annotated[
        list[str] | None,
        typer.Option(
            "--apart",
            metavar="NAME|FILE",
            help="For --teach: texts that models will be evaluated on; texts that repeat them are not used to teach. "
            "May be given several times.",
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="For --teach: minutes of training, all restarts together.")
    ] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", help="For --teach, in place of --minutes.")] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Store matrices as 8-bit integers, a quarter of the size.")
    ] = False,
    threads: options.Threads = 0,
    data_root: options.DataRoot = None,
    cache_dir: options.CacheDir = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing folder.")] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Make a pretrained encoder smaller: keep some layers, apply a few of them again.

    Which layers is a plan: '0 (3 4)x2 5' applies 0, then 3 and 4 twice, then 5. With auto, plans are scored by how much
    of the encoder's function they keep on your texts before any training. Scores are kept, so that a second call
    computes none. With --teach the layers then learn, without labels, to do what the whole encoder does; a killed
    training goes on with the same command.

    Example: recurra adapt minilm --plan auto --texts reviews.csv --stored 4 --output encoders/reviews
    """
    from recurra.adaptation import SHOWN_PLANS, AdaptationOptions
    from recurra.adaptation import adapt as make
    from recurra.core.configuration import override
    from recurra.core.progress import Reporter
    from recurra.tasks.tables import CommandResult, Table

    teach, apart = teach or [], apart or []
    settings = options.chosen(AdaptationOptions, locals(), changes=override({}, assignments or []))
    if threads:
        import torch

        torch.set_num_threads(threads)
    result = make(encoder, output, settings, reporter=Reporter(quiet=quiet))
    rows = [
        {
            "Plan": str(entry.plan),
            "Stored": f"{entry.plan.stored}",
            "Applied": f"{entry.plan.applied}",
            "Parameters": f"{entry.parameters:,}",
            "About ms": "" if entry.ms is None else f"{entry.ms:.1f}",
            "Kept": f"{entry.score:.3f}",
        }
        for entry in result.scores[:SHOWN_PLANS]
    ]
    remaining = len(result.scores) - len(rows)
    tables = [Table("plans", f"Kept of {encoder} on {result.texts} texts", rows)]
    history = result.taught.get("history", [])
    learned = ", ".join(
        f"{history[position]['kept']:.3f} {when}" for position, when in ((0, "before"), (-1, "taught")) if history
    )
    lines = [
        *([f"and {remaining} more plans in {output}/adaptation.json"] if remaining else []),
        *([f"kept of {encoder} on held-out passages: {learned}"] if history else []),
        f"{result.plan}: {result.parameters:,} parameters; licence of the weights: {result.source.licence}",
        f"train it: recurra train --model {output} --data FILE --protocol finetune --output runs/mine",
    ]
    plain = {"output": str(output), **result.plain()}
    present(CommandResult(plain, [*(tables if rows else []), lines]), as_json=as_json)
