"""Files are whole or absent, folders belong to one process."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import SafetensorError

from recurra.core.errors import DataError, StorageError
from recurra.core.files import LOCK_NAME, FolderLock, atomic_path, read_json, storage_errors, write_json, write_text


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_and_json_come_back_as_written(tmp_path: Path) -> None:
    write_text(tmp_path / "deep" / "er" / "text", "ä\n\0")
    assert (tmp_path / "deep" / "er" / "text").read_text(encoding="utf-8") == "ä\n\0"
    values = {"b": [1, 2.5, None, "ü"], "a": {}}
    write_json(tmp_path / "values.json", values)
    assert read_json(tmp_path / "values.json") == values
    assert list(read_json(tmp_path / "values.json")) == ["b", "a"]
    assert (tmp_path / "values.json").stat().st_mode & 0o777 == 0o644


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
    with writer(tmp_path / "labels.csv", "die") as killed:
        assert killed.wait() == -signal.SIGKILL
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
    assert (tmp_path / "a").read_text() == "whole" and [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("old", [None, "old"])
def test_a_kill_in_the_middle_leaves_the_old_file(old: str | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if old is not None:
        write_text(path, old)
    with writer(path, "die") as killed:
        assert killed.wait() == -signal.SIGKILL
    assert (path.read_text() if path.exists() else None) == old
    write_text(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            errno.ENOSPC,
            "no space left on the device; free some or choose another --output; what was there is untouched",
        ),
        (errno.EDQUOT, "disk quota exceeded"),
        (errno.EACCES, "permission denied; choose a folder that you may write to"),
        (errno.EROFS, "read-only file system"),
        (errno.EFBIG, "file too large"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_a_refused_write_is_one_clear_line_and_loses_nothing(code: int, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(StorageError) as caught, atomic_path(path) as temporary:
        temporary.write_text("half")
        raise OSError(code, os.strerror(code))
    assert str(caught.value).startswith(f"cannot write '{path}': ") and words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == ["file"]


def test_a_full_disk_at_the_last_flush_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_text(path, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="no space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == ["file"]


def test_a_file_in_the_place_of_a_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="a file stands where a folder is needed"):
        write_text(tmp_path / "file" / "inner", "y")
    with pytest.raises(StorageError, match="a file stands where a folder is needed"), FolderLock(tmp_path / "file"):
        pass


def test_what_native_writers_say_of_a_full_disk_is_understood(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no space left on the device"), storage_errors(tmp_path):
        raise Exception("No space left on device (os error 28)")
    with pytest.raises(StorageError, match="file too large"), storage_errors(tmp_path):
        raise SafetensorError("I/O error: File too large (os error 27)")
    with pytest.raises(DataError, match="os error 2"), storage_errors(tmp_path):
        raise DataError("cannot read 'x' (os error 2)")


def test_a_folder_belongs_to_one_holder_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with FolderLock(folder):
        with (
            pytest.raises(StorageError, match=rf"is in use by another process \(pid {os.getpid()}\)"),
            FolderLock(folder),
        ):
            pass
        assert (folder / LOCK_NAME).read_text() == str(os.getpid())
    assert leftovers(folder) == []
    with FolderLock(folder):
        pass


HOLD = """
import sys
from recurra.core.files import FolderLock
with FolderLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("call", ["ftruncate", "pwrite"])
def test_a_lock_that_the_disk_refuses_is_one_clear_line_and_held_by_nobody(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(StorageError, match="no space left"), FolderLock(tmp_path):
            pass
    assert leftovers(tmp_path) == []
    with FolderLock(tmp_path):
        assert (tmp_path / LOCK_NAME).read_text() == str(os.getpid())


def test_another_process_is_refused_until_the_holder_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            with (
                pytest.raises(StorageError, match=rf"in use by another process \(pid {holder.pid}\)"),
                FolderLock(tmp_path),
            ):
                pass
        finally:
            holder.kill()
    assert (tmp_path / LOCK_NAME).exists()
    with FolderLock(tmp_path):
        assert (tmp_path / LOCK_NAME).read_text() == str(os.getpid())
    assert leftovers(tmp_path) == []


def _count_up(folder: Path, rounds: int) -> None:
    """Adds to a counter that only the lock protects."""
    for _ in range(rounds):
        while True:
            try:
                with FolderLock(folder):
                    counter = folder.parent / "counter"
                    value = int(counter.read_text())
                    time.sleep(0.0005)
                    counter.write_text(str(value + 1))
                break
            except StorageError:
                continue


def test_the_lock_holds_while_processes_take_turns(tmp_path: Path) -> None:
    """Taking and leaving must not race: the file is removed at the end of each turn."""
    (tmp_path / "counter").write_text("0")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_count_up, args=(tmp_path / "run", 40)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert json.loads((tmp_path / "counter").read_text()) == 120


def test_json_that_is_nested_too_deeply_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(tmp_path / "a.json")
