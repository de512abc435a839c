"""Hostile files, configurations, runs and exports, given to the command line as a user would give them."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import random
import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from faults.hostile import Case, Target, Verdict
from faults.jobs import words
from faults.mutations import mutate_bytes, mutate_value, to_json
from recurra.core.terminal import LONGEST_LINE
from reviews import review_rows
from tiny_encoder import TEXTS

_ROWS = review_rows(40)
_CONFIGS = Path(__file__).parents[2] / "configs"


def run_command(arguments: list[str], place: Path) -> Verdict:
    """Runs the shipped command in this process and holds what it says and leaves against the rules."""
    from recurra.cli.main import main

    err, before = io.StringIO(), set(place.rglob("*"))
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            code = main(arguments)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = "".join(traceback.format_exception(error, limit=-4)[-6:])
        return Verdict("escaped", f"{type(error).__name__} escapes: {where[-1200:]!r}; {arguments}")
    said, left = err.getvalue(), {path.name for path in set(place.rglob("*")) - before}
    parts = sorted(name for name in left if name.endswith(".part"))
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    if code == 0:
        return Verdict("accepted", f"it leaves {parts or '.lock'}" if parts or ".lock" in left else "")
    if code == 3 and not lines:
        return Verdict("accepted")
    if "Traceback" in said or len(lines) != 1 or code not in (1, 2, 3):
        return Verdict("refused", f"exit code {code}, it says {said[-600:]!r}; {arguments}")
    if parts or any(name.partition(".")[0] == "made" for name in left):
        return Verdict("refused", f"refused, and it leaves {sorted(left)}")
    if len(lines[0]) > LONGEST_LINE + 100:
        return Verdict("refused", f"a line of {len(lines[0]):,} characters: {lines[0][:300]}")
    return Verdict("refused")


# Files of users.


def _csv(_: random.Random, delimiter: str = ",") -> bytes:
    stream = io.StringIO()
    # Texts and labels are quoted, numbers are not.
    writer = csv.writer(stream, delimiter=delimiter, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerows([("text", "label", "id"), *((*row, number) for number, row in enumerate(_ROWS))])
    return stream.getvalue().encode()


def _jsonl(dice: random.Random) -> bytes:
    lines = [to_json({"text": text, "label": label}) for text, label in _ROWS]
    for _ in range(dice.choice([0, 0, 1, 2, 3])):
        place = dice.randrange(len(lines))
        # What was made too deep before cannot be changed once more.
        with contextlib.suppress(ValueError, RecursionError):
            lines[place] = to_json(mutate_value(dice, json.loads(lines[place])))
    return b"\n".join(lines)


def _parquet(dice: random.Random) -> bytes:
    texts, labels = ([row[column] for row in _ROWS] for column in (0, 1))
    odd: list[tuple[str, Any]] = [
        ("label", pa.array(labels).dictionary_encode()),
        ("label", [dice.choice([0, 1, 2**62, None]) for _ in _ROWS]),
        ("label", [dice.choice([0.5, float("nan"), 1.0]) for _ in _ROWS]),
        ("label", [{"a": label} for label in labels]),
        ("text", [[text] for text in texts]),
        ("text", [text.encode() + b"\xff" for text in texts]),
    ]
    columns = {"text": texts, "label": labels, **dict([dice.choice(odd)] if dice.random() < 0.75 else [])}
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, compression=dice.choice(["none", "snappy", "zstd", "gzip"]))
    return stream.getvalue()


_WRITERS: dict[str, Callable[[random.Random], bytes]] = {
    ".csv": _csv,
    ".tsv": lambda dice: _csv(dice, "\t"),
    ".jsonl": _jsonl,
    ".parquet": _parquet,
    ".txt": lambda _: "\n".join(text for text, _ in _ROWS).encode(),
}


_TEXTS = ("predict {given}/linear-export --input {path} --quiet --output {place}/made.csv", "data describe {path}")
_TABLES = (
    *_TEXTS,
    "predict {given}/linear-export --input {path} --quiet --output {place}/made.jsonl",
    "predict {given}/linear-export --input {path} --quiet --output {place}/made.parquet",
    "data describe {path} --skip-unlabelled join_labels=true --json",
)
_SLOW = (
    "audit data {path}",
    "label-errors {path} --output {place}/made.csv",
    "train --model linear --data {path} --output {place}/run --no-latency --quiet",
)


@contextlib.contextmanager
def _user_files(given: Path, suffix: str) -> Iterator[Case]:
    def case(dice: random.Random, place: Path) -> Verdict:
        data = _WRITERS[suffix](dice)
        # Of Parquet some stay as they are: what is odd is their columns.
        if suffix != ".parquet" or dice.random() < 0.7:
            data = mutate_bytes(dice, data)
        path = place / f"rows{suffix}"
        path.write_bytes(data)
        ways = _TEXTS if suffix == ".txt" else _SLOW if dice.random() < 0.05 else _TABLES
        return run_command(words(dice.choice(ways), given=given, path=path, place=place), place)

    yield case


@contextlib.contextmanager
def _configurations(given: Path, folder: str, own: str) -> Iterator[Case]:
    seeds = [path.read_text(encoding="utf-8") for path in (*sorted((_CONFIGS / folder).glob("*.yaml")), given / own)]
    study = yaml.safe_load((given / "study.yaml").read_text(encoding="utf-8"))

    def case(dice: random.Random, place: Path) -> Verdict:
        text = dice.choice(seeds)
        data = text.encode()
        if dice.random() < 0.6:
            with contextlib.suppress(yaml.YAMLError, RecursionError):
                changed = yaml.safe_dump(mutate_value(dice, yaml.safe_load(text)), allow_unicode=True)
                data = changed.encode("utf-8", "replace")
        if dice.random() < 0.5:
            data = mutate_bytes(dice, data)
        path = place / "hostile.yaml"
        path.write_bytes(data)
        costs = False
        if folder == "models":
            path = place / "study.yaml"
            path.write_text(yaml.safe_dump({**study, "models": [str(place / "hostile.yaml")]}), encoding="utf-8")
            costs = dice.random() < 0.1
        line = f"study plan {{path}} --output {{place}}/made --json {'' if costs else '--no-cost'}"
        return run_command(words(line, path=path, place=place), place)

    yield case


# Folders.


def _spoil(dice: random.Random, path: Path) -> None:
    """Changes one file; a text of values mostly by its values."""
    data, by_value = path.read_bytes(), dice.random() < 0.75
    if path.suffix == ".json" and by_value:
        data = to_json(mutate_value(dice, json.loads(data)))
    elif path.suffix == ".safetensors" and by_value:
        length = int.from_bytes(data[:8], "little")
        header = to_json(mutate_value(dice, json.loads(data[8 : 8 + length])))
        data = len(header).to_bytes(8, "little") + header + data[8 + length :]
    else:
        data = mutate_bytes(dice, data)
    _write_anew(path, data)


def _write_anew(path: Path, data: bytes) -> None:
    # The file is a second name of the good one.
    path.unlink()
    path.write_bytes(data)


def _seal_again(folder: Path, changed: Path) -> None:
    """What someone would do who changes a sealed file on purpose."""
    from recurra.core.record import RunRecord
    from recurra.deployment.export.manifest import ExportManifest

    sealing: type[ExportManifest | RunRecord] = ExportManifest
    sealed = folder / "export.json"
    if not sealed.exists():
        sealed, sealing = folder / "record.json", RunRecord
        if changed != sealed:
            (folder / "model-files.json").unlink(missing_ok=True)
            return
    with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):
        values = json.loads(sealed.read_bytes())
        if changed != sealed and changed.name in values["files"]:
            data = changed.read_bytes()
            values["files"][changed.name] |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        values["content_hash"] = sealing.hash_of(values)
        _write_anew(sealed, to_json(values))


@contextlib.contextmanager
def _folders(given: Path, name: str, *ways: str) -> Iterator[Case]:
    from recurra.models.quiet import quieten_libraries

    quieten_libraries()
    source = given / name
    files = [path.relative_to(source) for path in sorted(source.rglob("*"))]
    files = [path for path in files if path.suffix in (".json", ".safetensors", ".onnx", ".yaml")]

    def case(dice: random.Random, place: Path) -> Verdict:
        folder = place / "hostile"
        shutil.copytree(source, folder, copy_function=os.link)
        changed = folder / dice.choice(files)
        _spoil(dice, changed)
        if dice.random() < 0.8 and name != "encoder":
            _seal_again(folder, changed)
        (line,) = dice.choices(ways, [9, 1][: len(ways)])
        return run_command(words(line, folder=folder, place=place, text=dice.choice(TEXTS), plan="0 (1)x2 3"), place)

    yield case


_PREDICT = "predict {folder} {text} fine --quiet --json"
_EXPORT = "export {folder} --output {place}/made --quiet"
_GENERATE = "generate {folder} {text} --max-new-tokens 3 --quiet"
_ADAPT = "adapt {folder} --plan {plan} --output {place}/made --quiet"


def _target(name: str, opened: Callable[..., Any], share: int, *arguments: object) -> Target:
    return Target(name, lambda given: opened(given, *arguments), share)


FILE_TARGETS = [
    *(_target(f"files{suffix}", _user_files, 4 if suffix == ".txt" else 14, suffix) for suffix in _WRITERS),
    _target("study files", _configurations, 12, "studies", "study.yaml"),
    _target("model files", _configurations, 12, "models", "tiny.yaml"),
    _target("linear runs", _folders, 6, "linear", _PREDICT, _EXPORT),
    _target("linear exports", _folders, 8, "linear-export", _PREDICT),
    _target("ONNX exports", _folders, 8, "onnx", _PREDICT),
    _target("exports", _folders, 6, "export", _PREDICT),
    _target("runs", _folders, 6, "run", _PREDICT, _EXPORT),
    _target("language runs", _folders, 4, "language", _GENERATE),
    _target("encoders", _folders, 4, "encoder", _ADAPT),
]
