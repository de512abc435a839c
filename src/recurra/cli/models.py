"""``recurra models``: the presets and their sizes."""

from __future__ import annotations

from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import print_json, print_table


def models(
    labels: Annotated[int, typer.Option("--labels", min=2, help="Classes of the classifier.")] = 2,
    as_json: options.Json = False,
) -> None:
    """List the presets with their parameters, FLOPs a token and sizes.

    Example: recurra models --labels 3
    """
    from recurra.models.catalogue import describe_presets

    presets = describe_presets(num_labels=labels)
    if as_json:
        print_json({"presets": presets})
        return
    headings = ["Preset", "Total", "Embedding", "Non-embedding", "MFLOPs/token", "MiB FP32", "MiB half", "What it is"]
    rows = [
        [
            item["name"],
            f"{item['parameters']['total']:,}",
            f"{item['parameters']['embeddings']:,}",
            f"{item['parameters']['non_embedding']:,}",
            f"{item['flops_per_token'] / 1e6:.2f}",
            f"{item['size_mib']['fp32']:.1f}",
            f"{item['size_mib']['half']:.1f}",
            item["description"],
        ]
        for item in presets
    ]
    first = presets[0]
    title = f"{labels} labels, vocabulary {first['vocab_size']:,}; FLOPs over {first['tokens']} tokens"
    print_table(title, headings, rows, left=("What it is",))
