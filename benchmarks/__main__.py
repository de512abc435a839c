"""Runs the parts one after the other and prints one table: ``python -m benchmarks [--only steps,predict]``."""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import corpus, render
from benchmarks.measures import Measure, Setting, provenance
from recurra.core.errors import RecurraError, did_you_mean
from recurra.core.files import write_json

# Each has a function `measure`; imported when its turn comes.
PARTS = {
    "steps": "benchmarks.training_step",
    "trainer": "benchmarks.trainer",
    "fine-tuning": "benchmarks.fine_tuning",
    "predict": "benchmarks.prediction",
    "deployment": "benchmarks.deployment",
    "peers": "benchmarks.peers",
    "forward": "benchmarks.forward",
    "memory": "benchmarks.memory",
    "attention": "benchmarks.attention",
    "layers": "benchmarks.layers",
    "convolution": "benchmarks.convolution",
    "generation": "benchmarks.generation",
    "exits": "benchmarks.exits",
    "language": "benchmarks.language",
    "study": "benchmarks.study",
    "report": "benchmarks.report",
    "usage": "benchmarks.usage",
}
# Parts that make up their own tokens, or read the demo.
WITHOUT_ROWS = {
    *("attention", "layers", "convolution", "generation", "exits", "language", "study", "report", "usage"),
}
PRESETS = ("baseline", "recurrent")


def main() -> int:
    """Measures, prints, and writes the JSON. A missed target is shown in the table and does not fail the command."""
    options = _options()
    start = time.perf_counter()
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="recurra-bench-") as folder:
        source = "made-up tokens"
        if not WITHOUT_ROWS.issuperset(options.only):
            _say("preparing the rows")
            source = corpus.prepare(options.data_root, Path(folder))
        runs = options.run, options.classifier
        rest = *runs, options.data_root, tuple(options.peers)
        setting = Setting(folder, tuple(options.presets), options.threads, options.quick, *rest)
        for part in options.only:
            _say(f"{part} ...")
            part_measures: list[Measure] = importlib.import_module(PARTS[part]).measure(setting)
            measures += part_measures
            for cells in render.rows({"measures": [measure.plain() for measure in part_measures]}):
                _say("  " + " | ".join(cells))
            report = _report(options, measures, source, time.perf_counter() - start)
            if options.json is not None:
                # After every part, so that figures survive a part that fails or is stopped.
                write_json(options.json, report)
    _print(report)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", type=_parts, default=list(PARTS), help=f"parts, with commas: {', '.join(PARTS)}")
    parser.add_argument("--presets", type=lambda text: text.split(","), default=list(PRESETS), help="with commas")
    parser.add_argument("--threads", type=int, default=1, help="threads of the numeric library (default 1)")
    parser.add_argument("--quick", action="store_true", help="only try that everything runs; figures mean nothing")
    parser.add_argument("--run", default="", help="run of a language model with exits, for the part exits")
    parser.add_argument("--classifier", default="", help="run of a classifier with exits, for the part deployment")
    parser.add_argument(
        "--peers", nargs="+", default=[], metavar="NAME", help="engines, for the part peers: MiniLM against these alone"
    )
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--data-root", type=Path, default=os.environ.get("RECURRA_DATA_ROOT"), help="local corpora")
    options = parser.parse_args()
    if options.data_root is not None:
        options.data_root = Path(options.data_root)
        # The workers look for a run's corpus there.
        os.environ["RECURRA_DATA_ROOT"] = str(options.data_root)
    return options


def _parts(text: str) -> list[str]:
    for part in (names := text.split(",")):
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"unknown part '{part}'{did_you_mean(part, PARTS)}")
    return names


def _report(options: argparse.Namespace, measures: list[Measure], source: str, wall_s: float) -> dict[str, Any]:
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **provenance(threads=options.threads),
        "threads": options.threads,
        "data": source,
        "quick": options.quick,
        "wall_s": round(wall_s, 1),
        "measures": [measure.plain() for measure in measures],
    }


def _print(report: dict[str, Any]) -> None:
    table = Table(title="Speed and memory, side by side in one run", title_justify="left", caption_justify="left")
    for heading in render.HEADINGS:
        table.add_column(heading, justify="right" if heading == "result" else "left", overflow="fold")
    for cells in render.rows(report):
        table.add_row(*(cell.replace("**", "").replace("[", "\\[") for cell in cells))
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(table)
    console.print(render.conditions(report), markup=False, soft_wrap=True)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RecurraError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
