"""Resolves what is installed and writes it with hashes: ``make lock``.

``pyproject.toml`` says what may be installed, ``constraints.txt`` what is chosen of it. Each list below holds that and
all that it brings along, in one version, with the hashes of every file of it, for every platform and Python from 3.11
on. PyTorch stands in lists of its own: ``torch-cpu``, the build without CUDA, which not every index has; ``torch``,
that of the default index; and ``cuda``, the gigabytes that the latter asks for on Linux.
"""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKED = ROOT / "requirements" / "locked"
CUDA = LOCKED / "cuda.txt"
# SHA-256 of builds of PyTorch without CUDA: for CPython 3.11 on Linux (x86-64).
CPU_BUILDS = ("6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",)
# What to resolve for each list. The first holds all, and the others take its versions.
LISTS = {
    "dev": ("pyproject.toml", "--extra", "dev"),
    "run": ("pyproject.toml",),
    "serve-torch": ("pyproject.toml", "--extra", "serve", "--extra", "onnx"),
    "serve": ("requirements/onnx-serving.txt",),
    "build": ("-",),
}
COMMAND = (
    "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-annotate", "--no-header",
    "--python-version", "3.11", "--constraint", "constraints.txt",
)  # fmt: skip


def resolve(name: str) -> dict[str, str]:
    """The lines of each package of a list, by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    constraints = () if name == "dev" else ("--constraint", str(LOCKED / "dev.txt"), "--constraint", str(CUDA))
    found = subprocess.run(
        [*COMMAND, *constraints, *LISTS[name]], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE,
        input="\n".join(project["build-system"]["requires"]),
    ).stdout  # fmt: skip
    packages: dict[str, str] = {}
    for line in found.splitlines(keepends=True):
        if not line.startswith(" "):
            package = line.partition("==")[0]
        packages[package] = packages.get(package, "") + line
    return packages


def is_of_cuda(package: str) -> bool:
    """Whether only a build of PyTorch with CUDA asks for it."""
    return package == "triton" or package.startswith(("cuda-", "nvidia-"))


def write(path: Path, packages: dict[str, str]) -> None:
    """Writes a list."""
    path.write_text("# Written by 'make lock'.\n" + "".join(packages.values()), encoding="utf-8")


def main() -> None:
    """Writes all lists."""
    LOCKED.mkdir(exist_ok=True)
    for name in LISTS:
        packages = resolve(name)
        torch = packages.pop("torch", "")
        cuda = {package: packages.pop(package) for package in list(packages) if is_of_cuda(package)}
        if name == "dev":
            hashes = " ".join(f"\\\n    --hash=sha256:{digest}" for digest in CPU_BUILDS)
            write(LOCKED / "torch-cpu.txt", {"torch": f"{torch.split()[0]}+cpu {hashes}\n"})
            write(LOCKED / "torch.txt", {"torch": torch})
            write(CUDA, cuda)
        write(LOCKED / f"{name}.txt", packages)


if __name__ == "__main__":
    main()
