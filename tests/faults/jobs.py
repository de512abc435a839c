"""The commands that are killed and starved: what each is given, and what it must leave."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from faults.forked import Child, Ended, command
from language_runs import TEXT_KEYS, TINY_KEYS, write_text
from reviews import TINY_DATA, write_reviews, write_tiny_model
from tiny_encoder import write_tiny_encoder

OUTPUT = "out"
_QUIET = ("--threads", "1", "--no-latency", "--quiet")
_PROTOCOL = ("batch_size=16", "learning_rate=5e-3")


@dataclass(frozen=True)
class Job:
    """One command."""

    name: str
    arguments: Callable[[Path, Path], list[object]]
    begins: Callable[[Path, Path], None] = lambda _given, _place: None
    share: int = 1
    starves: bool = True


class Workshop:
    """The inputs of all jobs, made once, and folders for attempts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.given = root / "given"
        self._attempts = 0

    def prepare(self) -> None:
        """Makes the inputs; a child does, for this process computes nothing."""
        self.given.mkdir(parents=True)
        ended = Child(lambda: _write_inputs(self.given), self.scratch()).end()
        if ended.code != 0:
            raise RuntimeError(ended.err)
        for arguments in _first_commands(self.given):
            ended = self.run(arguments)
            if ended.code != 0:
                raise RuntimeError(f"{arguments}: {ended.err}")

    def scratch(self) -> Path:
        """A new folder beside everything that a command writes."""
        self._attempts += 1
        return self.root / "scratch" / f"{self._attempts:05}"

    def place(self, job: Job) -> Path:
        """A new folder for a job to write below, with what lies there before."""
        self._attempts += 1
        place = self.root / "places" / f"{job.name.replace(' ', '-')}-{self._attempts:05}"
        place.mkdir(parents=True)
        job.begins(self.given, place)
        return place

    def run(self, arguments: list[object]) -> Ended:
        """Runs a command to its end."""
        return Child(command(arguments), self.scratch()).end()


def _write_inputs(given: Path) -> int:
    write_reviews(given / "reviews.csv", rows=120)
    write_tiny_model(given / "tiny.yaml")
    write_text(given / "river.txt", lines=80)
    lines = (given / "reviews.csv").read_text(encoding="utf-8").splitlines()
    write_tiny_encoder(given / "encoder", lines)
    student = {"encoder": str(given / "encoder"), "plan": "0 (1)x2 3"}
    (given / "student.yaml").write_text(yaml.safe_dump(student), encoding="utf-8")
    write_reviews(given / "many.csv", rows=4000, seed=1)
    (given / "texts").mkdir()
    for number in range(4):
        write_reviews(given / "texts" / f"{number}.csv", rows=300, seed=number)
    study = {
        "name": "small",
        "data": [
            {
                "name": str(given / "reviews.csv"),
                "tokenizer": "trained",
                "trained_vocab_size": 200,
                "max_length": 24,
            }
        ],
        "models": ["linear", str(given / "tiny.yaml")],
        "protocols": ["paper"],
        "protocol_overrides": ["max_epochs=3", "early_stopping_patience=0", *_PROTOCOL],
        "seeds": [0, 1],
    }
    (given / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    return 0


def _first_commands(given: Path) -> list[list[object]]:
    return [
        [*_train(given, given), "--cache-dir", given / "cache", "--output", given / "run", "max_epochs=4"],
        [*_train(given, given), "--cache-dir", given / "cache", "--output", given / "older", "max_epochs=1"],
        ["train", "--model", "linear", "--data", given / "reviews.csv", "--output", given / "linear", *_QUIET],
        [*_encoder(given, "encoder"), "--cache-dir", given / "cache", "--output", given / "teacher", "max_epochs=1"],
        ["export", given / "run", "--output", given / "onnx", "--format", "onnx", "--quiet"],
        ["export", given / "linear", "--output", given / "linear-export", "--quiet"],
        ["export", given / "run", "--output", given / "export", "--quiet"],
        [*_language(given), "--output", given / "language", "--cache-dir", given / "cache"],
    ]


def _train(given: Path, _: Path) -> list[object]:
    settings = ["--tokenizer", "trained", *_QUIET, *TINY_DATA, *_PROTOCOL]
    return ["train", "--model", given / "tiny.yaml", "--data", given / "reviews.csv", *settings]


def _encoder(given: Path, name: str) -> list[object]:
    model = given / name
    settings = ["--protocol", "finetune", *_QUIET, "data.max_length=24", *_PROTOCOL]
    return ["train", "--model", model, "--data", given / "reviews.csv", *settings]


def _language(given: Path) -> list[object]:
    settings = ["--tokenizer", "trained", *_QUIET, *TINY_KEYS, *TEXT_KEYS, "max_epochs=2", *_PROTOCOL]
    return ["train", "--model", "crt-tiny", "--data", given / "river.txt", *settings]


def _placed(place: Path) -> list[object]:
    return ["--output", place / OUTPUT, "--cache-dir", place / "cache"]


def _older_export(given: Path, place: Path) -> None:
    _copy(given / "export", place / OUTPUT)


def _older_predictions(_: Path, place: Path) -> None:
    (place / "p.csv").write_text("old\n", encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())


def _export(given: Path, place: Path, format_name: str) -> list[object]:
    return ["export", given / "run", "--output", place / OUTPUT, "--format", format_name, "--overwrite", "--quiet"]


def _predict(given: Path, place: Path, run: str, name: str, source: str = "many.csv") -> list[object]:
    return ["predict", given / run, "--input", given / source, "--output", place / name, "--quiet"]


JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        Job("train", lambda given, place: [*_train(given, place), *_placed(place), "max_epochs=4"], share=5),
        Job("train language", lambda given, place: [*_language(given), *_placed(place)], share=4),
        Job(
            "train linear",
            lambda given, place: [
                *("train", "--model", "linear", "--data", given / "reviews.csv", *_QUIET),
                *_placed(place),
            ],
        ),
        Job(
            "distil",
            lambda given, place: [
                *_encoder(given, "student.yaml"),
                *_placed(place),
                *("max_epochs=3", f"teacher={given / 'teacher'}", "distillation_weight=1.0"),
            ],
            share=3,
        ),
        Job(
            "adapt",
            lambda given, place: [
                *("adapt", given / "encoder", "--texts", given / "reviews.csv", "--stored", 2),
                *("--output", place / OUTPUT, "--overwrite", "--quiet"),
            ],
            share=2,
        ),
        Job(
            "study",
            lambda given, place: [
                *("study", "run", given / "study.yaml", "--output", place / OUTPUT, *_QUIET, "--workers", 2),
            ],
            share=3,
            starves=False,
        ),
        Job("export", lambda given, place: _export(given, place, "safetensors"), _older_export, share=3),
        Job("export onnx", lambda given, place: _export(given, place, "onnx"), share=2),
        Job("predict csv", lambda given, place: _predict(given, place, "run", "p.csv"), _older_predictions, share=2),
        Job("predict jsonl", lambda given, place: _predict(given, place, "onnx", "p.jsonl")),
        Job("predict parquet", lambda given, place: _predict(given, place, "linear", "p.parquet", "reviews.csv")),
        Job("predict folder", lambda given, place: _predict(given, place, "run", "parts", "texts"), share=3),
    )
}


def describe(arguments: list[object]) -> str:
    """A command as a person would type it."""
    return json.dumps([os.fspath(part) if isinstance(part, Path) else str(part) for part in arguments])
