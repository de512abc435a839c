"""Environments that hold some of what is installed here, and nothing else.

A package index is not asked: distributions are linked from the running environment into that of a new interpreter, so
that what is not linked cannot be imported there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(requirements: Iterable[str]) -> dict[str, Distribution]:
    """The installed distributions that meet requirements, and all that these require, by name."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        wanted = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        name = canonicalize_name(wanted.name)
        for extra in ("", *wanted.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            found[name] = distribution(name)
            for line in found[name].requires or []:
                inner = Requirement(line)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    inner.marker = None
                    waiting.append(inner)
    return found


@dataclass(frozen=True)
class Environment:
    """An interpreter of its own."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs in an empty folder, where nothing of the source tree can be found."""
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        return subprocess.run(
            [str(self.folder / "bin" / str(command[0])), *map(str, command[1:])],
            capture_output=True, text=True, cwd=empty, env=self.variables, timeout=120, check=False,
        )  # fmt: skip

    @property
    def variables(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}

    def pip(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Runs our pip for it; it can reach no index, and reads no configuration."""
        command = [sys.executable, "-m", "pip", "--python", self.python, *arguments]
        if arguments[0] == "install":
            command += ["--no-index", "--no-input"]
        variables = {**self.variables, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return subprocess.run(
            [*map(str, command)], capture_output=True, text=True, env=variables, timeout=120, check=False
        )


def make_environment(folder: Path, distributions: Iterable[Distribution]) -> Environment:
    """Makes an environment with the given distributions, without pip."""
    venv.create(folder, with_pip=False)
    made = Environment(folder)
    for one in distributions:
        for top in {file.parts[0] for file in one.files or []} - {"..", "__pycache__"}:
            link = made.packages / top
            if not link.exists():
                link.symlink_to(Path(str(one.locate_file(top))))
    return made
