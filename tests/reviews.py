"""A small labelled file that a linear model can learn, and a tiny model file; shared by tests of the command line."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recurra.cli.main import main

# Of the same lengths, so that the format says nothing about the label.
GOOD = ("great", "lovely", "clever", "moving", "superb", "fresh", "warm", "bright")
BAD = ("awful", "clumsy", "boring", "tiring", "stupid", "bland", "weak", "shoddy")
NOUNS = ("film", "plot", "actor", "scene", "dialogue", "score", "ending", "pace")

TINY_MODEL = """\
hidden_size: 16
num_attention_heads: 2
intermediate_size: 32
num_core_layers: 1
num_recurrences: 2
"""
# Small enough for a training in a second, and without anything from outside.
TINY_DATA = ("data.trained_vocab_size=200", "data.max_length=24")

Row = tuple[str, str]


class Said(NamedTuple):
    """What a command wrote."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


# The fixture `command`: words of a command line, and the exit code that they must give.
Command = Callable[..., Said]


def review_rows(rows: int = 240, seed: int = 0) -> list[Row]:
    """Texts with labels; no two texts are alike, nor does one stand inside another."""
    dice = random.Random(seed)
    result = []
    for number in range(rows):
        subject, word, other = dice.choice(NOUNS), dice.choice((BAD, GOOD)[number % 2]), dice.choice(NOUNS)
        # Two rows share a number, so that its last digit does not tell the label.
        text = f"the {subject} of number {seed}{number // 2:04} was {word} and the {other} too"
        result.append((text, ("negative", "positive")[number % 2]))
    return result


def write_csv(path: Path, rows: Sequence[Sequence[str]], header: Sequence[str] = ("text", "label")) -> Path:
    """Writes a CSV file with a header."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def write_reviews(path: Path, rows: int = 240, seed: int = 0) -> Path:
    """Writes `review_rows` as CSV."""
    return write_csv(path, review_rows(rows, seed))


def write_tiny_model(path: Path) -> Path:
    """Writes a model file of a few thousand parameters."""
    path.write_text(TINY_MODEL, encoding="utf-8")
    return path


def train_linear(folder: Path, rows: int = 240) -> Path:
    """Trains the linear control on `review_rows` and returns its run folder."""
    data = write_reviews(folder / "reviews.csv", rows)
    run = folder / "linear"
    arguments = ["train", "--model", "linear", "--data", str(data), "--output", str(run), "--no-latency", "--quiet"]
    assert main(arguments) == 0
    return run


def train_tiny(folder: Path, *assignments: str, rows: int | Sequence[Sequence[str]] = 240) -> Path:
    """Trains a tiny recurrent model on so many `review_rows`, or on other rows, and returns its run folder."""
    data = write_csv(folder / "reviews.csv", review_rows(rows) if isinstance(rows, int) else rows)
    model = write_tiny_model(folder / "tiny.yaml")
    run = folder / "tiny"
    arguments = ["train", "--model", str(model), "--data", str(data), "--output", str(run), "--tokenizer", "trained"]
    arguments += ["--cache-dir", str(folder / "cache"), "--threads", "1", "--no-latency", "--quiet"]
    assert main([*arguments, *TINY_DATA, "max_epochs=1", *assignments]) == 0
    return run


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of predictions, by its extension."""
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    with path.open(encoding="utf-8", newline="") as stream:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in stream]
        return list(csv.DictReader(stream, delimiter="\t" if path.suffix == ".tsv" else ","))
