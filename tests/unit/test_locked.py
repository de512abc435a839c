"""Lists of what is installed, with hashes: they fit pyproject.toml, constraints.txt and each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LOCKED = ROOT / "requirements" / "locked"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
TORCH = ("torch", "cuda")
# Which lists meet which requirements together.
WANTED = {
    ("build",): PROJECT["build-system"]["requires"],
    ("run", *TORCH): PROJECT["project"]["dependencies"],
    ("dev", *TORCH): [*PROJECT["project"]["dependencies"], *EXTRAS["dev"]],
    ("serve-torch", *TORCH): [*PROJECT["project"]["dependencies"], *EXTRAS["serve"], *EXTRAS["onnx"]],
    ("serve",): (ROOT / "requirements" / "onnx-serving.txt").read_text(encoding="utf-8").splitlines(),
}
NAMES = sorted(path.stem for path in LOCKED.glob("*.txt"))


def entries(path: Path) -> dict[Requirement, list[str]]:
    """The requirements of a list, each with its hashes."""
    joined = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    split = [(line.partition("--hash")[0], re.findall(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)", line)) for line in lines]
    assert len("".join(lines).split("--hash")) - 1 == sum(len(hashes) for _, hashes in split)
    return {Requirement(text.strip()): hashes for text, hashes in split}


def pins(path: Path) -> dict[str, set[Version]]:
    """The versions of each package; two where Python versions differ."""
    found: dict[str, set[Version]] = {}
    for one in entries(path):
        (exact,) = one.specifier
        assert exact.operator == "==", one
        found.setdefault(canonicalize_name(one.name), set()).add(Version(exact.version))
    return found


def requirements(lines: list[str]) -> list[Requirement]:
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("name", NAMES)
def test_every_file_of_every_package_has_its_hash_and_no_address(name: str) -> None:
    path = LOCKED / f"{name}.txt"
    assert all(hashes for hashes in entries(path).values()) and pins(path)
    assert "://" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("lists", WANTED, ids="+".join)
def test_lists_meet_what_is_asked_for(lists: tuple[str, ...]) -> None:
    found = {name: versions for one in lists for name, versions in pins(LOCKED / f"{one}.txt").items()}
    for wanted in requirements(WANTED[lists]):
        versions = found[canonicalize_name(wanted.name)]
        assert all(wanted.specifier.contains(version) for version in versions), wanted


def test_lists_agree_and_have_what_was_chosen() -> None:
    dev = pins(LOCKED / "dev.txt") | pins(LOCKED / "torch.txt") | pins(LOCKED / "cuda.txt")
    for name in set(NAMES) - {"torch-cpu"}:
        assert all(dev[package] == versions for package, versions in pins(LOCKED / f"{name}.txt").items()), name
    for chosen in requirements((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()):
        assert all(chosen.specifier.contains(version) for version in dev[canonicalize_name(chosen.name)]), chosen
    ((torch, _),) = entries(LOCKED / "torch-cpu.txt").items()
    assert str(torch.specifier) == f"=={next(iter(dev['torch']))}+cpu"


def test_the_lowest_versions_that_are_allowed_are_those_that_were_tried() -> None:
    lowest = pins(ROOT / "requirements" / "lowest.txt")
    extras = [line for extra in ("study", "batch", "onnx", "serve", "pretrained") for line in EXTRAS[extra]]
    for wanted in requirements([*PROJECT["project"]["dependencies"], *extras]):
        (bound,) = (Version(one.version) for one in wanted.specifier if one.operator == ">=")
        assert lowest[canonicalize_name(wanted.name)] == {bound}, wanted
