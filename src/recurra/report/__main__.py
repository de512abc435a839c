"""Writes or checks the results blocks of README.md and docs/: ``python -m recurra.report [--check]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from recurra.core.errors import RecurraError
from recurra.core.progress import Reporter
from recurra.report.documents import render_results_markdown


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0, 1 if a document is stale, 2 if a marker is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m recurra.report",
        description="Write the results blocks of README.md and docs/ from the records under results/.",
    )
    parser.add_argument("documents", nargs="*", type=Path, help="Markdown files (default: README.md and docs/)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of records (default: results)")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a block is stale")
    options = parser.parse_args(arguments)
    reporter = Reporter()
    try:
        stale = render_results_markdown(options.results, options.documents or None, check=options.check)
    except RecurraError as error:
        reporter.say(f"error: {error}")
        return error.exit_code
    for path in stale:
        reporter.say(f"{path}: {'stale; run make results' if options.check else 'written'}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
