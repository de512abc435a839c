"""Files are whole or absent, folders belong to one process."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from recurra.core import files as folders
from recurra.core.errors import DataError, StorageError
from recurra.core.files import (
    LOCK_NAME,
    atomic_folder,
    atomic_path,
    locked_folder,
    read_json,
    storage_errors,
    write_json,
    write_text,
)
from reviews import snapshot


def test_text_and_json_come_back_as_written(tmp_path: Path) -> None:
    write_text(tmp_path / "deep" / "er" / "text", "ä\n\0")
    assert (tmp_path / "deep" / "er" / "text").read_text(encoding="utf-8") == "ä\n\0"
    values = {"b": [1, 2.5, None, "ü"], "a": {}}
    write_json(tmp_path / "values.json", values)
    assert read_json(tmp_path / "values.json") == values
    assert list(read_json(tmp_path / "values.json")) == ["b", "a"]
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(tmp_path / "a.json")


KILLED_IN_THE_MIDDLE = """
import os, signal, sys
from recurra.core.files import atomic_path
with atomic_path(sys.argv[1]) as temporary:
    temporary.write_text("half")
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    print("writing", flush=True)
    sys.stdin.read()
"""


def writer(path: Path, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", KILLED_IN_THE_MIDDLE, str(path), what]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_what_a_killed_process_left_goes_with_the_next_start_and_what_is_held_stays(tmp_path: Path) -> None:
    write_text(tmp_path / "labels.csv", "old")
    with writer(tmp_path / "labels.csv", "die") as killed:
        assert killed.wait() == -signal.SIGKILL
    assert (tmp_path / "labels.csv").read_text() == "old"
    (abandoned,) = tmp_path.glob(".*.part")
    others = [tmp_path / ".download.part", tmp_path / ".a.UPPER123.part", tmp_path / "b.abcdefgh.part"]
    for path in others:
        path.write_text("not ours")
    with writer(tmp_path / "other.csv", "wait") as busy:
        assert busy.stdout is not None and busy.stdin is not None and busy.stdout.readline() == "writing\n"
        # It cleared up as it began; a third, later one leaves what it holds.
        assert not abandoned.exists() and len(list(tmp_path.glob(".other.csv.*.part"))) == 1
        with writer(tmp_path / "third.csv", "wait") as third:
            assert third.stdout is not None and third.stdout.readline() == "writing\n"
            assert len(list(tmp_path.glob(".other.csv.*.part"))) == 1
            third.communicate()
        busy.communicate()
    assert (tmp_path / "other.csv").read_text() == (tmp_path / "third.csv").read_text() == "half"
    assert sorted(tmp_path.glob(".*.part")) == sorted(others[:2]) and others[2].exists()


def test_files_are_written_where_there_are_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    write_text(tmp_path / "a", "whole")
    write(tmp_path / "b", "one")
    assert snapshot(tmp_path) == {"a": b"whole", **content("one", "b/")}


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_written_files_have_the_mode_that_the_umask_asks_for(umask: int, tmp_path: Path) -> None:
    program = """
import os, sys, tempfile
os.umask(int(sys.argv[2]))
from recurra.core.files import atomic_folder, write_text
write_text(sys.argv[1] + "/a", "whole")
with atomic_folder(sys.argv[1] + "/folder") as folder:
    os.close(tempfile.mkstemp(dir=folder)[0])
"""
    subprocess.run([sys.executable, "-c", program, tmp_path, str(umask)], check=True, timeout=60)
    modes = [path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()]
    assert modes == [0o666 & ~umask] * 2


@pytest.mark.parametrize(
    ("code", "at_the_last_flush", "words"),
    [
        (errno.ENOSPC, True, "no space left on the device; free some or choose another --output; what was there is un"),
        (errno.ENOSPC, False, "no space left on the device"),
        (errno.EDQUOT, True, "disk quota exceeded"),
        (errno.EACCES, True, "permission denied; choose a folder that you may write to"),
        (errno.EIO, True, os.strerror(errno.EIO)),
    ],
)
def test_a_refused_write_is_one_clear_line_and_loses_nothing(
    code: int, at_the_last_flush: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    path = tmp_path / "file"
    write_text(path, "old")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError) as caught, atomic_path(path) as temporary:
        temporary.write_text("half")
        if not at_the_last_flush:
            refuse()
    assert str(caught.value).startswith(f"cannot write '{path}': ") and words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == {"file": b"old"}


def test_a_file_in_the_place_of_a_folder_and_what_native_writers_say_of_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="a file stands where a folder is needed"):
        write_text(tmp_path / "file" / "inner", "y")
    with pytest.raises(StorageError, match="a file stands where a folder is needed"), locked_folder(tmp_path / "file"):
        pass
    with pytest.raises(StorageError, match="no space left on the device"), storage_errors(tmp_path):
        raise Exception("No space left on device (os error 28)")
    with pytest.raises(StorageError, match="file too large"), storage_errors(tmp_path):
        raise SafetensorError("I/O error: File too large (os error 27)")
    with pytest.raises(DataError, match="os error 2"), storage_errors(tmp_path):
        raise DataError("cannot read 'x' (os error 2)")


def test_what_is_held_is_refused_and_what_a_killed_process_left_is_taken(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("99999999")
    with locked_folder(tmp_path):
        assert (tmp_path / LOCK_NAME).read_text() == str(os.getpid())
        said = rf"in use by another process \(pid {os.getpid()}\)"
        with pytest.raises(StorageError, match=said), locked_folder(tmp_path):
            pass
    assert snapshot(tmp_path) == {}


def _hold(folder: Path, begun: Any) -> None:
    with locked_folder(folder):
        begun.set()
        time.sleep(100)


def test_another_process_is_named_and_its_folder_free_once_it_is_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, begun))
    holder.start()
    try:
        assert begun.wait(60)
        with pytest.raises(StorageError, match=rf"\(pid {holder.pid}\)"), locked_folder(tmp_path):
            pass
    finally:
        holder.kill()
        holder.join()
    with locked_folder(tmp_path):
        pass
    assert snapshot(tmp_path) == {}


def _count_up(folder: Path, rounds: int) -> None:
    for _ in range(rounds):
        while True:
            try:
                with locked_folder(folder):
                    counter = folder.parent / "counter"
                    value = int(counter.read_text())
                    time.sleep(0.0005)
                    counter.write_text(str(value + 1))
                break
            except StorageError:
                continue


def test_the_lock_holds_while_processes_take_turns(tmp_path: Path) -> None:
    (tmp_path / "counter").write_text("0")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_count_up, args=(tmp_path / "run", 40)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (tmp_path / "counter").read_text() == "120"


def fill(folder: Path, word: str) -> None:
    (folder / "deep").mkdir()
    (folder / "a.txt").write_text(word, encoding="utf-8")
    (folder / "deep" / "b.txt").write_text(word * 2, encoding="utf-8")


def write(target: Path, word: str, *, replace: bool = False) -> None:
    with atomic_folder(target, replace=replace) as folder:
        fill(folder, word)


def content(word: str, beside: str = "") -> dict[str, bytes]:
    return {f"{beside}a.txt": word.encode(), f"{beside}deep/b.txt": (word * 2).encode()}


def test_a_folder_appears_whole_with_nothing_beside_it_and_is_refused_or_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out"
    with pytest.raises(ZeroDivisionError), atomic_folder(target) as folder:
        fill(folder, "half")
        1 / 0
    assert list(target.parent.iterdir()) == []
    with atomic_folder(target) as folder:
        fill(folder, "one")
        assert not target.exists()
        with pytest.raises(StorageError, match=f"in use by another process \\(pid {os.getpid()}\\)"):
            write(target, "second")
    assert snapshot(target) == content("one")
    assert list(target.parent.iterdir()) == [target]
    (target / "only-old.txt").touch()
    with pytest.raises(StorageError, match="is there already; choose another --output, or replace it"):
        write(target, "two")
    with pytest.raises(ZeroDivisionError), atomic_folder(target, replace=True) as folder:
        fill(folder, "half")
        1 / 0
    assert snapshot(target) == {**content("one"), "only-old.txt": b""}
    write(target, "two", replace=True)
    assert snapshot(tmp_path / "new") == content("two", "out/")


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    write(tmp_path / "real", "one")
    link = tmp_path / "link"
    link.symlink_to("real")
    with pytest.raises(StorageError, match="is there already"):
        write(link, "two")
    write(link, "two", replace=True)
    assert link.is_symlink() and snapshot(tmp_path / "real") == content("two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    # One that appears meanwhile is not overwritten.
    target = tmp_path / "out"
    with pytest.raises(StorageError, match="is there already"), atomic_folder(target) as folder:
        fill(folder, "mine")
        target.mkdir()
        fill(target, "theirs")
    assert snapshot(target) == content("theirs")


def test_an_interrupt_between_the_two_steps_keeps_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_exchange", lambda *_: False)
    write(tmp_path / "out", "one")

    def interrupted(path: Path, target: Path, rename: Callable[[Path, Path], Path] = Path.rename) -> Path:
        if path.name == "new":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "out", "two", replace=True)
    assert snapshot(tmp_path) == content("one", "out/")
    write(tmp_path / "out", "two", replace=True)
    assert snapshot(tmp_path / "out") == content("two")


WORK = """
import os, signal, sys
from pathlib import Path
from recurra.core import files as folders
owner = Path if sys.argv[3] == "rename" else folders
calls = 0
def die(*arguments, original=getattr(owner, sys.argv[3])):
    global calls
    calls += 1
    if calls == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)
setattr(owner, sys.argv[3], die)
if sys.argv[3] == "rename":
    folders._exchange = lambda *_: False
with folders.atomic_folder(sys.argv[1], replace=True) as folder:
    (folder / "deep").mkdir()
    (folder / "a.txt").write_text(sys.argv[2])
    (folder / "deep" / "b.txt").write_text(sys.argv[2] * 2)
"""


@pytest.mark.parametrize(
    ("function", "call"), [("_flush", 1), ("_place", 1), ("_exchange", 1), ("rename", 1), ("rename", 2)]
)
def test_killed_at_any_moment_there_is_one_whole_folder_after_the_next_start(
    function: str, call: int, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    write(target, "old")
    done = subprocess.run([sys.executable, "-c", WORK, target, "new", function, str(call)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    # In two steps there is a moment without any folder: the old one then lies beside it, and is put back.
    assert target.exists() == ((function, call) != ("rename", 2))
    with pytest.raises(ZeroDivisionError), atomic_folder(target, replace=True):
        assert snapshot(target) == content("old")
        1 / 0
    write(target, "next", replace=True)
    assert snapshot(tmp_path) == content("next", "out/")
