"""The commands that are killed and starved: what each is given, and what lies where it writes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml

from faults.forked import Child, Ended, command
from language_runs import TEXT_KEYS, TINY_KEYS, write_text
from reviews import TINY_DATA, write_reviews, write_tiny_model
from tiny_encoder import write_tiny_encoder

_QUIET = "--threads 1 --no-latency --quiet"
_PROTOCOL = "batch_size=16 learning_rate=5e-3"
_REVIEWS = f"--data {{given}}/reviews.csv {_QUIET}"
_TINY = f"train --model {{given}}/tiny.yaml {_REVIEWS} --tokenizer trained {' '.join(TINY_DATA)} {_PROTOCOL}"
_LINEAR = f"train --model linear {_REVIEWS}"
_ENCODER = f"train {_REVIEWS} --protocol finetune data.max_length=24 {_PROTOCOL}"
_LANGUAGE = (
    f"train --model crt-tiny --data {{given}}/river.txt --tokenizer trained {_QUIET} max_epochs=2 {_PROTOCOL} "
    + " ".join([*TINY_KEYS, *TEXT_KEYS])
)
_CACHE = "--cache-dir {given}/cache"
_FIRST = (
    f"{_TINY} {_CACHE} --output {{given}}/run max_epochs=4",
    f"{_LINEAR} --output {{given}}/linear",
    f"{_ENCODER} --model {{given}}/encoder {_CACHE} --output {{given}}/teacher max_epochs=1",
    f"{_LANGUAGE} {_CACHE} --output {{given}}/language",
    "export {given}/run --output {given}/onnx --format onnx --quiet",
    "export {given}/linear --output {given}/linear-export --quiet",
    "export {given}/run --output {given}/export --quiet",
)
_PLACED = "--output {place}/out --cache-dir {place}/cache"
_EXPORT = "export {given}/run --output {place}/out --overwrite --quiet --format"
_PREDICT = "predict --quiet --input {given}"


def words(line: str, **places: object) -> list[str]:
    """The words of a command that names places in braces; what stands for one may have spaces."""
    return [word.format_map(places) for word in line.split()]


@dataclass(frozen=True)
class Job:
    """One command; ``before`` names a given file or folder and where a copy of it lies in the way."""

    name: str
    line: str
    before: tuple[str, str] | None = None
    share: int = 1
    starves: bool = True


JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        Job("train", f"{_TINY} {_PLACED} max_epochs=4", share=5),
        Job("train language", f"{_LANGUAGE} {_PLACED}", share=4),
        Job("train linear", f"{_LINEAR} {_PLACED}"),
        Job(
            "distil",
            f"{_ENCODER} --model {{given}}/student.yaml {_PLACED} max_epochs=3 teacher={{given}}/teacher "
            "distillation_weight=1.0",
            share=3,
        ),
        Job(
            "adapt",
            "adapt {given}/encoder --texts {given}/reviews.csv --stored 2 --output {place}/out --overwrite --quiet",
            share=2,
        ),
        Job(
            "study",
            f"study run {{given}}/study.yaml --output {{place}}/out {_QUIET} --workers 2",
            share=3,
            starves=False,
        ),
        Job("export", f"{_EXPORT} safetensors", before=("export", "out"), share=3),
        Job("export onnx", f"{_EXPORT} onnx", share=2),
        Job(
            "predict csv",
            f"{_PREDICT}/many.csv {{given}}/run --output {{place}}/p.csv",
            before=("reviews.csv", "p.csv"),
            share=2,
        ),
        Job("predict jsonl", f"{_PREDICT}/many.csv {{given}}/onnx --output {{place}}/p.jsonl"),
        Job("predict parquet", f"{_PREDICT}/reviews.csv {{given}}/linear --output {{place}}/p.parquet"),
        Job("predict folder", f"{_PREDICT}/texts {{given}}/run --output {{place}}/parts", share=3),
    )
}


class Workshop:
    """The inputs of all jobs, made once, and folders for attempts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.given = root / "given"
        self._attempts = 0

    def prepare(self) -> None:
        """Makes the inputs; a child does, for this process computes nothing."""
        self.given.mkdir()
        self.succeeds(Child(lambda: _write_inputs(self.given), self.scratch()).end())
        for line in _FIRST:
            self.succeeds(self.run(words(line, given=self.given)))

    def scratch(self) -> Path:
        """A new folder beside everything that a command writes."""
        self._attempts += 1
        return self.root / "scratch" / f"{self._attempts:05}"

    def begin(self, job: Job) -> tuple[Path, list[str]]:
        """A new folder for a job to write below, with what lies there before, and the words of the command."""
        self._attempts += 1
        place = self.root / "places" / f"{job.name.replace(' ', '-')}-{self._attempts:05}"
        place.mkdir(parents=True)
        if job.before:
            source, target = self.given / job.before[0], place / job.before[1]
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
        return place, words(job.line, given=self.given, place=place)

    def run(self, arguments: list[str]) -> Ended:
        """Runs a command to its end."""
        return Child(command(arguments), self.scratch()).end()

    @staticmethod
    def succeeds(ended: Ended) -> Ended:
        """What came of something that must not fail."""
        if ended.code != 0:
            raise RuntimeError(f"exit code {ended.code}: {ended.err}")
        return ended


def _write_inputs(given: Path) -> int:
    write_reviews(given / "reviews.csv", rows=120)
    write_reviews(given / "many.csv", rows=4000, seed=1)
    (given / "texts").mkdir()
    for number in range(4):
        write_reviews(given / "texts" / f"{number}.csv", rows=300, seed=number)
    write_tiny_model(given / "tiny.yaml")
    write_text(given / "river.txt", lines=80)
    write_tiny_encoder(given / "encoder", (given / "reviews.csv").read_text(encoding="utf-8").splitlines())
    data = {"name": f"{given}/reviews.csv", "tokenizer": "trained", "trained_vocab_size": 200, "max_length": 24}
    study = {
        "name": "small",
        "data": [data],
        "models": ["linear", f"{given}/tiny.yaml"],
        "protocols": ["paper"],
        "protocol_overrides": ["max_epochs=3", "early_stopping_patience=0", *_PROTOCOL.split()],
        "seeds": [0, 1],
    }
    for name, values in (("study", study), ("student", {"encoder": f"{given}/encoder", "plan": "0 (1)x2 3"})):
        (given / f"{name}.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return 0
