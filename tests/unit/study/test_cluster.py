"""A Ray cluster that is not there, or not suited: one clear line, soon. What a node does, without a cluster."""

from __future__ import annotations

import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from factories import finish
from recurra.core.errors import ConfigurationError, RunError, UnavailableError
from recurra.core.files import locked_folder
from recurra.core.progress import Reporter
from recurra.data.configuration import DataConfig
from recurra.study import ray_executor as cluster_module
from recurra.study.plan import claim_folder, look_at, run_folder
from recurra.study.ray_executor import Answer, Cluster, RayExecutor, collect, run_on_node
from recurra.study.workers import Ended
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine
from recurra.training.protocols import PROTOCOLS

CONFIG = make_run("linear", DataConfig(name="demo"), PROTOCOLS["paper"], seed=0, precision="fp32")
OTHER = make_run("baseline", DataConfig(name="demo"), PROTOCOLS["paper"], seed=0, precision="fp32")


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379", "host:port", "host:70000", "ray://host:10001"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the address of a Ray cluster; give HOST:PORT"):
        Cluster(address).check()


def test_an_unreachable_address_is_one_clear_line_soon(tmp_path: Path, refused: Callable[..., str]) -> None:
    study, output = tmp_path / "s.yaml", tmp_path / "out"
    study.write_text("name: s\ndata: [{name: demo, tokenizer: trained}]\nmodels: [linear]\n", encoding="utf-8")
    address = f"127.0.0.1:{closed_port()}"
    start = time.monotonic()
    err = refused("study", "run", study, "--output", output, "--executor", "ray", "--address", address)
    assert time.monotonic() - start < 30
    assert f"cannot reach the Ray cluster '{address}': Connection refused; start one with 'ray start --head'" in err


@pytest.mark.parametrize(
    ("option", "value"), [("--address", "auto"), ("--run-cpus", "2.0"), ("--run-gpus", "0.0"), ("--retries", "0")]
)
def test_options_of_a_cluster_are_refused_without_one(
    option: str, value: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert f"{option} is {value}, without a Ray cluster; add --executor ray" in refused(
        "study", "run", tmp_path / "s.yaml", option, value
    )


def test_a_port_of_something_else_is_given_up_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "HEALTH_S", 0.5)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(UnavailableError, match=r"no answer within 0 s|no Ray cluster answers there"):
            Cluster(f"127.0.0.1:{server.getsockname()[1]}").check()


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=r"Ray is not installed; pip install 'recurra\[study\]'"):
        Cluster("127.0.0.1:1").check()


def fake_ray(monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, float]]) -> list[str]:
    calls: list[str] = []
    monkeypatch.setitem(
        sys.modules,
        "ray",
        SimpleNamespace(
            init=lambda **_: calls.append("init"),
            shutdown=lambda: calls.append("shutdown"),
            nodes=lambda: (
                [{"Alive": True, "Resources": node} for node in nodes]
                + [{"Alive": False, "Resources": {"CPU": 99, "GPU": 9}}]
            ),
        ),
    )
    return calls


def test_a_need_that_no_node_meets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_ray(monkeypatch, [{"CPU": 8}, {"CPU": 2, "GPU": 1}])
    for needs in ({"cpus": 8}, {"cpus": 2, "gpus": 1}):
        with Cluster(**needs).connected():
            pass
    said = r"needs 4 CPUs and 1 GPUs, but no node .* has both \(8 CPUs, 0 GPUs;"
    with pytest.raises(ConfigurationError, match=said), Cluster(cpus=4, gpus=1).connected():
        raise AssertionError("never")
    assert calls == ["init", "shutdown"] * 3


# What a node does.


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the worker that copies a record prepared here; returns the study's folder."""
    made = finish(tmp_path / "made", CONFIG) / "record.json"
    script = tmp_path / "python"
    script.write_text(
        f"""#!{sys.executable}
import json, pathlib, shutil, sys
folder = pathlib.Path(json.loads(sys.stdin.readline())[2][0])
print("in", pathlib.Path.cwd())
for name in ("model", "checkpoints"):
    (folder / name).mkdir()
    (folder / name / "weights").write_bytes(b"1234")
shutil.copy({str(made)!r}, folder)
print("\\n\\x1e" + json.dumps({{"code": 0, "reusable": True}}))
""",
        encoding="utf-8",
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("recurra.study.workers.sys.executable", str(script))
    return tmp_path / "study"


def order(output: Path, *, shared: bool) -> tuple[Any, ...]:
    folder = run_folder(output, CONFIG)
    folder.mkdir(parents=True)
    claim_folder(CONFIG, folder)
    token = output / ".shared-1"
    token.write_text("mine" if shared else "another", encoding="ascii")
    return CONFIG.plain(), folder, Machine(threads=1).to_json(), (token, "mine"), output


def test_a_node_that_shares_the_folder_works_in_it(worker: Path) -> None:
    answer = run_on_node(*order(worker, shared=True))
    assert (answer.ended.code, answer.files) == (0, {})
    assert look_at(worker, CONFIG).state == "done"
    assert f"in {worker}" in (run_folder(worker, CONFIG) / "log.txt").read_text(encoding="utf-8")


def test_the_files_of_a_node_that_does_not_travel_back(worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = worker / "n"
    own.mkdir(parents=True)
    monkeypatch.setattr("recurra.study.ray_executor.tempfile.mkdtemp", lambda **_: str(own))
    answer = run_on_node(*order(worker, shared=False))
    assert set(answer.files) == {"config.yaml", "log.txt", "record.json", "model/weights"}
    assert not own.exists()
    assert look_at(worker, CONFIG).state == "interrupted"
    folder = run_folder(worker, CONFIG)
    collect(answer.files, folder)
    assert look_at(worker, CONFIG).state == "done"
    assert (folder / "model" / "weights").read_bytes() == b"1234"


def test_the_record_is_collected_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, to: written.append(Path(to).name) or replace(self, to))
    collect({"record.json": b"{}", "a.txt": b"a", "z.txt": b"z"}, tmp_path)
    assert written == ["a.txt", "z.txt", "record.json"]


def test_a_file_that_would_leave_the_folder_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not belong in"):
        collect({"../outside.txt": b"x"}, tmp_path / "run")
    assert not (tmp_path / "outside.txt").exists()


def test_a_run_waits_until_the_process_of_the_dead_node_is_gone(worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = order(worker, shared=True)
    lock = locked_folder(wanted[1])
    lock.__enter__()
    waits: list[float] = []

    def release(seconds: float) -> None:
        waits.append(seconds)
        lock.__exit__(None, None, None)

    monkeypatch.setattr("recurra.study.ray_executor.time.sleep", release)
    assert run_on_node(*wanted).ended.code == 0
    assert len(waits) == 1


# What the driver makes of what comes back.


class DiedError(Exception):
    pass


class RaisedError(DiedError):
    cause = ModuleNotFoundError("No module named 'recurra'")


class Order(NamedTuple):
    config: RunConfig
    folder: Path
    threads: int


class FakeRay:
    """Answers in the order of ``answers``; each is a value, or an exception to be raised."""

    exceptions = SimpleNamespace(RayError=DiedError, RayTaskError=RaisedError)

    def __init__(self, *answers: Callable[[Order], Answer] | Exception) -> None:
        self.answers = list(answers)
        self.orders: list[Order] = []

    def remote(self, _: Any) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._submit))

    def _submit(self, config: dict[str, Any], folder: Path, machine: str, *_: Any) -> Any:
        self.orders.append(Order(RunConfig.parse(config), folder, Machine.from_json(machine).threads))
        answer, future = self.answers.pop(0), Future[Answer]()
        try:
            if isinstance(answer, Exception):
                raise answer
            future.set_result(answer(self.orders[-1]))
        except DiedError as error:
            future.set_exception(error)
        return SimpleNamespace(future=lambda: future)


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[dict[str, Any], FakeRay]]:
    def run(configs: list[RunConfig], *answers: Any, retries: int = 1) -> tuple[dict[str, Any], FakeRay]:
        from contextlib import nullcontext

        ray = FakeRay(*answers)
        monkeypatch.setattr(Cluster, "connected", lambda _: nullcontext(ray))
        cluster = Cluster(cpus=3, retries=retries)
        executor = RayExecutor(tmp_path, Machine(), 1, cluster, reporter=Reporter(quiet=True))
        outcomes = {outcome.config.run_id: outcome for outcome in executor.execute(configs)}
        assert not list(tmp_path.glob(".shared-*"))
        return outcomes, ray

    return run


def done(tmp_path: Path) -> Callable[[Order], Answer]:
    def answer(wanted: Order) -> Answer:
        shutil.copy(finish(tmp_path / "made", wanted.config) / "record.json", wanted.folder)
        return Answer("node", Ended(0, ""))

    return answer


def test_a_run_whose_node_died_is_started_again(tmp_path: Path, execute: Any) -> None:
    outcomes, ray = execute([CONFIG, OTHER], DiedError(), done(tmp_path), done(tmp_path))
    assert all(outcome.record is not None for outcome in outcomes.values()) and len(outcomes) == 2
    assert [wanted.config.model for wanted in ray.orders] == ["linear", "linear", "baseline"]
    assert all(wanted.threads == 3 for wanted in ray.orders)


def test_a_run_that_was_done_when_its_node_died_is_not_run_again(tmp_path: Path, execute: Any) -> None:
    def late(wanted: Order) -> Answer:
        done(tmp_path)(wanted)
        raise DiedError

    outcomes, ray = execute([CONFIG], late)
    assert outcomes[CONFIG.run_id].record is not None and len(ray.orders) == 1


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([DiedError(), DiedError()], "lost 2 times with the node that ran it"),
        ([RaisedError()], "No module named 'recurra'"),
        ([lambda _: Answer("node", Ended(-9, "working"))], "killed by signal 9: working"),
    ],
)
def test_a_run_that_a_node_fails_leaves_its_reason_and_stops_no_other(
    answers: list[Any], said: str, tmp_path: Path, execute: Any
) -> None:
    outcomes, ray = execute([CONFIG, OTHER], *answers, done(tmp_path))
    assert said in outcomes[CONFIG.run_id].error and look_at(tmp_path, CONFIG).state == "failed"
    assert outcomes[OTHER.run_id].record is not None and len(ray.orders) == len(answers) + 1


def test_the_token_of_a_driver_that_was_killed_goes_with_the_next_start(tmp_path: Path, execute: Any) -> None:
    (tmp_path / ".shared-0123456789abcdef").write_text("left", encoding="utf-8")
    execute([CONFIG], done(tmp_path))
