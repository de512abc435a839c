"""``recurra bench``: time a sample of a run or preset, at batch 1 and 32."""

from __future__ import annotations

from typing import Annotated

import typer

from recurra.cli import options


def bench(
    name: Annotated[str, typer.Argument(metavar="RUN|PRESET", help="A run folder or a preset.")],
    as_json: options.Json = False,
) -> None:
    """Time a model. Example: recurra bench recurrent."""
    raise NotImplementedError(name)
