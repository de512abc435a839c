"""Runs side by side, in workers and on a Ray cluster: one that fails stops no other, and each has its reason.

At first the worker is a stand-in that does what its seed says; at the end are the workers themselves.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from factories import finish
from recurra.core.errors import ConfigurationError, RunError, UnavailableError
from recurra.core.files import locked_folder
from recurra.core.progress import Reporter
from recurra.core.record import read_record
from recurra.data.configuration import DataConfig
from recurra.models.names import PRESETS
from recurra.study import ray_executor
from recurra.study.executor import EXECUTE, LocalExecutor, choose_next, rough_weight, threads_of
from recurra.study.plan import PlannedRun, claim_folder, read_state, run_folder
from recurra.study.ray_executor import Answer, Cluster, RayExecutor, collect, run_on_node
from recurra.study.workers import Ended, Workers
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine
from recurra.training.protocols import PROTOCOLS
from tiny_runs import tiny_run

DONE, REFUSED, KILLED, SILENT, LIES, SLOW = range(6)

WORKER = """#!{python}
import json, os, pathlib, shutil, signal, sys, time, yaml
assert sys.argv[1:3] == ["-m", "recurra.study.worker"], sys.argv
made = pathlib.Path({made!r})
for line in sys.stdin:
    function, machine, (folder,) = json.loads(line)
    folder, machine = pathlib.Path(folder), json.loads(machine)
    seed = yaml.safe_load((folder / "config.yaml").read_text())["seed"]
    print("working on", seed, "in", pathlib.Path.cwd(), flush=True)
    code = 0
    if seed == {SLOW}:
        (made / "started").touch()
        time.sleep(100)
    elif seed == {REFUSED}:
        error = {{"error": "the file has no column 'text'", "kind": "DataError", "code": 2}}
        (folder / "error.json").write_text(json.dumps(error))
        code = 2
    elif seed == {KILLED}:
        os.kill(os.getpid(), signal.SIGKILL)
    elif seed == {SILENT}:
        sys.exit(5)
    elif seed != {LIES}:
        for name in ("model", "checkpoints"):
            (folder / name).mkdir()
            (folder / name / "weights").write_bytes(b"1234")
        shutil.copy(made / f"{{seed}}.json", folder / "record.json")
    print("\\n\\x1e" + json.dumps({{"code": code, "reusable": True}}), flush=True)
"""


def config(seed: int, model: str = "baseline", **data: Any) -> RunConfig:
    return make_run(model, DataConfig(name="demo", **data), PROTOCOLS["paper"], seed=seed, precision="fp32")


CONFIG, OTHER = config(DONE), config(9)


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a study; a stand-in in the interpreter's place copies records that are prepared here."""
    for made in (CONFIG, OTHER):
        (finish(tmp_path / "made", made) / "record.json").rename(tmp_path / "made" / f"{made.seed}.json")
    names = {"DONE": DONE, "REFUSED": REFUSED, "KILLED": KILLED, "SILENT": SILENT, "LIES": LIES, "SLOW": SLOW}
    script = tmp_path / "python"
    text = WORKER.format(python=sys.executable, made=str(tmp_path / "made"), **names)
    script.write_text(text, encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("recurra.study.workers.sys.executable", str(script))
    return tmp_path / "study"


def work(output: Path, *seeds: int, tell: Callable[[PlannedRun], str] = lambda _: "") -> dict[int, PlannedRun]:
    with Workers(2, threads=1) as pool:
        executor = LocalExecutor(output, Machine(threads=1), pool, reporter=Reporter(quiet=True), tell=tell)
        outcomes = executor.execute([config(seed) for seed in seeds])
    assert sorted(outcome.config.seed for outcome in outcomes) == sorted(seeds)
    return {outcome.config.seed: outcome for outcome in outcomes}


def test_a_run_that_fails_does_not_stop_the_others(output: Path) -> None:
    taken = run_folder(output, config(8))
    taken.mkdir(parents=True)
    (taken / "thesis.tex").touch()
    outcomes = work(output, 8, REFUSED, KILLED, SILENT, LIES, DONE, 9)
    assert {seed for seed, outcome in outcomes.items() if outcome.record is not None} == {DONE, 9}
    assert (outcomes[REFUSED].error, outcomes[REFUSED].exit_code) == ("the file has no column 'text'", 2)
    assert "killed by signal 9: working on 2" in str(outcomes[KILLED].error)
    assert "exit code 5" in str(outcomes[SILENT].error) and outcomes[SILENT].exit_code == 5
    assert outcomes[LIES].exit_code == 1
    assert "is not empty and not a run folder of ours" in str(outcomes[8].error) and outcomes[8].exit_code == 2
    for seed in (KILLED, SILENT):
        log = run_folder(output, config(seed)) / "log.txt"
        assert str(log) in str(outcomes[seed].error)
        assert f"working on {seed}" in log.read_text(encoding="utf-8")
    for seed in (REFUSED, KILLED, SILENT, LIES):
        found = read_state(output, config(seed))
        assert (found.state, found.reason) == ("failed", outcomes[seed].error), seed
    # Only a record of this very configuration counts.
    assert (read_state(output, OTHER).state, read_state(output, config(10)).state) == ("done", "to do")
    run_folder(output, OTHER).rename(run_folder(output, config(10)))
    assert read_state(output, config(10)).state == "interrupted"


def test_an_interruption_stops_the_workers(output: Path, tmp_path: Path) -> None:
    def interrupt(_: PlannedRun) -> str:
        deadline = time.monotonic() + 30
        while not (tmp_path / "made" / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(output, DONE, SLOW, tell=interrupt)
    # Ended by us: that is no failure.
    assert read_state(output, config(SLOW)).state == "interrupted"


@pytest.mark.parametrize(("threads", "workers", "wanted"), [(0, 4, 2), (3, 1, 3), (0, 16, 1)])
def test_the_cores_are_shared_out_and_a_machine_comes_back_from_json(threads: int, workers: int, wanted: int) -> None:
    machine = threads_of(Machine(threads=threads, data_root=Path("data")), 8, workers)
    assert machine.threads == wanted and Machine.from_json(machine.to_json()) == machine


def test_runs_begin_in_the_plan_s_order_and_the_last_few_by_length() -> None:
    def ends(queue: list[RunConfig], workers: int) -> list[float]:
        """When each worker ends, if a run takes as long as its weight."""
        free = [0.0] * workers
        while queue:
            worker = free.index(min(free))
            free[worker] += rough_weight(queue.pop(choose_next(queue, workers)))
        return free

    plan = [config(seed, model) for seed in range(4) for model in ("recurrent", "baseline")]
    assert [choose_next(plan, workers) for workers in (1, 2, 3)] == [0, 0, 0]
    assert choose_next(plan[:4], 2) == 1
    assert choose_next([config(0, "linear"), *plan[:1]], 2) == 1
    total = sum(map(rough_weight, plan))
    assert total / (2 * max(ends(list(plan), 2))) > 0.9
    assert rough_weight(plan[1]) == 2.25 * rough_weight(plan[0]) > 0 == rough_weight(config(0, "linear"))
    for model in PRESETS:
        assert rough_weight(config(0, model)) == 2 * rough_weight(config(0, model, fraction=0.5)) > 0


# A cluster that is not there, or not suited: one clear line, soon.


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379", "host:port", "host:70000", "ray://host:10001"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the address of a Ray cluster; give HOST:PORT"):
        Cluster(address).check()


def test_an_unreachable_address_or_a_port_of_something_else_is_one_clear_line_soon(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "HEALTH_S", 0.5)
    study, output = tmp_path / "s.yaml", tmp_path / "out"
    study.write_text("name: s\ndata: [{name: demo, tokenizer: trained}]\nmodels: [linear]\n", encoding="utf-8")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        start = time.monotonic()
        err = refused("study", "run", study, "--output", output, "--executor", "ray", "--address", address)
        assert time.monotonic() - start < 30
        assert f"cannot reach the Ray cluster '{address}': Connection refused; start one with 'ray start --head'" in err
        server.listen()
        with pytest.raises(UnavailableError, match=r"no answer within 0 s|no Ray cluster answers there"):
            Cluster(address).check()


@pytest.mark.parametrize(
    ("option", "value"), [("--address", "auto"), ("--run-cpus", "2.0"), ("--run-gpus", "0.0"), ("--retries", "0")]
)
def test_options_of_a_cluster_are_refused_without_one(
    option: str, value: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert f"{option} is {value}, without a Ray cluster; add --executor ray" in refused(
        "study", "run", tmp_path / "s.yaml", option, value
    )


def test_without_a_package_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=r"Ray is not installed; pip install 'recurra\[study\]'"):
        Cluster("127.0.0.1:1").check()
    for name in [name for name in sys.modules if name.split(".")[0] == "lm_eval" or name == "recurra.study.harness"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(SystemExit, match="2"):
        runpy.run_module("recurra.study.harness", run_name="__main__")
    said = capsys.readouterr().err
    assert said == "error: lm-evaluation-harness is not installed; pip install 'recurra[harness]'\n"


def test_a_need_that_no_node_meets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    nodes = [{"Alive": True, "Resources": {"CPU": 8}}, {"Alive": True, "Resources": {"CPU": 2, "GPU": 1}}]
    nodes.append({"Alive": False, "Resources": {"CPU": 99, "GPU": 9}})
    ray = SimpleNamespace(
        init=lambda **_: calls.append("init"), shutdown=lambda: calls.append("shutdown"), nodes=lambda: nodes
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    for needs in ({"cpus": 8}, {"cpus": 2, "gpus": 1}):
        with Cluster(**needs).connected():
            pass
    said = r"needs 4 CPUs and 1 GPUs, but no node .* has both \(8 CPUs, 0 GPUs;"
    with pytest.raises(ConfigurationError, match=said), Cluster(cpus=4, gpus=1).connected():
        raise AssertionError("never")
    assert calls == ["init", "shutdown"] * 3


# What a node does.


def order(output: Path, *, shared: bool) -> tuple[Any, ...]:
    folder = run_folder(output, CONFIG)
    folder.mkdir(parents=True)
    claim_folder(CONFIG, folder)
    token = output / ".shared-1"
    token.write_text("mine" if shared else "another", encoding="ascii")
    return CONFIG.plain(), folder, Machine(threads=1).to_json(), (token, "mine"), output


def test_a_node_that_shares_the_folder_works_in_it_once_the_dead_node_s_process_is_gone(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = order(output, shared=True)
    lock = locked_folder(wanted[1])
    lock.__enter__()
    waits: list[float] = []

    def release(seconds: float) -> None:
        waits.append(seconds)
        lock.__exit__(None, None, None)

    monkeypatch.setattr(ray_executor.time, "sleep", release)
    answer = run_on_node(*wanted)
    assert (answer.ended.code, answer.files, len(waits)) == (0, {}, 1)
    assert read_state(output, CONFIG).state == "done"
    assert f"in {output}" in (run_folder(output, CONFIG) / "log.txt").read_text(encoding="utf-8")


def test_the_files_of_a_node_that_does_not_travel_back_the_record_last(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = output / "n"
    own.mkdir(parents=True)
    monkeypatch.setattr(ray_executor.tempfile, "mkdtemp", lambda **_: str(own))
    answer = run_on_node(*order(output, shared=False))
    assert set(answer.files) == {"config.yaml", "log.txt", "record.json", "model/weights"}
    assert not own.exists()
    assert read_state(output, CONFIG).state == "interrupted"
    folder = run_folder(output, CONFIG)
    written: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, to: written.append(Path(to).name) or replace(self, to))
    collect({"record.json": answer.files["record.json"], **answer.files}, folder)
    assert read_state(output, CONFIG).state == "done" and written[-1] == "record.json"
    assert (folder / "model" / "weights").read_bytes() == b"1234"
    with pytest.raises(RunError, match="does not belong in"):
        collect({"../outside.txt": b"x"}, folder)
    assert not (folder.parent / "outside.txt").exists()


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
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[PlannedRun], FakeRay]]:
    def run(configs: list[RunConfig], *answers: Any) -> tuple[list[PlannedRun], FakeRay]:
        ray = FakeRay(*answers)
        monkeypatch.setattr(Cluster, "connected", lambda _: nullcontext(ray))
        executor = RayExecutor(tmp_path, Machine(), 1, Cluster(cpus=3, retries=1), reporter=Reporter(quiet=True))
        by_run = {outcome.config.run_id: outcome for outcome in executor.execute(configs)}
        # The token of a driver that was killed goes too.
        assert not list(tmp_path.glob(".shared-*"))
        return [by_run[config.run_id] for config in configs], ray

    (tmp_path / ".shared-0123456789abcdef").write_text("left", encoding="utf-8")
    return run


def done(wanted: Order) -> Answer:
    made = wanted.folder.parents[1] / "made"
    shutil.copy(finish(made, wanted.config) / "record.json", wanted.folder)
    return Answer("node", Ended(0, ""))


def late(wanted: Order) -> Answer:
    done(wanted)
    raise DiedError


def test_a_run_whose_node_died_is_started_again_unless_it_was_done(execute: Any) -> None:
    outcomes, ray = execute([CONFIG, OTHER], DiedError(), done, late)
    assert all(outcome.record is not None for outcome in outcomes)
    assert [wanted.config for wanted in ray.orders] == [CONFIG, CONFIG, OTHER]
    assert all(wanted.threads == 3 for wanted in ray.orders)


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
    (failed, other), ray = execute([CONFIG, OTHER], *answers, done)
    assert said in failed.error and read_state(tmp_path, CONFIG).state == "failed"
    assert other.record is not None and len(ray.orders) == len(answers) + 1


# The workers: one that dies takes only its own call with it, and none outlives its study.

PROBE = """
import sys, time

def allocate(mib):
    len(bytearray(mib * 2**20))

def say(words):
    print(words)

def unfinished_line():
    sys.stdout.write("no end")

def wait(path):
    open(path, "w").close()
    time.sleep(100)
"""


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    (tmp_path / "probe.py").write_text(PROBE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    with Workers(1, threads=3) as pool:
        yield pool


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_process_takes_all_calls_and_what_ends_it_ends_one_call(workers: Workers) -> None:
    said: list[str] = []
    first = workers.call("os:getpid")
    assert workers.call("os:getpid") == first and first.code == 0
    assert workers.call("os:getenv", "OMP_NUM_THREADS").result == "3"
    assert workers.call("probe:unfinished_line", say=said.append) == Ended(0, "no end")
    assert workers.call("os:system", "echo a word >&2; exit 1", say=said.append).result == 256
    # Whatever the locale.
    assert workers.call("probe:say", "größe \ud800", say=said.append) == Ended(0, "größe \\ud800")
    assert said == ["no end", "a word", "größe \\ud800"]
    # A disk that has no room for a line of the log ends no run.
    if (full := Path("/dev/full")).exists():
        assert workers.call("probe:say", "more words", log=full) == Ended(0, "more words")
    # A mistake of a user's leaves the worker as it was.
    mistake = workers.call(EXECUTE, "/nowhere", machine=Machine())
    assert mistake.code == 2 and mistake.last.startswith("error: ") and "/nowhere" in mistake.last
    # The peak of one call is not that of the next; where the system does not count anew, another process does.
    before = workers.call("recurra.core.environment:peak_memory_mib").result
    assert workers.call("probe:allocate", 300).code == 0
    assert workers.call("recurra.core.environment:peak_memory_mib").result < before + 100
    assert not sys.platform.startswith("linux") or workers.call("os:getpid") == first
    for function, argument, code in (("os:_exit", 5, 5), ("signal:raise_signal", 9, -9), ("json:loads", "{", 1)):
        pid = workers.call("os:getpid").result
        assert workers.call(function, argument).code == code
        assert workers.call("os:getpid").result != pid

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt(line)

    pid = workers.call("os:getpid").result
    with pytest.raises(KeyboardInterrupt):
        workers.call("builtins:print", "a word", say=interrupt)
    assert workers.call("os:getpid").result != pid, "who stops listening ends it"
    # Libraries read their threads when they are loaded.
    assert workers.call("os:getenv", "OMP_NUM_THREADS", threads=2).result == "2"


def test_all_are_stopped_those_that_start_later_too(workers: Workers, tmp_path: Path) -> None:
    ended: list[Ended] = []
    calls = [
        threading.Thread(target=lambda path=str(tmp_path / name): ended.append(workers.call("probe:wait", path)))
        for name in "ab"
    ]
    for call in calls:
        call.start()
    wait_for(tmp_path / "a")
    wait_for(tmp_path / "b")
    workers.stop()
    for call in calls:
        call.join(30)
    assert [each.code for each in [*ended, workers.call("os:getpid")]] == [-signal.SIGKILL] * 3


def test_a_worker_ends_with_its_maker_in_the_middle_of_a_call(workers: Workers, tmp_path: Path) -> None:
    code = "import sys; from recurra.study.workers import Workers; workers = Workers(1, 1)\n"
    code += "print(workers.call('os:getpid').result, flush=True); workers.call('probe:wait', sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path / "begun")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        pid = int(maker.stdout.readline())
        wait_for(tmp_path / "begun")
        maker.kill()
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_a_run_is_the_same_to_the_bit_first_or_third_in_a_worker(tmp_path: Path) -> None:
    wanted = [tiny_run(tmp_path), tiny_run(tmp_path, seed=1)]
    data = DataConfig(name=str(tmp_path / "reviews.csv"))
    wanted.append(make_run("linear", data, PROTOCOLS["paper"], seed=0, precision="fp32"))
    machine = Machine(threads=1, latency=False, cache_dir=tmp_path / "cache")

    def results(name: str, order: list[int]) -> dict[int, tuple[object, list[bytes]]]:
        found: dict[int, tuple[object, list[bytes]]] = {}
        with Workers(1, threads=1) as worker:
            for number in order:
                folder = tmp_path / name / str(number)
                folder.mkdir(parents=True)
                claim_folder(wanted[number], folder)
                assert worker.call(EXECUTE, str(folder), say=print, machine=machine).code == 0
                record = read_record(folder)
                weights = sorted(
                    path for path in (folder / "model").iterdir() if path.suffix in (".safetensors", ".npz")
                )
                found[number] = record.metrics, [path.read_bytes() for path in weights]
                assert 50 < record.training.peak_memory_mib < 1_000
        return found

    forwards, backwards = results("a", [0, 1, 2]), results("b", [2, 1, 0])
    assert forwards == backwards and forwards[0] != forwards[1]
