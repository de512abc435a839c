"""How time and memory grow with rows, lengths and runs: ``python -m benchmarks.growth --data-root DIR --json FILE``.

Every figure is a shipped command, started as a user starts it, in a process of its own: wall-clock time from start to
end, and the resident memory of the largest process that took part. Rows are English novels in pieces of so many words;
the label says whether the novel is one of the older half. Runs are made-up records (`benchmarks.report`), a hundred a
table; ``--runs`` measures them alone. ``--render FILE`` writes the tables, ``--draw FOLDER`` what grows as figures.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.measures import provenance
from benchmarks.render import number
from recurra.core.files import read_json, write_json
from recurra.report.figures import standalone
from recurra.tasks import drawing

WORDS = 12
# Number of words of these novels by about so many tokens of BERT, including its two special tokens.
LENGTHS = {8: 5, 32: 23, 128: 97, 512: 392}
MIB = 1024
AXES = ("rows", "tokens", "runs")
STUDY = "{name: made-up, data: [{name: sst2, protocol: official}], models: [recurrent], protocols: [paper], seeds: [0]}"


@dataclass(frozen=True)
class Grown:
    """One command on one size.

    Attributes:
        command: Command that was run, in words.
        by: ``rows``, ``tokens`` or ``runs``: the size that grows.
        size: Rows, tokens a text, or runs.
        rows: Rows of the file; 0 where runs grow.
        seconds: Wall-clock time.
        mib: Resident memory of the largest process.
    """

    command: str
    by: str
    size: int
    rows: int
    seconds: float
    mib: float


def read_novels(root: Path) -> list[tuple[str, list[str]]]:
    """The words of each English novel, and whether it is one of the older half."""
    import pyarrow.parquet as pq

    table = pq.read_table(root / "english_novels" / "train.parquet", columns=["text", "year"])
    years = table.column("year").to_pylist()
    middle = sorted(years)[len(years) // 2]
    texts = table.column("text").to_pylist()
    return [("older" if year < middle else "newer", text.split()) for year, text in zip(years, texts, strict=True)]


def write_rows(path: Path, novels: Sequence[tuple[str, list[str]]], rows: int, words: int) -> Path:
    """Writes ``rows`` texts of so many words, one of each novel in turns; no word is in two of them.

    Raises:
        RuntimeError: If the novels have fewer words.
    """
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("text", "label"))
        left, start = rows, 0
        while left:
            usable = [(label, text) for label, text in novels if len(text) >= start + words][:left]
            if not usable:
                raise RuntimeError(f"the novels have no {rows:,} texts of {words} words; give a lower --most")
            writer.writerows((" ".join(text[start : start + words]), label) for label, text in usable)
            left, start = left - len(usable), start + words
    return path


def write_file(path: Path, root: Path, rows: int, words: int) -> None:
    """`write_rows` of the novels in a data root."""
    write_rows(path, read_novels(root), rows, words)


def study_size(runs: int) -> tuple[int, int]:
    """Data sets and seeds (ten, if there are runs enough) of a study of ten models that has at most so many runs."""
    seeds = min(10, runs // 10)
    return runs // (10 * seeds), seeds


def write_study(folder: Path, sets: int, seeds: int) -> None:
    """Writes a folder with the records of a study's runs."""
    from benchmarks.report import write_runs

    for _ in write_runs(folder, tables=sets, models=10, seeds=seeds):
        pass
    (folder / "study.yaml").write_text(STUDY, encoding="utf-8")


def run(arguments: Sequence[str], root: Path) -> tuple[float, float]:
    """Seconds and MiB of ``recurra`` with these arguments.

    Raises:
        RuntimeError: If it fails.
    """
    environment = {**os.environ, "RECURRA_DATA_ROOT": str(root), "HF_HUB_OFFLINE": "1"}
    started = time.perf_counter()
    process = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "recurra", *arguments],
        environment,
        file_actions=[(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in (0, 1)],
    )
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - started
    if code := os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"recurra {' '.join(arguments)} ended with {code}")
    return seconds, usage.ru_maxrss / MIB


class Growth:
    """Measures all of it in one folder.

    Args:
        folder: For rows, runs and exports; some gigabytes.
        root: Local copies of public data.
        most: Rows, at most.
    """

    def __init__(self, folder: Path, root: Path, most: int) -> None:
        self.folder, self.root, self.most = folder, root, most

    def rows(self, rows: int, words: int = WORDS) -> str:
        """A file of rows, made once."""
        path = self.folder / f"{rows}-{words}.csv"
        if not path.exists():
            _apart(write_file, path, self.root, rows, words)
        return str(path)

    def measure(self) -> Iterator[Grown]:
        """Yields each figure once it is measured, the quick ones first."""
        yield from self.reports()
        linear, encoder = self._models()
        for model, name, most in ((linear, "linear-tuned", self.most), (encoder, "MiniLM, int8", self.most // 10)):
            for rows in _sizes(most):
                yield self._predict(model, name, "rows", rows, rows=rows)
            for tokens, words in LENGTHS.items():
                yield self._predict(model, name, "tokens", tokens, rows=_share(self.most, 500), words=words)
        for rows in _sizes(self.most):
            yield self._compare("linear-tuned,static", "rows", rows, rows=rows)
        for rows in _sizes(self.most // 100):
            yield self._compare("minilm", "rows", rows, rows=rows)
        for tokens, words in LENGTHS.items():
            yield self._compare("minilm", "tokens", tokens, rows=_share(self.most, 1_000), words=words)

    def reports(self) -> Iterator[Grown]:
        """Reports of studies: about a run for each hundred rows of the largest file, and ever fewer."""
        for sets, seeds in sorted({study_size(max(10, self.most // 10**power)) for power in (5, 4, 3, 2)}):
            runs = 10 * sets * seeds
            folder = self.folder / f"study-{runs}"
            _apart(write_study, folder, sets, seeds)
            yield Grown(
                "study report",
                "runs",
                runs,
                0,
                *run(["study", "report", str(folder), "--output", f"{folder}-report", "--json"], self.root),
            )

    def _models(self) -> tuple[str, str]:
        """Exports of a linear model and of a tuned encoder, trained on a thousand rows."""
        exports = []
        options = ["--folds", "1", "--no-latency", "--no-estimate", "--quiet", "max_epochs=1"]
        for model, more in (("linear-tuned", []), ("minilm", ["--format", "onnx", "--precision", "int8"])):
            runs, export = str(self.folder / f"runs-{model}"), str(self.folder / f"export-{model}")
            rows = self.rows(_share(self.most, 1_000))
            run(["compare", rows, "--models", model, "--output", runs, "--max-length", "512", *options], self.root)
            run(["export", runs, "--output", export, *more, "--quiet"], self.root)
            exports.append(export)
        return exports[0], exports[1]

    def _predict(self, model: str, name: str, by: str, size: int, *, rows: int, words: int = WORDS) -> Grown:
        source = self.rows(rows, words)
        output = str(self.folder / "labels.csv")
        seconds, mib = run(["predict", model, "--input", source, "--output", output, "--quiet"], self.root)
        return Grown(f"predict, {name}", by, size, rows, seconds, mib)

    def _compare(self, models: str, by: str, size: int, *, rows: int, words: int = WORDS) -> Grown:
        source, output = self.rows(rows, words), str(self.folder / f"compared-{models}-{by}-{size}")
        arguments = ["compare", source, "--models", models, "--output", output, "--folds", "1", "--no-estimate"]
        arguments += ["--quiet", "--workers", "1", "--threads", "1"]
        if by == "tokens":
            arguments += ["--max-length", "512"]
        if models == "minilm":
            arguments += ["max_epochs=1", "--precision", "bf16"]
        seconds, mib = run(arguments, self.root)
        label = "one pass of MiniLM" if models == "minilm" else models.replace(",", " and ")
        return Grown(f"compare, {label}", by, size, rows, seconds, mib)


def _apart(write: Callable[..., None], *arguments: object) -> None:
    """Writes in a process of its own, because memory of this process would count for those that it starts."""
    writer = get_context("spawn").Process(target=write, args=arguments)
    writer.start()
    writer.join()
    if writer.exitcode:
        raise RuntimeError(f"{write.__name__} failed for {arguments}")


def _sizes(most: int) -> list[int]:
    """A file of ``most`` rows and smaller ones, each ten times smaller, down to a thousand."""
    return [size for size in (most // 1_000, most // 100, most // 10, most) if size >= min(1_000, most)]


def _share(most: int, part: int) -> int:
    return max(100, most // part)


def tables(measures: Sequence[dict[str, Any]]) -> str:
    """A Markdown table for each thing that grows."""
    by_axis = {by: [figure for figure in measures if figure["by"] == by] for by in AXES}
    return "\n".join(_table(lines, by) for by, lines in by_axis.items() if lines)


def _table(measures: Sequence[dict[str, Any]], by: str) -> str:
    heading = "tokens a text" if by == "tokens" else by
    lines = [f"| command | {heading} | time | against the line before | memory |", "| --- | ---: | ---: | --- | ---: |"]
    before: dict[str, Any] = {}
    for entry in measures:
        grown = ""
        if before.get("command") == entry["command"]:
            factor, times = entry["size"] / before["size"], entry["seconds"] / before["seconds"]
            grown = f"{times:.1f} x the time for {factor:g} x"
        command = entry["command"] + (f", {entry['rows']:,} rows" if by == "tokens" else "")
        lines.append(
            f"| {command} | {entry['size']:,} | {number(entry['seconds'])} s | {grown} | {number(entry['mib'])} MiB |"
        )
        before = entry
    return "\n".join(lines) + "\n"


def draw(measures: Sequence[dict[str, Any]], folder: Path) -> None:
    """Draws seconds by what grows, both logarithmic: a straight line of slope one grows as fast as its size."""
    for by in AXES:
        lines: dict[str, list[drawing.Point]] = {}
        for figure in measures:
            if figure["by"] == by:
                lines.setdefault(figure["command"], []).append(drawing.Point(figure["size"], figure["seconds"]))
        if not lines:
            continue
        points = [point for line in lines.values() for point in line]
        x = drawing.logarithmic_axis([point.x for point in points], "tokens a text" if by == "tokens" else by)
        y = drawing.logarithmic_axis([point.y for point in points], "seconds")
        chart = drawing.line_chart(
            "data-size",
            "",
            [drawing.Line(name, color, line) for color, (name, line) in enumerate(lines.items())],
            x,
            replace(y, start=drawing.BOTTOM, end=drawing.TOP),
            key=f"growth-{by}",
            caption="",
        )
        (folder / f"growth-{by}.svg").write_text(standalone(chart), encoding="utf-8")


def main() -> int:
    """Measures, prints a line a figure, and writes the JSON; or renders one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, help="local copies of public data")
    parser.add_argument("--most", type=int, default=1_000_000, help="rows of the largest file; others are parts of it")
    parser.add_argument("--runs", action="store_true", help="measure what grows with runs alone")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--render", type=Path, help="write the tables of such a file and measure nothing")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="with --render: write the figures there too")
    options = parser.parse_args()
    if options.render is not None:
        measures = read_json(options.render)["measures"]
        sys.stdout.write(tables(measures))
        if options.draw is not None:
            draw(measures, options.draw)
        return 0
    if options.data_root is None:
        parser.error("give --data-root DIR, or --render FILE")
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="recurra-bench-growth-") as folder:
        growth = Growth(Path(folder), options.data_root.absolute(), options.most)
        for grown in growth.reports() if options.runs else growth.measure():
            figures.append(asdict(grown))
            print(f"{grown.command}, {grown.size:,} {grown.by}: {grown.seconds:.1f} s, {grown.mib:.0f} MiB", flush=True)
            if options.json:
                write_json(options.json, {"measures": figures, **provenance()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
