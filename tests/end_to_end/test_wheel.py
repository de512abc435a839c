"""The wheel: what lies in it, and that it works where only it and what it asks for are installed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from importlib.metadata import Distribution, distribution
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import recurra
from recurra import Classifier
from recurra.core.best_run import BEST_NAME, BestRunRecord
from recurra.deployment.export.build import export_run
from reviews import review_rows
from server_process import ask, started


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
    """Makes an environment of distributions that are linked from the running one, and of nothing else."""
    venv.create(folder, with_pip=False)
    made = Environment(folder)
    for one in distributions:
        for top in {file.parts[0] for file in one.files or []} - {"..", "__pycache__"}:
            link = made.packages / top
            if not link.exists():
                link.symlink_to(Path(str(one.locate_file(top))))
    return made


pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LOCKED = ROOT / "requirements" / "locked"
WITHOUT_TORCH = ROOT / "requirements" / "onnx-serving.txt"
# Kinds of files that are code or part of it. Tables and pictures of results are not.
CODE = {".py", ".typed", ".html", ".j2", ".css", ".js", ".mjs", ".gz", ".txt", ".svg", ".yaml", ".json"}
# 3.5 MiB of it is the runtime of web exports, 10 MiB the small encoder.
MOST_BYTES = 16 * 2**20
TEXTS = [text for text, _ in review_rows(6, seed=11)]


ABOUT = f"recurra-{recurra.__version__}.dist-info/"


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(f"{ABOUT}METADATA"))


def written_requirements() -> list[str]:
    lines = WITHOUT_TORCH.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def make(source: Path, target: str, *, umask: int = 0o022, but: Sequence[str] = (), **variables: object) -> str:
    """What a target of the Makefile says, with what is installed here; ``but`` is taken as made."""
    given = {"VENV": sys.prefix, **variables}
    made_before = (f"{sys.prefix}/.installed", f"{sys.prefix}/.installed-dev", *but)
    options = [f"--old-file={one}" for one in made_before]
    made = subprocess.run(
        ["make", "--silent", *options, target, *(f"{name}={value}" for name, value in given.items())],
        cwd=source, capture_output=True, text=True, timeout=120, check=False, umask=umask,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return made.stdout


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], cwd=folder, check=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A commit of the tree as it is: what a release is built from."""
    source = tmp_path_factory.mktemp("source") / "tree"
    source.mkdir()
    for name in ("src", "tests", "benchmarks", "configs", "requirements"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt", ".gitignore"):
        shutil.copy(ROOT / name, source)
    git(source, "init", "--quiet")
    git(source, "add", ".")
    git(source, "commit", "--quiet", "--message", "A release")
    return source


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    said = make(source, "wheel")
    (found,) = (source / "dist").glob("*.whl")
    assert hashlib.sha256(found.read_bytes()).hexdigest() in said
    return found


def test_another_clone_at_another_time_gives_the_same_bytes(source: Path, wheel: Path, tmp_path: Path) -> None:
    previous = os.umask(0o077)
    try:
        git(tmp_path, "clone", "--quiet", str(source), "another clone")
    finally:
        os.umask(previous)
    clone = tmp_path / "another clone"
    (clone / "src" / "recurra" / "not_committed.py").touch()
    make(clone, "wheel", umask=0o077)
    assert (clone / "dist" / wheel.name).read_bytes() == wheel.read_bytes()


def test_it_holds_the_package_and_nothing_else_and_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith(ABOUT)}
        assert "recurra = recurra.cli.main:main" in archive.read(f"{ABOUT}entry_points.txt").decode()
        assert archive.read(f"{ABOUT}licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    package = ROOT / "src" / "recurra"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert names == {path.relative_to(package.parent).as_posix() for path in files}
    assert {Path(name).suffix for name in names if not {"encoders", "demo"} & set(name.split("/"))} <= CODE
    assert wheel.stat().st_size < MOST_BYTES
    metadata = metadata_of(wheel)
    assert (metadata["Name"], metadata["Version"]) == ("recurra", recurra.__version__)
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["Requires-Python"] == ">=3.11"
    extras = "study batch onnx serve pretrained languages peers peers-bench excel harness dev"
    assert set(metadata.get_all("Provides-Extra") or []) == set(extras.split())


def test_the_list_without_torch_has_the_bounds_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    allowed = {str(Requirement(line)) for line in (*project["dependencies"], *extras["onnx"], *extras["serve"])}
    assert {str(Requirement(line)) for line in written_requirements()} < allowed
    assert not {"torch", "transformers", "ray", "pyarrow", "pandas"} & set(closure(written_requirements()))


def test_it_installs_with_its_extras_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    wanted = [Requirement(line) for line in metadata_of(wheel).get_all("Requires-Dist") or []]
    extras = ("serve", "onnx")
    chosen = [one for one in wanted if one.marker is None or any(one.marker.evaluate({"extra": x}) for x in extras)]
    for one in chosen:
        one.marker = None
    environment = make_environment(tmp_path / "empty", closure(map(str, chosen)).values())
    # pip looks for every requirement, and for theirs, and would fail without an index if one were not met.
    made = environment.pip("install", f"{wheel}[serve,onnx]")
    assert made.returncode == 0, made.stderr
    assert re.findall(r"Successfully installed (.*)", made.stdout) == [f"recurra-{recurra.__version__}"]
    version = environment.run("recurra", "--version")
    assert version.stdout == f"recurra {recurra.__version__}\n", version.stderr


@pytest.fixture(scope="module")
def without_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What the two commands at the head of the list make."""
    found = closure(written_requirements()).values()
    environment = make_environment(tmp_path_factory.mktemp("environment") / "short", found)
    for arguments in (("-r", WITHOUT_TORCH), ("--no-deps", wheel)):
        made = environment.pip("install", *arguments)
        assert made.returncode == 0, made.stderr
    return environment


@pytest.fixture
def models(onnx_exports: dict[str, Path], linear_run: Path, tmp_path: Path) -> list[Path]:
    """A graph; a linear model as an export, as its run, and as what a comparison recommends."""
    export_run(linear_run, tmp_path / "exported-linear")
    comparison = tmp_path / "comparison"
    shutil.copytree(linear_run, comparison / "runs" / "linear")
    BestRunRecord(folder="runs/linear", model="linear", seed=0, why="the best.").write(comparison / BEST_NAME)
    return [onnx_exports["int8"], tmp_path / "exported-linear", linear_run, comparison]


def test_graphs_and_linear_models_need_the_short_list_alone(
    without_torch: Environment, models: list[Path], tmp_path: Path
) -> None:
    environment = without_torch
    for name in ("torch", "transformers", "pyarrow", "jinja2"):
        assert environment.run("python", "-c", f"import {name}").stderr.endswith(f"No module named '{name}'\n")
    labels = {folder: Classifier.open(folder).predict(TEXTS).tolist() for folder in models}
    for folder, wanted in labels.items():
        predicted = environment.run("recurra", "predict", folder, *TEXTS, "--json")
        assert predicted.returncode == 0, predicted.stderr
        assert [row["label"] for row in json.loads(predicted.stdout)["predictions"]] == wanted

    (tmp_path / "t.csv").write_text("text\nnot bad\n", encoding="utf-8")
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    for source, name, code in (("t.csv", "p.jsonl", 0), ("t.csv", "p.parquet", 2), ("t.parquet", "q.jsonl", 2)):
        written = environment.run("recurra", "predict", models[0], "-i", tmp_path / source, "-o", tmp_path / name)
        assert (written.returncode, (tmp_path / name).exists()) == (code, code == 0), written.stderr
        assert code == 0 or "pip install pyarrow" in written.stderr

    served = [f"m{number}={folder}" for number, folder in enumerate(models)]
    command = [environment.folder / "bin" / "recurra", "serve", *served, "--port", 0, "--threads", 1]
    with started(command, environment.variables) as (_, said):
        assert urlsplit(said["url"]).hostname == "127.0.0.1"
        for number, wanted in enumerate(labels.values()):
            status, answer = ask(said["url"], {"text": TEXTS[0], "model": f"m{number}"})
            assert status == 200, answer
            assert answer["results"][0]["predictions"][0]["label"] == wanted[0]


def packages_of(path: Path) -> dict[str, str]:
    """The components of a bill of materials that fits its schema, by name, with their versions."""
    text = path.read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    about = document["metadata"]["component"]
    assert (document["bomFormat"], about["name"], about["version"]) == ("CycloneDX", "recurra", recurra.__version__)
    assert about["licenses"][0]["license"]["id"] == "Apache-2.0"
    for one in document["components"]:
        assert one["purl"].startswith(f"pkg:pypi/{canonicalize_name(one['name'])}@{one['version']}")
    return {canonicalize_name(one["name"]): one["version"] for one in document["components"]}


def test_bills_of_materials_name_all_that_is_installed(source: Path, without_torch: Environment) -> None:
    """As `make sbom` writes them; what the image installs stands here without asking an index for it."""
    make(source, "sbom", IMAGE=without_torch.folder, but=("wheel", "installed-image"))
    of_wheel = source / "dist" / f"recurra-{recurra.__version__}-py3-none-any.cdx.json"
    of_image = source / "dist" / f"recurra-{recurra.__version__}-image.cdx.json"
    locked = [line for name in ("torch", "run") for line in (LOCKED / f"{name}.txt").read_text("utf-8").splitlines()]
    assert set(packages_of(of_wheel)) == {line.partition("==")[0] for line in locked if line[:1].isalpha()}
    assert of_wheel.read_text(encoding="utf-8").count('"content": "') == sum("--hash=" in line for line in locked)
    installed = {name: found.version for name, found in closure(written_requirements()).items()}
    assert packages_of(of_image) == installed


def test_what_is_not_there_is_asked_for_in_one_line(
    without_torch: Environment, run: Path, linear_run: Path, tmp_path: Path
) -> None:
    source = tmp_path / "texts"
    source.mkdir()
    (source / "t.csv").write_text("text\nnot bad\n", encoding="utf-8")
    command = ("recurra", "predict", linear_run, "--input", source, "--output", tmp_path / "out")
    refused = without_torch.run(*command)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    assert "pip install pyarrow, or give --part-format jsonl, csv or tsv" in refused.stderr
    assert not (tmp_path / "out").exists()
    done = without_torch.run(*command, "--part-format", "csv")
    assert done.returncode == 0, done.stderr
    # What needs the whole package says that, and nothing of Parquet.
    audited = without_torch.run("recurra", "audit", "data", source / "t.csv")
    assert (audited.returncode, audited.stderr.count("\n")) == (2, 1)
    assert audited.stderr.endswith("is not installed; pip install recurra\n"), audited.stderr
    for words in (("predict", run, "a text"), ("serve", run, "--port", 0), ("evaluate", run)):
        refused = without_torch.run("recurra", *words)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused.stderr
        assert "is not installed; pip install " in refused.stderr
