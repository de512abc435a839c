"""Writes files that are either whole or absent, and folders that belong to one process at a time."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from recurra.core.errors import RecurraError, StorageError
from recurra.core.packed import read_study_bytes

LOCK_NAME = ".lock"
_PART = ".part"
# Names from `tempfile.mkstemp`; other files with the same ending are left alone.
_PART_NAME = re.compile(r"\..+\.[a-z0-9_]{8}\.part", re.DOTALL)
_cleared: set[str] = set()
# It can only be read by setting it. Files from `tempfile.mkstemp` do not heed it.
_umask = os.umask(0o077)
os.umask(_umask)
_MODE = 0o666 & ~_umask
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt", "*.joblib")


def pickles_in(folder: Path | str) -> list[str]:
    """Names of the files of a folder that, by their endings, hold pickles: reading one can run code."""
    return sorted({path.name for pattern in _PICKLES for path in Path(folder).glob(pattern)})


@contextlib.contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Turns an operating system's refusal to write into a `StorageError` that names the path and the cure."""
    try:
        yield
    except OSError as error:
        raise _explain(error, path) from error
    except RecurraError:
        raise
    except Exception as error:
        # Writers of libraries report the system's error as text: "I/O error: No space left on device (os error 28)".
        number = re.search(r"os error (\d+)", str(error))
        if number is None and not isinstance(error, SafetensorError):
            raise
        cause = OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))
        raise _explain(cause, path) from error


def _explain(error: OSError, path: Path | str) -> StorageError:
    cures = {
        errno.ENOSPC: "no space left on the device; free some or choose another --output; what was there is untouched",
        errno.EDQUOT: "disk quota exceeded; free some space or choose another --output; what was there is untouched",
        errno.EACCES: "permission denied; choose a folder that you may write to",
        errno.EPERM: "permission denied; choose a folder that you may write to",
        errno.EROFS: "read-only file system; choose another --output",
        errno.EFBIG: "file too large for this file system or limit; choose another --output",
        errno.ENOTDIR: "a file stands where a folder is needed; choose another --output",
        errno.EISDIR: "a folder stands where a file is needed; choose another --output",
        errno.EEXIST: "a file stands where a folder is needed; choose another --output",
        errno.ENAMETOOLONG: "the name is too long; choose a shorter --output",
    }
    cause = cures.get(error.errno or 0, error.strerror or str(error))
    return StorageError(f"cannot write '{path}': {cause}")


@contextlib.contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; on success it is flushed to disk and renamed over ``path``.

    A reader sees the old file or the new one, never half of either, even after ``kill -9`` or a full disk. Temporary
    files of a killed process are removed by the next one that writes into the folder; those still held stay.
    """
    target = Path(path)
    temporary: Path | None = None
    handle: int | None = None
    try:
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(target.parent)
            handle, temporary = _held_part(target)
            temporary.chmod(_MODE)
            yield temporary
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
            temporary.replace(target)
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)


def _held_part(target: Path) -> tuple[int, Path]:
    """A new file beside a target, and its handle, whose lock tells others that it is being written."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=_PART, dir=target.parent)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = os.fstat(handle).st_ino != Path(name).stat().st_ino
        except (BlockingIOError, FileNotFoundError):
            taken = True
        except OSError:
            # On a file system without locks, no process can tell which files are abandoned, so none removes them.
            taken = False
        if not taken:
            return handle, Path(name)
        # Another process removed the file between the two calls.
        os.close(handle)


def is_part(name: str) -> bool:
    """Whether `atomic_path` gives such a name to files that are not yet whole."""
    return _PART_NAME.fullmatch(name) is not None


def _remove_abandoned(folder: Path) -> None:
    """Removes files that killed processes left in a folder; each process looks once in each folder."""
    folder_path = str(folder.resolve())
    if folder_path in _cleared:
        return
    _cleared.add(folder_path)
    for path in folder.glob(f".*{_PART}"):
        if not is_part(path.name) or path.is_symlink() or not path.is_file():
            continue
        # A file that cannot be opened or removed belongs to another user.
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            finally:
                os.close(handle)


def write_text(path: Path | str, text: str) -> None:
    """Writes UTF-8 text atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def json_text(value: Any) -> str:
    """The text of a JSON document; non-finite numbers are refused, keys keep their order."""
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def write_json(path: Path | str, value: Any) -> None:
    """Writes one JSON document atomically, as `json_text`."""
    write_text(path, json_text(value))


def read_json(path: Path | str) -> Any:
    """Reads one JSON document (UTF-8), packed or not; raises a `ValueError` if it is not valid."""
    try:
        return json.loads(read_study_bytes(Path(path)).decode("utf-8"))
    except RecursionError as error:
        raise ValueError("the values are nested too deeply") from error


@contextlib.contextmanager
def locked_folder(folder: Path | str) -> Iterator[None]:
    """Holds a folder for one process, through an advisory lock that the system drops when the process dies.

    A second process that asks for the same folder gets a `StorageError` at once, unless the file system has no locks.
    """
    path = Path(folder) / LOCK_NAME
    with storage_errors(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with storage_errors(folder):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner_pid = os.pread(handle, 64, 0).decode("ascii", "replace").strip()
            os.close(handle)
            raise StorageError(
                f"'{path.parent}' is in use by another process (pid {owner_pid or 'unknown'}); "
                "wait for it to end, stop it, or choose another --output"
            ) from error
        except OSError:
            # On a file system without locks, nothing keeps two processes apart.
            pass
        # The last holder may have removed the file between our open and our lock; our lock then protects nothing.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == path.stat().st_ino:
                break
        os.close(handle)
    try:
        with storage_errors(folder):
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def atomic_folder(path: Path | str, *, replace: bool = False, mark: str = "") -> Iterator[Path]:
    """Yields a temporary folder beside ``path``; on success it is flushed to disk and takes the place of ``path``.

    A reader sees no folder, the old one or the new one, never half of either, even after ``kill -9`` or a full disk.
    The temporary folder has a fixed name and is locked, so that the next process removes what a killed one left, and
    two processes never write the same folder at the same time. ``mark`` is as in `refuse_present`.
    """
    refuse_present(Path(path), replace=replace, mark=mark)
    # A link to a folder stays, and the folder behind it is replaced.
    target = Path(path).resolve()
    staging = target.parent / f".{target.name}.part"
    fresh, old = staging / "new", staging / "old"
    try:
        with locked_folder(staging):
            try:
                with storage_errors(target):
                    # A killed process may have moved the folder aside, and begun another one.
                    if old.exists() and not target.exists():
                        old.rename(target)
                    for leftover in filter(Path.exists, (fresh, old)):
                        shutil.rmtree(leftover)
                    fresh.mkdir()
                    yield fresh
                    _flush(fresh)
                    refuse_present(target, replace=replace, mark=mark)
                    _place(fresh, target, old)
            finally:
                # While the target is missing, the old folder is the only copy: the next process puts it back.
                for leftover in (fresh, old) if target.exists() else (fresh,):
                    shutil.rmtree(leftover, ignore_errors=True)
    finally:
        # This fails while another process holds the folder, because it is not empty then.
        with contextlib.suppress(OSError):
            staging.rmdir()


def refuse_present(target: Path, *, replace: bool, mark: str = "") -> None:
    """Refuses to write a folder that exists, unless it may be replaced, or whose path is a file.

    A folder with files is replaced only if it has the file ``mark``, which everything of its kind has.
    """
    if not replace and os.path.lexists(target):
        raise StorageError(f"'{target}' is there already; choose another --output, or replace it with --overwrite")
    if os.path.lexists(target) and not target.is_dir():
        raise StorageError(f"'{target}' is a file, where a folder is needed; choose another --output")
    if mark and target.is_dir() and any(target.iterdir()) and not (target / mark).is_file():
        raise StorageError(f"'{target}' has files but no {mark}, and is not replaced; choose another --output")


def _flush(folder: Path) -> None:
    for path in [*sorted(folder.rglob("*")), folder]:
        if path.is_file():
            path.chmod(_MODE)
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _place(fresh: Path, target: Path, old: Path) -> None:
    if not target.exists():
        fresh.rename(target)
    elif not _exchange(fresh, target):
        try:
            target.rename(old)
            fresh.rename(target)
        except BaseException:
            if not target.exists():
                old.rename(target)
            raise


def _exchange(first: Path, second: Path) -> bool:
    """Exchanges two folders in one step where the system can (Linux, most file systems)."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0)
