"""What a command left, held against what the same command leaves that nothing disturbs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Times, memory, what a hash of them says, how often a command was begun, and the commit, which may move on meanwhile.
_VOLATILE = {
    "created",
    "tokens_per_s",
    "peak_memory_mib",
    "content_hash",
    "record_hash",
    "resumed",
    "made",
    "code",
    "commit",
    "dirty",
}
# What a person reads: made of records, with their times in it. That they are there is compared.
_PAGES = {".html", ".md", ".tex", ".svg", ".txt", ".csv"}
_LOG = "log.txt"


def left_by(place: Path) -> dict[str, object]:
    """Every file below a folder with what must be the same whenever it is made."""
    return dict(_files(place))


def _files(place: Path) -> Iterator[tuple[str, object]]:
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if path.is_dir():
            if not any(path.iterdir()):
                yield f"{name}/", b""
        elif path.name == _LOG or name.startswith("study") or "report" in path.parts[-2:]:
            yield name, b""
        elif path.suffix in (".json", ".jsonl"):
            yield name, _values(path)
        elif path.suffix in _PAGES and not name.startswith("p."):
            yield name, b""
        elif path.suffix == ".safetensors":
            yield name, _tensors(path)
        else:
            yield name, path.read_bytes()


def _tensors(path: Path) -> object:
    """Header and bytes: the library writes what it says of a file in any order."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return [json.loads(data[8 : 8 + length]), data[8 + length :]]


def _values(path: Path) -> object:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [_without_times(json.loads(line)) for line in text.splitlines()]
    return _without_times(json.loads(text))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if not _is_volatile(key)}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _is_volatile(key: str) -> bool:
    return key in _VOLATILE or key.endswith("wall_s")


def differences(found: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """What is missing, what is too much, what is another."""
    missing = [f"{name} is missing" for name in wanted if name not in found]
    surplus = [f"{name} was left" for name in found if name not in wanted]
    other = [f"{name} differs" for name in wanted if name in found and found[name] != wanted[name]]
    return [*missing, *surplus, *other]
