"""A folder is whole or absent, whatever happens while it is written."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recurra.core import files as folders
from recurra.core.errors import StorageError
from recurra.core.files import atomic_folder
from reviews import snapshot


def fill(folder: Path, word: str) -> None:
    (folder / "deep").mkdir()
    (folder / "a.txt").write_text(word, encoding="utf-8")
    (folder / "deep" / "b.txt").write_text(word * 2, encoding="utf-8")


def write(target: Path, word: str, *, replace: bool = False) -> None:
    with atomic_folder(target, replace=replace) as folder:
        fill(folder, word)


def content(word: str) -> dict[str, bytes]:
    return {"a.txt": word.encode(), "deep/b.txt": (word * 2).encode()}


def test_a_folder_appears_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out"
    with atomic_folder(target) as folder:
        fill(folder, "one")
        assert not target.exists()
        (folder / "a.txt").chmod(0o600)
    assert snapshot(target) == content("one")
    assert list(target.parent.iterdir()) == [target]
    assert (target / "a.txt").stat().st_mode & 0o777 == 0o644


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "out"
    for replace in (False, True):
        with pytest.raises(ZeroDivisionError), atomic_folder(target, replace=replace) as folder:
            fill(folder, "half")
            1 / 0
        assert list(tmp_path.iterdir()) == []
    write(target, "one")
    with pytest.raises(ZeroDivisionError), atomic_folder(target, replace=True):
        1 / 0
    assert snapshot(tmp_path) == {f"out/{name}": text for name, text in content("one").items()}


def test_an_existing_folder_is_refused_or_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "out"
    write(target, "one")
    (target / "only-old.txt").touch()
    with pytest.raises(StorageError, match="is there already; choose another --output, or replace it"):
        write(target, "two")
    assert (target / "only-old.txt").exists()
    write(target, "two", replace=True)
    assert snapshot(tmp_path) == {f"out/{name}": text for name, text in content("two").items()}


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    write(tmp_path / "real", "one")
    link = tmp_path / "link"
    link.symlink_to("real")
    with pytest.raises(StorageError, match="is there already"):
        write(link, "two")
    write(link, "two", replace=True)
    assert link.is_symlink() and snapshot(tmp_path / "real") == content("two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_a_folder_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(StorageError, match="is there already"), atomic_folder(target) as folder:
        fill(folder, "mine")
        write_directly = target
        write_directly.mkdir()
        fill(write_directly, "theirs")
    assert snapshot(tmp_path) == {f"out/{name}": text for name, text in content("theirs").items()}


def test_without_an_exchange_of_the_system_it_is_replaced_in_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_exchange", lambda *_: False)
    write(tmp_path / "out", "one")
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
    assert not target.exists() if (function, call) == ("rename", 2) else snapshot(target) == content("old")
    if (function, call) == ("rename", 2):
        with pytest.raises(ZeroDivisionError), atomic_folder(target, replace=True):
            1 / 0
        assert snapshot(target) == content("old")
    write(target, "next", replace=True)
    assert snapshot(tmp_path) == {f"out/{name}": text for name, text in content("next").items()}


def test_two_processes_do_not_write_one_folder(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with atomic_folder(target) as folder:
        fill(folder, "first")
        with pytest.raises(StorageError, match=f"in use by another process \\(pid {os.getpid()}\\)"):
            write(target, "second")
    assert snapshot(target) == content("first")


def test_no_space_is_one_clear_line_and_leaves_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with pytest.raises(StorageError, match="cannot write") as caught, atomic_folder(tmp_path / "out") as folder:
            (folder / "big.bin").write_bytes(b"x" * 20_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(tmp_path / "out") in str(caught.value)
    assert list(tmp_path.iterdir()) == []
