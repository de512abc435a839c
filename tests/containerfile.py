"""What a Dockerfile and a .dockerignore say, as far as ours use them."""

from __future__ import annotations

import fnmatch
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Instruction:
    """One instruction, its continued lines joined."""

    name: str
    value: str

    @property
    def words(self) -> list[str]:
        """An instruction in its JSON form, which no shell reads."""
        found = json.loads(self.value[self.value.index("[") :])
        assert all(isinstance(word, str) for word in found)
        return list(found)


@dataclass(frozen=True)
class Stage:
    """A stage: what it starts from, what it is called, and what it does."""

    base: str
    name: str
    instructions: list[Instruction]

    def all(self, name: str) -> list[Instruction]:
        return [one for one in self.instructions if one.name == name]

    def last(self, name: str) -> Instruction:
        return self.all(name)[-1]


def read_stages(path: Path) -> tuple[dict[str, str], list[Stage]]:
    """The arguments before the first stage, and the stages."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in filter(None, joined.splitlines()):
        name, _, value = line.partition(" ")
        if name == "FROM":
            base, _, called = value.partition(" AS ")
            stages.append(Stage(base, called, []))
        elif not stages:
            assert name == "ARG", line
            key, _, default = value.partition("=")
            arguments[key] = default
        else:
            stages[-1].instructions.append(Instruction(name, value))
    return arguments, stages


def reaches_the_builder(name: str, ignore: Path) -> bool:
    """Whether a file is part of the build context; the last pattern that fits decides."""
    kept = True
    parts = PurePosixPath(name).parts
    starts = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    for line in ignore.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        anywhere = pattern.startswith("**/")
        names = parts if anywhere else starts
        if any(fnmatch.fnmatch(start, pattern.removeprefix("**/")) for start in names):
            kept = line.startswith("!")
    return kept
