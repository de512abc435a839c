"""A forked process is what a Python of its own would be; only its imports are done."""

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

from recurra.study import fork_server
from recurra.study.fork_server import Forked, ForkServer, starting
from recurra.study.process import Call, Ended, Start, ask, follow, start_python

pytestmark = pytest.mark.slow

PROBE = """
import json, os, sys
if sys.argv[1:] == ["told"]:
    import torch
    from threadpoolctl import threadpool_info

    name = __name__, os.path.basename(sys.argv[0])
    seen = os.getcwd(), os.environ.get("WORD"), os.environ["TOKENIZERS_PARALLELISM"], sys.stdin.read()
    pools = sorted({pool["num_threads"] for pool in threadpool_info()})
    print(json.dumps([name, seen, torch.get_num_threads(), pools, sys.flags.optimize]))
if sys.argv[1:] == ["imports"]:
    before = set(sys.modules)
    import recurra.tasks.classification.engine, recurra.evaluation.audits.overlap, accelerate, transformers.trainer
    import sklearn.ensemble, sklearn.linear_model, sklearn.svm, recurra.deployment.classifier
    print(sorted(set(sys.modules) - before))
if sys.argv[1:] == ["much"]:
    sys.stdout.write("o" * 300_000)
    sys.stderr.write("e" * 300_000 + "\\nend\\n")
if sys.argv[1:] == ["raises"]:
    raise ValueError("no rows \u2013 none")
if sys.argv[1:] == ["interrupts"]:
    os.kill(os.getpid(), __import__("signal").SIGINT)
if sys.argv[1:] == ["killed"]:
    os.kill(os.getpid(), 9)
if sys.argv[1:] == ["pipe"]:
    raise BrokenPipeError("of its own")
if sys.argv[1:] == ["waits"]:
    print("waiting", file=sys.stderr, flush=True)
    __import__("time").sleep(60)
if sys.argv[1:] == ["orphan"]:
    print(os.getppid(), file=sys.stderr)
if sys.argv[1:2] == ["code"]:
    sys.exit(int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("probe")
    (path / "recurra_probe.py").write_text(PROBE, encoding="utf-8")
    (path / "elsewhere").mkdir()
    before = Path.cwd()
    os.chdir(path)
    yield path
    os.chdir(before)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ForkServer]:
    with ForkServer() as made:
        if not made.is_ready():
            pytest.skip("processes are forked on Linux alone, and without an accelerator")
        yield made


def probe(*arguments: str, **values: object) -> Call:
    return Call("recurra_probe", arguments, **values)  # type: ignore[arg-type]


def test_it_is_told_what_a_python_of_its_own_is_told(
    server: ForkServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", "wörd")
    call = probe("told", input="größer\n" * 20_000, threads=2)
    forked, own = ask(call, server.start), ask(call)
    assert own.code == 0 and own.output.startswith('[["__main__", "recurra_probe.py"]')
    assert forked == own
    assert ", 2, [2], 0]" in own.output


def test_it_runs_in_the_folder_that_was_named(server: ForkServer, folder: Path) -> None:
    ended = ask(probe("told", threads=1, cwd=folder / "elsewhere"), server.start)
    assert str(folder / "elsewhere") in ended.output and ", 1, [1], 0]" in ended.output


@pytest.mark.parametrize(
    "arguments", [["code", "0"], ["code", "5"], ["raises"], ["interrupts"], ["killed"], ["pipe"], ["much"], []]
)
def test_its_end_is_that_of_a_python_of_its_own(server: ForkServer, arguments: list[str]) -> None:
    forked, own = ask(probe(*arguments), server.start), ask(probe(*arguments))
    assert forked == own
    codes = {"raises": 1, "interrupts": -signal.SIGINT, "killed": -9, "pipe": 1}
    assert own.code == (int(arguments[1]) if arguments[:1] == ["code"] else codes.get("".join(arguments), 0))


def test_a_run_finds_its_libraries_imported(server: ForkServer) -> None:
    assert ask(probe("imports"), server.start).output.strip() == "[]"


def test_many_at_once_each_have_their_own(server: ForkServer) -> None:
    ended: dict[int, Ended] = {}

    def one(number: int) -> None:
        ended[number] = ask(probe("code", str(number)), server.start)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {number: end.code for number, end in ended.items()} == {number: number for number in range(24)}


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_it_is_ended_when_it_is_asked_to(server: ForkServer, how: str) -> None:
    child = server.start(probe("waits"))
    assert isinstance(child, Forked) and child.stderr.readline() == "waiting\n"
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)
    getattr(child, how)()
    assert follow(child, print).code == {"terminate": -signal.SIGTERM, "kill": -signal.SIGKILL}[how]
    child.terminate()


def test_who_stops_listening_ends_it(server: ForkServer) -> None:
    def stop(line: str) -> None:
        raise KeyboardInterrupt(line)

    child = server.start(probe("waits"))
    with pytest.raises(KeyboardInterrupt):
        follow(child, stop)
    assert child.wait(10) == -signal.SIGKILL


def is_alive(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_children_end_with_the_server_and_none_is_lost(folder: Path, how: str) -> None:
    with ForkServer() as server:
        if not server.is_ready():
            pytest.skip("processes are forked on Linux alone, and without an accelerator")
        child = server.start(probe("waits"))
        assert isinstance(child, Forked) and child.stderr.readline() == "waiting\n"
        if how == "killed":
            assert server._server is not None
            server._server.kill()
            assert child.wait(10) == -signal.SIGTERM
            # The next one imports for itself.
            assert isinstance(started_with(server.start), subprocess.Popen)
    assert follow(child, print).code == -signal.SIGTERM
    end = time.perf_counter() + 10
    while is_alive(child.pid) and time.perf_counter() < end:
        time.sleep(0.01)
    assert not is_alive(child.pid)


def test_where_nothing_is_forked_a_python_is_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with starting(forked=True) as start:
        assert isinstance(started_with(start), subprocess.Popen)
    monkeypatch.undo()
    with starting(forked=False) as start:
        assert start is start_python
    monkeypatch.setattr(fork_server, "_launch", refuse)
    with starting(forked=True) as start:
        assert isinstance(started_with(start), subprocess.Popen)


def started_with(start: Start) -> object:
    child = start(probe("code", "0"))
    assert follow(child, print).code == 0
    return child


def refuse(_: object) -> subprocess.Popen[bytes]:
    raise OSError("no more processes")


def test_where_there_is_an_accelerator_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert not fork_server._may_fork()


def test_no_room_for_another_process_is_no_end_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to_fork() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refuse_to_fork)
    assert fork_server._fork() is None


def test_nor_is_a_process_with_threads() -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n"
    code += "from recurra.study.fork_server import _may_fork; print(_may_fork())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
