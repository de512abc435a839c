"""Workers take one call after the other; one that dies takes only its own call with it, and none outlives its study."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recurra.core.record import LabelRunRecord, read_record
from recurra.data.configuration import DataConfig
from recurra.study.executor import EXECUTE
from recurra.study.plan import claim_folder
from recurra.study.workers import Ended, Workers
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine
from recurra.training.protocols import PROTOCOLS
from tiny_runs import tiny_run

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
    assert said == ["no end", "a word"]
    # A mistake of a user's leaves the worker as it was.
    mistake = workers.call(EXECUTE, "/nowhere", machine=Machine())
    assert mistake.code == 2 and mistake.last.startswith("error: ") and "/nowhere" in mistake.last
    assert workers.call("os:getpid") == first
    for function, argument, code in (("os:_exit", 5, 5), ("signal:raise_signal", 9, -9), ("json:loads", "{", 1)):
        before = workers.call("os:getpid")
        assert workers.call(function, argument).code == code
        assert workers.call("os:getpid").result != before.result
    # Libraries read their threads when they are loaded.
    assert workers.call("os:getenv", "OMP_NUM_THREADS", threads=2).result == "2"


def test_what_it_says_arrives_in_any_locale(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert workers.call("probe:say", "größe \ud800") == Ended(0, "größe \\ud800")


def test_the_peak_of_one_call_is_not_that_of_the_next(workers: Workers) -> None:
    before = workers.call("recurra.core.environment:peak_memory_mib").result
    pid = workers.call("os:getpid").result
    assert workers.call("probe:allocate", 300).code == 0
    after = workers.call("recurra.core.environment:peak_memory_mib").result
    # Where the system does not count anew, another process does.
    assert after < before + 100
    assert not sys.platform.startswith("linux") or workers.call("os:getpid").result == pid


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


def test_who_stops_listening_ends_it(workers: Workers) -> None:
    pid = workers.call("os:getpid").result

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt(line)

    with pytest.raises(KeyboardInterrupt):
        workers.call("builtins:print", "a word", say=interrupt)
    assert workers.call("os:getpid").result != pid


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


def linear_run(root: Path) -> RunConfig:
    data = DataConfig(name=str(root / "reviews.csv"))
    return make_run("linear", data, PROTOCOLS["paper"], seed=0, precision="fp32")


@pytest.mark.slow
def test_a_run_is_the_same_to_the_bit_first_or_third_in_a_worker(tmp_path: Path) -> None:
    wanted = [tiny_run(tmp_path), tiny_run(tmp_path, seed=1), linear_run(tmp_path)]
    machine = Machine(threads=1, latency=False, cache_dir=tmp_path / "cache")

    def results(name: str, order: list[int]) -> dict[int, tuple[object, dict[str, bytes]]]:
        found: dict[int, tuple[object, dict[str, bytes]]] = {}
        with Workers(1, threads=1) as worker:
            for number in order:
                folder = tmp_path / name / str(number)
                folder.mkdir(parents=True)
                claim_folder(wanted[number], folder)
                assert worker.call(EXECUTE, str(folder), say=print, machine=machine).code == 0
                record = read_record(folder)
                assert isinstance(record, LabelRunRecord)
                weights = sorted(
                    path for path in (folder / "model").iterdir() if path.suffix in (".safetensors", ".npz")
                )
                found[number] = record.metrics, [path.read_bytes() for path in weights]
                assert 50 < record.training.peak_memory_mib < 1_000
        return found

    forwards, backwards = results("a", [0, 1, 2]), results("b", [2, 1, 0])
    for number in range(3):
        assert forwards[number] == backwards[number]
    assert forwards[0] != forwards[1]
