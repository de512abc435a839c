"""``recurra models``: the presets and their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from recurra.cli import options
from recurra.cli.output import present
from recurra.core.errors import ConfigurationError, unknown


def models(
    name: Annotated[str | None, typer.Argument(metavar="[PRESET]", help="Show the parts of this preset.")] = None,
    wide: options.Wide = False,
    as_json: options.Json = False,
) -> None:
    """List the presets with their parameters, FLOPs a token and sizes, or the parts of one preset.

    Example: recurra models crt-deep
    """
    from recurra.models.presets import describe_presets
    from recurra.tasks.tables import CommandResult, Table

    presets = describe_presets()
    if name is not None:
        known = [item["name"] for item in presets]
        presets = [item for item in presets if item["name"] == name]
        if not presets:
            raise ConfigurationError(unknown("model preset", name, known))
    tables = []
    if name is not None:
        counts = presets[0]["parameters"]
        items = [
            {"Part": part.replace("_", " "), "Parameters": f"{count:,}", "Share": f"{count / counts['total']:.1%}"}
            for part, count in counts["parts"].items()
            if count
        ]
        items.append({"Part": "total", "Parameters": f"{counts['total']:,}"})
        tables.append(Table("parts", f"{name}: {presets[0]['description']}", items))
    for task in dict.fromkeys(item["task"] for item in presets if name is None):
        shown = [item for item in presets if item["task"] == task]
        first, rows = shown[0], [(_wide_row if wide else _row)(item) for item in shown]
        kind = f"{first['num_labels']} labels, vocabulary {first['vocab_size']:,}" if task == "classification" else task
        title = f"{kind}; FLOPs a token, in texts of {first['tokens']}{'' if wide else '; parameters in millions'}"
        tables.append(Table(task, title, rows))
    present(CommandResult({"presets": presets}, tables), as_json=as_json)


# A line of 80 characters has no room for more.
def _row(item: Mapping[str, Any]) -> dict[str, str]:
    return {
        "Preset": item["name"],
        "Million": f"{item['parameters']['total'] / 1e6:.1f}",
        "MFLOPs": f"{item['flops_per_token'] / 1e6:.2f}",
        "MiB": f"{item['size_mib']['fp32']:.1f}",
        "What it is": item["description"],
    }


def _wide_row(item: Mapping[str, Any]) -> dict[str, str]:
    return {
        "Preset": item["name"],
        "Total": f"{item['parameters']['total']:,}",
        "Embedding": f"{item['parameters']['embeddings']:,}",
        "Non-embedding": f"{item['parameters']['non_embedding']:,}",
        "MFLOPs/token": f"{item['flops_per_token'] / 1e6:.2f}",
        "MiB FP32": f"{item['size_mib']['fp32']:.1f}",
        "MiB half": f"{item['size_mib']['half']:.1f}",
        "What it is": item["description"],
    }
