"""``recurra serve``: runs and exports behind HTTP, with a page to try them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import print_json
from recurra.core.errors import UnavailableError


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|EXPORT ...", help="Folders, or NAME=FOLDER; the first answers requests that name no model."
        ),
    ],
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes any free port.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="File with the API keys to accept, one a line.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", metavar="NAME", help="Environment variable with the API key.")
    ] = None,
    rate_limit: Annotated[
        str | None,
        typer.Option("--rate-limit", metavar="N/s", help="Limit for each key, or address without one: 100/s."),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            "--examples", help="A .txt file or a table with a column text; the page shows its first six texts."
        ),
    ] = None,
    threads: options.Threads = 0,
    batch_texts: Annotated[int, typer.Option("--batch-texts", min=1, help="Texts computed together.")] = 32,
    alone: Annotated[
        bool,
        typer.Option("--alone/--together", help="Compute each request by itself, or together with others that wait."),
    ] = False,
    max_waiting_texts: Annotated[
        int,
        typer.Option("--max-waiting-texts", min=1, help="Most texts waiting for a model; above it the answer is 429."),
    ] = 2048,
    max_wait_s: Annotated[
        float, typer.Option("--max-wait-s", min=0.01, help="Expected wait in seconds, above which the answer is 429.")
    ] = 2.0,
    max_texts: Annotated[int, typer.Option("--max-texts", min=1, help="Texts of a request.")] = 256,
    max_characters: Annotated[int, typer.Option("--max-characters", min=1, help="Characters of a text.")] = 100_000,
    max_body_bytes: Annotated[int, typer.Option("--max-body-bytes", min=1024, help="Bytes of a request.")] = 2 * 2**20,
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=0.1, help="Time limit of a request.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print address and models as JSON when it is ready.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log errors only.")] = False,
) -> None:
    """Serve runs and exports over HTTP, with a page at /. Ctrl-C stops it after the accepted requests are answered.

    SIGHUP reloads folders that were replaced.

    Example: recurra serve exports/reviews-int8 small=exports/reviews-fp32 --port 8000
    """
    try:
        from recurra.deployment.serving.limits import Rate, ServerLimits
        from recurra.deployment.serving.server import serve as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("recurra"):
            raise
        raise UnavailableError(f"the server needs the package {error.name}; pip install 'recurra[serve]'") from error

    run(
        models,
        options.chosen(ServerLimits, locals(), rate=None if rate_limit is None else Rate.parse(rate_limit)),
        host=host,
        port=port,
        threads=threads,
        api_key_file=api_key_file,
        api_key_env=api_key_env,
        examples=examples,
        quiet=quiet,
        started=print_json if as_json else None,
    )
