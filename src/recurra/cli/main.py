"""The command ``recurra``: puts the commands together and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys

import typer

from recurra.cli import audit, bench, compare, data, demo, evaluate, models, predict, study, train
from recurra.core.errors import RecurraError

EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="recurra",
    help="Transformers that reuse their layers: train, compare, audit and use them.\n\n"
    "Start with: recurra demo   or: recurra compare reviews.csv --output runs/reviews",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("models")(models.models)
app.add_typer(data.app, name="data")
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("compare")(compare.compare)
app.add_typer(study.app, name="study")
app.add_typer(audit.app, name="audit")
app.command("bench")(bench.bench)
app.command("demo")(demo.demo)


def _version(value: bool) -> None:
    if value:
        from recurra import __version__

        sys.stdout.write(f"recurra {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Transformers that reuse their layers: train, compare, audit and use them."""


def main() -> None:
    """Runs the command line. Exit codes: 0 done, 1 failed, 2 wrong input, 3 an audit failed, 130 interrupted."""
    try:
        app()
    except RecurraError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; start the same command again to go on where it stopped\n")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone (head, less): not an error, and Python must not complain while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
