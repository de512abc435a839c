"""A finished study in two files: ``records.jsonl`` and ``predictions.parquet``.

``records.jsonl`` has a line for every small file of the study: ``{"file": "runs/RUN/record.json", "content": {...}}``.
JSON is stored byte for byte except that line ends become tabs. No JSON string may hold a tab, so the original bytes,
which the hash of a record is taken of, can be restored. `read_study_bytes` returns a file of a study from disk or, if
it is not there, the packed one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from pydantic_core import from_json

from recurra.core.errors import CheckpointError

RECORDS_NAME = "records.jsonl"
HISTORY_NAME = "history.jsonl"
PREDICTIONS_NAME = "predictions.parquet"
RUNS_NAME = "runs"
# Other files of a study.
SPEC_NAME = "study.yaml"
LATENCY_NAME = "latency.json"
# A packed file lies at most this far below its study: runs/RUN/record.json.
_DEPTH = 3
_LINE = re.compile(rb'\{"file":\s*(?P<file>"(?:[^"\\]|\\.)*"),\s*"content":\s*(?P<content>["{\[].*)\}\s*', re.DOTALL)


def packed_files(study: Path) -> Mapping[str, bytes]:
    """The files in a study's ``records.jsonl`` by their path below the study; empty if it is not packed."""
    path = study / RECORDS_NAME
    try:
        state = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1)
def _read(path: Path, _changed: int, _size: int) -> dict[str, bytes]:
    files = {}
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            match = _LINE.fullmatch(line)
            try:
                if match is None:
                    raise ValueError("neither an object, a list nor a text")
                if match["content"].startswith(b'"'):
                    from_json(match["content"])
                files[str(from_json(match["file"]))] = match["content"]
            except ValueError as error:
                message = f"'{path}' is damaged in line {number}; restore it, or pack the study again"
                raise CheckpointError(message) from error
    return files


def line_of(name: str, content: bytes) -> bytes:
    """The line for a file, which is JSON or other text."""
    if name.endswith(".json"):
        if not isinstance(from_json(content, allow_inf_nan=False), dict | list | str):
            raise ValueError("neither an object, a list nor a text")
        packed = content.replace(b"\n", b"\t")
    else:
        packed = json.dumps(content.decode("utf-8"), ensure_ascii=False).encode()
    return b'{"file": %s, "content": %s}\n' % (json.dumps(name, ensure_ascii=False).encode(), packed)


def _packed(path: Path) -> bytes | None:
    """Content of a packed file as it was on disk; None if it is not packed."""
    for depth, study in enumerate(path.parents[:_DEPTH], start=1):
        content = packed_files(study).get("/".join(path.parts[-depth:]))
        if content is not None:
            return str(from_json(content)).encode() if content.startswith(b'"') else content.replace(b"\t", b"\n")
    return None


def in_study(path: Path) -> bool:
    """Whether a file of a study exists, on disk or packed."""
    return path.is_file() or _packed(path) is not None


def read_study_bytes(path: Path, most: int = -1) -> bytes:
    """Content of a file of a study, on disk (``most`` bytes of it, if given) or packed."""
    try:
        with path.open("rb") as stream:
            return stream.read(most)
    except (FileNotFoundError, NotADirectoryError):
        content = _packed(path)
        if content is None:
            raise
    return content


def study_files(study: Path, pattern: str) -> list[Path]:
    """Files of a study that match a pattern such as ``runs/*/record.json``, on disk or packed, in order."""
    return sorted(_packed_paths(study, pattern) | set(study.glob(pattern)))


def _packed_paths(study: Path, pattern: str) -> set[Path]:
    return {study / name for name in packed_files(study) if PurePosixPath(f"/{name}").match(f"/{pattern}")}


def run_folders(study: Path) -> list[Path]:
    """Folders of a study's runs, also of those without a record; for a packed run its former folder."""
    on_disk = {path for path in (study / RUNS_NAME).glob("*") if path.is_dir() and not path.name.startswith(".")}
    return sorted(on_disk | {path.parent for path in _packed_paths(study, f"{RUNS_NAME}/*/record.json")})
