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
NEEDED, EXTRAS = PROJECT["project"]["dependencies"], PROJECT["project"]["optional-dependencies"]
# Which lists meet which requirements together.
WANTED = {
    "build": PROJECT["build-system"]["requires"],
    "run torch cuda": NEEDED,
    "dev torch cuda": [*NEEDED, *EXTRAS["dev"]],
    "serve-torch torch cuda": [*NEEDED, *EXTRAS["serve"], *EXTRAS["onnx"]],
    "serve": (ROOT / "requirements" / "onnx-serving.txt").read_text(encoding="utf-8").splitlines(),
}
NAMES = sorted(path.stem for path in LOCKED.glob("*.txt"))


def entries(name: str) -> dict[Requirement, list[str]]:
    """The requirements of a list, each with its hashes."""
    joined = (LOCKED / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    split = [(line.partition("--hash")[0], re.findall(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)", line)) for line in lines]
    assert len("".join(lines).split("--hash")) - 1 == sum(len(hashes) for _, hashes in split)
    return {Requirement(text.strip()): hashes for text, hashes in split}


def pins(*names: str) -> dict[str, set[Version]]:
    """The versions of each package of some lists; two where Python versions differ."""
    found: dict[str, set[Version]] = {}
    for name in names:
        of_list: dict[str, set[Version]] = {}
        for one in entries(name):
            (exact,) = one.specifier
            assert exact.operator == "==", one
            of_list.setdefault(canonicalize_name(one.name), set()).add(Version(exact.version))
        found |= of_list
    return found


def assert_met(found: dict[str, set[Version]], lines: list[str]) -> None:
    for wanted in (Requirement(line) for line in lines if line and not line.startswith("#")):
        assert all(wanted.specifier.contains(version) for version in found[canonicalize_name(wanted.name)]), wanted


@pytest.mark.parametrize("name", NAMES)
def test_every_file_of_every_package_has_its_hash_and_no_address(name: str) -> None:
    assert all(hashes for hashes in entries(name).values()) and pins(name)
    assert "://" not in (LOCKED / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("lists", WANTED)
def test_lists_meet_what_is_asked_for(lists: str) -> None:
    assert_met(pins(*lists.split()), WANTED[lists])


def test_lists_agree_and_have_what_was_chosen() -> None:
    dev = pins("dev", "torch", "cuda")
    for name in set(NAMES) - {"torch-cpu"}:
        assert all(dev[package] == versions for package, versions in pins(name).items()), name
    assert_met(dev, (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    (torch,) = entries("torch-cpu")
    assert str(torch.specifier) == f"=={next(iter(dev['torch']))}+cpu"


def test_the_lowest_versions_that_are_allowed_are_those_that_were_tried() -> None:
    lowest = pins("../lowest")
    extras = [line for extra in ("study", "batch", "onnx", "serve", "pretrained") for line in EXTRAS[extra]]
    for wanted in map(Requirement, [*NEEDED, *extras]):
        (bound,) = (Version(one.version) for one in wanted.specifier if one.operator == ">=")
        assert lowest[canonicalize_name(wanted.name)] == {bound}, wanted
