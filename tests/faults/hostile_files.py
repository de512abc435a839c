"""Hostile files, configurations, runs and exports, given to the command line as a user would give them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from faults.hostile import Case, Target, Verdict
from faults.mutations import mutate_bytes, mutate_value, to_json
from recurra.core.terminal import LONGEST_LINE
from reviews import review_rows
from tiny_encoder import TEXTS

_TEXT = "the film was great"
_MADE = "made"


def run_command(arguments: list[object], place: Path) -> Verdict:
    """Runs the shipped command in this process and holds what it says and leaves against the rules."""
    from recurra.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    before = set(place.rglob("*"))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(argument) for argument in arguments])
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = "".join(traceback.format_exception(error, limit=-4)[-6:])
        return Verdict("escaped", f"{type(error).__name__} escapes: {where[-1200:]!r}; {list(map(str, arguments))}")
    said, left = err.getvalue(), set(place.rglob("*")) - before
    if code == 0:
        parts = [path.name for path in left if path.name.endswith(".part") or path.name == ".lock"]
        return Verdict("accepted", f"it leaves {parts}" if parts else "")
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    if code == 3 and not lines:
        return Verdict("accepted")
    if "Traceback" in said or len(lines) != 1 or code not in (1, 2, 3):
        return Verdict("refused", f"exit code {code}, it says {said[-600:]!r}; {list(map(str, arguments))}")
    if any(path.name == _MADE or path.name.startswith(f"{_MADE}.") or path.name.endswith(".part") for path in left):
        return Verdict("refused", f"refused, and it leaves {sorted(map(str, left))}")
    if len(lines[0]) > LONGEST_LINE + 100:
        return Verdict("refused", f"a line of {len(lines[0]):,} characters: {lines[0][:300]}")
    return Verdict("refused")


# Files of users.


def _csv(delimiter: str) -> bytes:
    rows = [("text", "label", "id"), *((text, label, str(row)) for row, (text, label) in enumerate(review_rows(40)))]
    # Some rows are quoted.
    quoted = [[f'"{cell}"' if number % 3 else cell for cell in row] for number, row in enumerate(rows)]
    return "".join(f"{delimiter.join(row)}\n" for row in quoted).encode()


def _jsonl() -> bytes:
    return b"".join(json.dumps({"text": text, "label": label}).encode() + b"\n" for text, label in review_rows(40))


def _parquet(dice: random.Random) -> bytes:
    rows = review_rows(40)
    columns: dict[str, Any] = {"text": [row[0] for row in rows], "label": [row[1] for row in rows]}
    kind = dice.randrange(8)
    if kind == 0:
        columns["label"] = pa.array(columns["label"]).dictionary_encode()
    elif kind == 1:
        columns["label"] = [dice.choice([0, 1, 2**62, None]) for _ in rows]
    elif kind == 2:
        columns["text"] = [[row[0]] for row in rows]
    elif kind == 3:
        columns["label"] = [{"a": row[1]} for row in rows]
    elif kind == 4:
        columns["text"] = [row[0].encode() + b"\xff" for row in rows]
    elif kind == 5:
        columns["label"] = [dice.choice([0.5, float("nan"), 1.0]) for _ in rows]
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, compression=dice.choice(["none", "snappy", "zstd", "gzip"]))
    return stream.getvalue()


def _hostile_json_lines(dice: random.Random, data: bytes) -> bytes:
    lines = data.splitlines()
    for _ in range(dice.randint(1, 3)):
        place = dice.randrange(len(lines))
        # What was made too deep before cannot be changed once more.
        with contextlib.suppress(ValueError, RecursionError):
            lines[place] = json.dumps(mutate_value(dice, json.loads(lines[place]))).encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


@contextlib.contextmanager
def _user_files(given: Path, suffix: str) -> Iterator[Case]:
    def case(dice: random.Random, place: Path) -> Verdict:
        seeds: dict[str, Callable[[], bytes]] = {
            ".csv": lambda: _csv(","),
            ".tsv": lambda: _csv("\t"),
            ".jsonl": _jsonl,
            ".parquet": lambda: _parquet(dice),
            ".txt": lambda: b"\n".join(text.encode() for text, _ in review_rows(40)),
        }
        data = seeds[suffix]()
        if suffix == ".jsonl" and dice.random() < 0.6:
            data = _hostile_json_lines(dice, data)
        # Of Parquet some stay as they are: what is odd is their columns.
        if suffix != ".parquet" or dice.random() < 0.7:
            data = mutate_bytes(dice, data)
        path = place / f"rows{suffix}"
        path.write_bytes(data)

        def predict(output: str) -> list[object]:
            return ["predict", given / "linear-export", "--input", path, "--output", place / output, "--quiet"]

        ways: list[list[object]] = [predict(f"{_MADE}.csv"), ["data", "describe", path]]
        if suffix != ".txt":
            ways += [
                ["data", "describe", path, "--skip-unlabelled", "join_labels=true", "--json"],
                predict(f"{_MADE}.jsonl"),
                predict(f"{_MADE}.parquet"),
            ]
            if dice.random() < 0.05:
                train = ["train", "--model", "linear", "--data", path, "--output", place / "run"]
                ways = [
                    ["audit", "data", path],
                    ["label-errors", path, "--output", place / f"{_MADE}.csv"],
                    [*train, "--no-latency", "--quiet"],
                ]
        return run_command(dice.choice(ways), place)

    yield case


# Configurations.

_STUDIES = Path(__file__).parents[2] / "configs"


@contextlib.contextmanager
def _study_files(given: Path, folder: str) -> Iterator[Case]:
    seeds = [path.read_text(encoding="utf-8") for path in sorted((_STUDIES / folder).glob("*.yaml"))]
    seeds.append((given / ("study.yaml" if folder == "studies" else "tiny.yaml")).read_text(encoding="utf-8"))
    study = yaml.safe_load((given / "study.yaml").read_text(encoding="utf-8"))

    def case(dice: random.Random, place: Path) -> Verdict:
        text = dice.choice(seeds)
        data = text.encode()
        if dice.random() < 0.6:
            with contextlib.suppress(yaml.YAMLError, RecursionError):
                data = yaml.safe_dump(mutate_value(dice, yaml.safe_load(text)), allow_unicode=True).encode(
                    "utf-8", "replace"
                )
        if dice.random() < 0.5:
            data = mutate_bytes(dice, data)
        path = place / "hostile.yaml"
        path.write_bytes(data)
        if folder == "models":
            path = place / "study.yaml"
            path.write_text(yaml.safe_dump({**study, "models": [str(place / "hostile.yaml")]}), encoding="utf-8")
        cost = [] if dice.random() < 0.1 and folder == "models" else ["--no-cost"]
        return run_command(["study", "plan", path, "--output", place / _MADE, *cost, "--json"], place)

    yield case


# Folders.


def _link(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        if path.is_dir():
            _link(path, target / path.name)
        else:
            os.link(path, target / path.name)


def _spoil(dice: random.Random, path: Path) -> None:
    """Changes one file; a text of values mostly by its values."""
    data = path.read_bytes()
    # The file is a second name of the good one.
    path.unlink()
    if path.suffix == ".json" and dice.random() < 0.75:
        data = to_json(mutate_value(dice, json.loads(data)))
    elif path.suffix == ".safetensors" and dice.random() < 0.75:
        length = int.from_bytes(data[:8], "little")
        header = to_json(mutate_value(dice, json.loads(data[8 : 8 + length])))
        data = len(header).to_bytes(8, "little") + header + data[8 + length :]
    else:
        data = mutate_bytes(dice, data)
    path.write_bytes(data)


def _seal_again(path: Path, cls: Any) -> None:
    """What someone would do who changes a sealed file on purpose."""
    with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):
        values = json.loads(path.read_bytes())
        values["content_hash"] = cls.hash_of(values)
        path.write_bytes(to_json(values))


def _seal_export(folder: Path, changed: Path) -> None:
    from recurra.deployment.export.manifest import ExportManifest

    manifest = folder / "export.json"
    if changed.name != manifest.name:
        values = json.loads(manifest.read_bytes())
        data = changed.read_bytes()
        if changed.name in values["files"]:
            entry = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            values["files"][changed.name] = {**values["files"][changed.name], **entry}
        manifest.unlink()
        manifest.write_bytes(to_json(values))
    _seal_again(manifest, ExportManifest)


def _seal_run(folder: Path, changed: Path) -> None:
    from recurra.core.record import RunRecord

    if changed.name == "record.json":
        _seal_again(changed, RunRecord)
    else:
        (folder / "model-files.json").unlink(missing_ok=True)


@contextlib.contextmanager
def _folders(given: Path, name: str) -> Iterator[Case]:
    from recurra.models.quiet import quieten_libraries

    quieten_libraries()
    source = given / name
    exported = (source / "export.json").exists()
    files = [path.relative_to(source) for path in sorted(source.rglob("*")) if path.is_file()]
    files = [path for path in files if path.suffix in (".json", ".safetensors", ".onnx", ".yaml")]

    def case(dice: random.Random, place: Path) -> Verdict:
        folder = place / "hostile"
        _link(source, folder)
        changed = folder / dice.choice(files)
        _spoil(dice, changed)
        if dice.random() < 0.8 and name not in ("encoder",):
            (_seal_export if exported else _seal_run)(folder, changed)
        return run_command(_ways(dice, name, folder, place, exported=exported), place)

    yield case


def _ways(dice: random.Random, name: str, folder: Path, place: Path, *, exported: bool) -> list[object]:
    if name == "language":
        return ["generate", folder, "the river", "--max-new-tokens", 3, "--quiet"]
    if name == "encoder":
        return ["adapt", folder, "--plan", "0 (1)x2 3", "--output", place / _MADE, "--quiet"]
    if not exported and dice.random() < 0.1:
        return ["export", folder, "--output", place / _MADE, "--quiet"]
    return ["predict", folder, *dice.sample(TEXTS, 2), "--quiet", "--json"]


def _target(name: str, opened: Callable[..., Any], share: int, *arguments: object) -> Target:
    return Target(name, lambda given: opened(given, *arguments), share)


FILE_TARGETS = [
    *(_target(f"files{suffix}", _user_files, 14, suffix) for suffix in (".csv", ".tsv", ".jsonl", ".parquet")),
    _target("files.txt", _user_files, 4, ".txt"),
    _target("study files", _study_files, 12, "studies"),
    _target("model files", _study_files, 12, "models"),
    _target("linear runs", _folders, 6, "linear"),
    _target("linear exports", _folders, 8, "linear-export"),
    _target("ONNX exports", _folders, 8, "onnx"),
    _target("exports", _folders, 6, "export"),
    _target("runs", _folders, 6, "run"),
    _target("language runs", _folders, 4, "language"),
    _target("encoders", _folders, 4, "encoder"),
]
