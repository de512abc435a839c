"""Dockerfile and compose.yaml, as far as they can be judged where no engine runs them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer.main
import yaml

import recurra
from recurra.cli.main import make_app
from recurra.deployment.serving.limits import ServerLimits
from served import prompt_server
from server_process import ask, started


@dataclass(frozen=True)
class Stage:
    """A stage: what it starts from, what it is called, and its instructions with their continued lines joined."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        return [value for instruction, value in self.instructions if instruction == name]

    def last(self, name: str) -> str:
        return self.all(name)[-1]

    def words(self, name: str) -> list[str]:
        """An instruction in its JSON form, which no shell reads."""
        value = self.last(name)
        found: list[str] = json.loads(value[value.index("[") :])
        assert all(isinstance(word, str) for word in found)
        return found


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
            stages.append(Stage(base, called))
        elif stages:
            stages[-1].instructions.append((name, value))
        else:
            assert name == "ARG", line
            key, _, default = value.partition("=")
            arguments[key] = default
    return arguments, stages


ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS, STAGES = read_stages(ROOT / "Dockerfile")
KEY = "0123456789abcdef-container"
HASHED = "--require-hashes --no-deps --requirement requirements/locked"
# As `make sbom` installs it; tests/end_to_end/test_wheel.py uses the packages of the list.
INSTALLED = [f"{HASHED}/serve.txt", "--no-deps /wheel/*.whl"]


def stage(name: str) -> Stage:
    (found,) = (one for one in STAGES if one.name == name)
    return found


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What ``recurra`` understands of its arguments."""
    command: Any = typer.main.get_command(make_app())
    serve = command.commands[arguments[0]]
    return dict(serve.make_context("serve", arguments[1:]).params)


def test_the_linter_has_nothing_to_say() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed (extra: dev)")
    said = subprocess.run([hadolint, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (0, ""), said.stdout


def test_each_variant_is_installed_from_files_that_are_there_by_commands_that_are_tested() -> None:
    copied = {word for value in stage("wheel").all("COPY") for word in value.split()[:-1]}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "src", "requirements"}
    # Nothing but these reaches the builder.
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[1] == "*" and {line[1:] for line in ignored if line.startswith("!")} == copied
    # The last pattern that fits decides.
    assert ignored[-2:] == ["**/__pycache__", "**/*.egg-info"]
    assert set(ARGUMENTS) == {"PYTHON", "ENGINE"}
    assert stage("installed").base == "install-${ENGINE}" and ARGUMENTS["ENGINE"] == "onnx"
    (short,) = stage("install-onnx").all("RUN")
    assert [part.split(" install ")[1] for part in short.split(" && ")] == INSTALLED
    (full,) = stage("install-torch").all("RUN")
    choice, *rest = full.split(" fi && ")
    assert [part.split(" install ")[1] for part in rest[0].split(" && ")] == [f"{HASHED}/serve-torch.txt", INSTALLED[1]]
    assert (
        '--require-hashes --no-deps --index-url "${TORCH_INDEX}"' in choice and "locked/torch-cpu.txt; else" in choice
    )
    assert f"{HASHED}/torch.txt --requirement requirements/locked/cuda.txt;" in choice
    wheel = f"recurra-{recurra.__version__}-py3-none-any.whl"
    for name in ("docs/how-to/serving.md", "requirements/onnx-serving.txt"):
        documented = re.findall(r"^[# ]*pip install (.*)$", (ROOT / name).read_text(encoding="utf-8"), re.M)
        assert documented == ["-r requirements/onnx-serving.txt", f"--no-deps {wheel}"]


def test_the_image_is_of_a_version_runs_as_nobody_in_particular_and_starts_a_server_that_can_be_reached() -> None:
    for one in STAGES:
        assert one.base.startswith(("python:", "wheel", "install-")), one.base
    assert re.fullmatch(r"3\.\d+-slim-[a-z]+", ARGUMENTS["PYTHON"])
    final = STAGES[-1]
    assert final.all("COPY") == ["--from=installed /opt/recurra /opt/recurra"]
    assert final.last("USER") == "10001:10001" and not final.all("RUN") and not final.all("ADD")
    assert final.last("EXPOSE") == "8000" and final.words("ENTRYPOINT") == ["recurra"]
    found = parsed(final.words("CMD"))
    assert (found["models"], found["host"], found["port"]) == (["/exports/model"], "0.0.0.0", 8000)


def health_check(port: int) -> int:
    words = STAGES[-1].words("HEALTHCHECK")
    assert words[0] == "python" and "127.0.0.1:8000/health/ready" in words[-1]
    command = [sys.executable, *words[1:-1], words[-1].replace(":8000", f":{port}")]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ["server", "prometheus"])
def test_every_service_is_shut_in(name: str) -> None:
    service = compose()["services"][name]
    assert service["user"].partition(":")[0] not in {"", "0", "root"}
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"cpus", "mem_limit", "pids_limit"} <= set(service)
    assert not {"privileged", "network_mode", "cap_add", "pid", "devices"} & set(service)
    for port in service["ports"]:
        assert str(port).startswith("127.0.0.1:"), port
    for volume in service["volumes"]:
        writable = isinstance(volume, str) or not volume.get("read_only")
        assert not writable or volume == "prometheus:/prometheus"


def test_the_server_of_the_compose_file_is_the_one_that_is_meant() -> None:
    document = compose()
    service = document["services"]["server"]
    assert service["user"] == STAGES[-1].last("USER")
    assert service["build"]["args"]["ENGINE"] in {one.name.removeprefix("install-") for one in STAGES}
    found = parsed(service["command"])
    (name, _, folder) = found["models"][0].partition("=")
    assert name == "model" and folder == service["volumes"][0]["target"]
    assert found["threads"] == service["cpus"]
    assert str(found["api_key_file"]) == f"/run/secrets/{service['secrets'][0]}"
    assert f"127.0.0.1:{found['port']}:{found['port']}" in service["ports"]
    limits = ServerLimits()
    patience_s = limits.body_timeout_s + limits.timeout_s + 1
    assert int(service["stop_grace_period"].removesuffix("s")) > patience_s


def test_prometheus_asks_the_server_with_its_key_and_the_health_check_tells_ready_from_not() -> None:
    document = compose()
    service = document["services"]["prometheus"]
    assert ":latest" not in service["image"] and re.search(r":v\d+\.\d+\.\d+$", service["image"])
    mounted = next(volume for volume in service["volumes"] if isinstance(volume, dict))
    (job,) = yaml.safe_load((ROOT / mounted["source"]).read_text(encoding="utf-8"))["scrape_configs"]
    assert f"--config.file={mounted['target']}" in service["command"]
    assert job["static_configs"] == [{"targets": ["server:8000"]}] and "server" in document["services"]
    assert job["authorization"] == {"type": "Bearer", "credentials_file": f"/run/secrets/{service['secrets'][0]}"}
    assert service["depends_on"] == {"server": {"condition": "service_healthy"}}
    with prompt_server(key=KEY) as server:
        scraped = server.get(job["metrics_path"], Authorization=f"Bearer {KEY}")
        # A key does not shut the check out.
        assert scraped.status == 200 and b"recurra_waiting_texts" in scraped.body and health_check(server.port) == 0
    assert health_check(server.port) != 0


PROGRAM = """
import resource, sys
from recurra.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
sys.exit(main(sys.argv[1:]))
"""


def test_the_server_writes_no_file(onnx_exports: dict[str, Path], tmp_path: Path) -> None:
    """As a root that is read only would have it: no file may get a byte, and there is no home."""
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n", encoding="utf-8")
    command = [sys.executable, "-c", PROGRAM, "serve", f"model={onnx_exports['fp32']}", "--port", 0, "--threads", 1]
    environment = {"HOME": "/nonexistent", "TMPDIR": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    with started([*command, "--api-key-file", key], environment) as (_, said):
        assert urlsplit(said["url"]).hostname == "127.0.0.1"
        assert ask(said["url"], {"text": "a lovely film"})[0] == 401
        status, answer = ask(said["url"], {"text": "a lovely film"}, Authorization=f"Bearer {KEY}")
        assert (status, answer["results"][0]["model"]) == (200, "model")
