"""``recurra models``: the presets and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from recurra.cli import options
from recurra.cli.output import print_json, print_table
from recurra.core.errors import ConfigurationError, unknown

# What a line of 80 characters has no room for.
_ONLY_WIDE = ("Embedding", "Non-embedding", "MiB half")


def models(
    name: Annotated[str | None, typer.Argument(metavar="[PRESET]", help="Show this one part by part.")] = None,
    labels: Annotated[int, typer.Option("--labels", min=2, help="Classes of the classifier.")] = 2,
    wide: options.Wide = False,
    as_json: options.Json = False,
) -> None:
    """List the presets with their parameters, FLOPs a token and sizes, or one of them part by part.

    Example: recurra models crt-deep
    """
    from recurra.models.catalogue import describe_presets

    presets = describe_presets(num_labels=labels)
    if name is not None:
        presets = _chosen(presets, name)
    if as_json:
        print_json({"presets": presets})
        return
    if name is not None:
        _print_items(presets[0])
        return
    for task in dict.fromkeys(item["task"] for item in presets):
        _print_presets(task, [item for item in presets if item["task"] == task], wide=wide)


def _chosen(presets: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    chosen = [item for item in presets if item["name"] == name]
    if not chosen:
        raise ConfigurationError(unknown("model preset", name, [item["name"] for item in presets]))
    return chosen


def _print_presets(task: str, presets: Sequence[dict[str, Any]], *, wide: bool) -> None:
    rows = [
        {
            "Preset": item["name"],
            "Total" if wide else "Million": f"{total:,}" if wide else f"{total / 1e6:.1f}",
            "Embedding": f"{item['parameters']['embeddings']:,}",
            "Non-embedding": f"{item['parameters']['non_embedding']:,}",
            "MFLOPs/token" if wide else "MFLOPs": f"{item['flops_per_token'] / 1e6:.2f}",
            "MiB FP32" if wide else "MiB": f"{item['size_mib']['fp32']:.1f}",
            "MiB half": f"{item['size_mib']['half']:.1f}",
            "What it is": item["description"],
        }
        for item in presets
        for total in (item["parameters"]["total"],)
    ]
    headings = [heading for heading in rows[0] if wide or heading not in _ONLY_WIDE]
    first = presets[0]
    what = f"{first['num_labels']} labels, vocabulary {first['vocab_size']:,}" if task == "classification" else task
    title = f"{what}; FLOPs a token, of {first['tokens']}{'' if wide else '; parameters in millions'}"
    print_table(title, headings, [[row[heading] for heading in headings] for row in rows], left=("What it is",))


def _print_items(item: dict[str, Any]) -> None:
    counts = item["parameters"]
    rows = [[part, f"{count:,}", f"{count / counts['total']:.1%}"] for part, count in counts["items"].items()]
    rows.append(["total", f"{counts['total']:,}", ""])
    print_table(f"{item['name']}: {item['description']}", ["Part", "Parameters", "Share"], rows)
