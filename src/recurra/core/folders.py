"""Folders that are either whole or absent, whatever ends the process that writes them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from recurra.core.errors import StorageError
from recurra.core.files import FolderLock, storage_errors

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def atomic_folder(path: Path | str, *, replace: bool = False) -> Iterator[Path]:
    """Yields a temporary folder beside ``path``; on success it is flushed to disk and takes the place of ``path``.

    A reader sees no folder, the old one or the new one, never half of either, also after ``kill -9`` or a full disk.
    The temporary folder has a fixed name and is held by a lock: what a killed process left behind is removed by the
    next one, and two processes do not write one folder at a time.

    Args:
        path: The folder to write; its parent is made if missing.
        replace: Whether an existing folder is replaced; without it one is refused.

    Raises:
        StorageError: If there is one already, another process writes it, or it cannot be written. What was there is
            untouched then.
    """
    _refuse_present(Path(path), replace=replace)
    # A link to a folder stays; what it leads to is replaced.
    target = Path(path).resolve()
    staging = target.parent / f".{target.name}.part"
    fresh, old = staging / "new", staging / "old"
    try:
        with FolderLock(staging), _without_leftovers(fresh, old), storage_errors(target):
            _recover(target, fresh, old)
            fresh.mkdir()
            yield fresh
            _flush(fresh)
            _refuse_present(target, replace=replace)
            _place(fresh, target, old)
    finally:
        # Not empty while another process holds it.
        with contextlib.suppress(OSError):
            staging.rmdir()


@contextlib.contextmanager
def _without_leftovers(*leftovers: Path) -> Iterator[None]:
    try:
        yield
    finally:
        for leftover in leftovers:
            shutil.rmtree(leftover, ignore_errors=True)


def _refuse_present(target: Path, *, replace: bool) -> None:
    if not replace and os.path.lexists(target):
        raise StorageError(f"'{target}' is there already; choose another --output, or replace it with --overwrite")
    if os.path.lexists(target) and not target.is_dir():
        raise StorageError(f"'{target}' is a file, where a folder is needed; choose another --output")


def _recover(target: Path, fresh: Path, old: Path) -> None:
    """Puts back what a killed process had moved aside, and removes what it had begun."""
    if old.exists() and not target.exists():
        old.rename(target)
    for leftover in (fresh, old):
        if leftover.exists():
            shutil.rmtree(leftover)


def _flush(folder: Path) -> None:
    for item in [*sorted(folder.rglob("*")), folder]:
        if item.is_file():
            item.chmod(0o644)
        handle = os.open(item, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _place(fresh: Path, target: Path, old: Path) -> None:
    if not target.exists():
        fresh.rename(target)
    elif not _exchange(fresh, target):
        target.rename(old)
        try:
            fresh.rename(target)
        except OSError:
            old.rename(target)
            raise


def _exchange(first: Path, second: Path) -> bool:
    """Exchanges two folders in one step where the system can (Linux, most file systems)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0)
