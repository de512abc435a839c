"""The parts of a job: one for each input file, each with a manifest that says that it is done."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recurra.core.errors import CheckpointError, DataError, StorageError
from recurra.core.sealed import SealedByValues
from recurra.data.tables import STREAM_FORMATS, format_of

MANIFEST_SUFFIX = ".part.json"
_NAME_DIGITS = 10


@dataclass(frozen=True)
class Partition:
    """One input file and where its predictions go.

    Attributes:
        source: The file.
        name: Its path below the input folder, with ``/``.
        output: The file of predictions.
    """

    source: Path
    name: str
    output: Path

    @property
    def manifest(self) -> Path:
        """The file that says that it is done."""
        return self.output.with_name(self.output.stem + MANIFEST_SUFFIX)

    def plain(self) -> dict[str, str]:
        """Returns plain JSON values."""
        return {"source": str(self.source), "name": self.name, "output": str(self.output)}

    @classmethod
    def parse(cls, values: dict[str, str]) -> Partition:
        """Reads what `plain` wrote."""
        return cls(Path(values["source"]), values["name"], Path(values["output"]))


class PartManifest(SealedByValues):
    """A finished part.

    Attributes:
        name: The input file, below the input folder.
        source_bytes: Its size.
        source_sha256: Hash of its content.
        job: Hash of what the job was asked for, the model among it.
        output: Name of the file of predictions.
        output_bytes: Its size.
        rows: Texts.
        empty: Texts without a character but white space.
        labels: Rows by predicted label.
        node: Machine that made it.
        wall_s: Seconds that it took.
    """

    schema_version: Literal[1] = 1
    name: str
    source_bytes: int
    source_sha256: str
    job: str
    output: str
    output_bytes: int
    rows: int
    empty: int
    labels: dict[str, int]
    node: str
    wall_s: float


def find_partitions(folder: Path, output: Path, suffix: str) -> list[Partition]:
    """The parts of a folder, sorted by name; what begins with a dot or an underscore is no input.

    Args:
        folder: Folder with files, or with folders of files.
        output: Folder of the predictions.
        suffix: Ending of a file of predictions.

    Raises:
        DataError: If there is no file of a format that is read, or one whose name is no Unicode.
        StorageError: If the predictions would lie among the inputs, or the inputs among the predictions.
    """
    inside, outside = folder.resolve(), output.resolve()
    if outside.is_relative_to(inside) or inside.is_relative_to(outside):
        raise StorageError(
            f"'{output}' and the input '{folder}' lie one inside the other: predictions would be taken for inputs; "
            "choose another --output"
        )
    paths = [path for path in inside.rglob("*") if format_of(path) in STREAM_FORMATS and path.is_file()]
    names = {path.relative_to(inside).as_posix(): path for path in paths}
    names = {name: path for name, path in names.items() if not _hidden(name)}
    if not names:
        raise DataError(f"'{folder}' holds no file to predict; allowed: {', '.join(STREAM_FORMATS)}")
    for name in names:
        if not _is_unicode(name):
            raise DataError(f"{name!r} in '{folder}' has a name that is not UTF-8; rename it")
    return [Partition(names[name], name, outside / f"{_stem(name)}{suffix}") for name in sorted(names)]


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _is_unicode(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _stem(name: str) -> str:
    # Names of files that differ only in folder or ending stay apart, whichever other files come or go.
    digest = hashlib.sha256(name.encode("utf-8")).hexdigest()[:_NAME_DIGITS]
    return f"{Path(name).stem[:80]}-{digest}"


def hash_of(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}; check the file and its permissions") from error


def finished(partition: Partition, job: str) -> PartManifest | None:
    """The manifest of a part that needs no more work; none if it has to be made, or made again.

    Args:
        partition: The part.
        job: Hash of what is asked for.
    """
    if not partition.manifest.is_file():
        return None
    try:
        found = PartManifest.read(partition.manifest, what="a part of ours", cure="it is made again")
        if found.job != job or found.output_bytes != partition.output.stat().st_size:
            return None
        if found.source_bytes != partition.source.stat().st_size or found.source_sha256 != hash_of(partition.source):
            return None
    except (CheckpointError, DataError, OSError):
        return None
    return found


def forget_unfinished(partition: Partition) -> bool:
    """Removes what a worker that died had begun to write; returns whether there was any."""
    unfinished = list(partition.output.parent.glob(f".{glob.escape(partition.output.name)}.*.part"))
    for path in unfinished:
        path.unlink(missing_ok=True)
    return bool(unfinished)


def total_of(parts: Sequence[PartManifest]) -> dict[str, Any]:
    """Sums of finished parts as plain JSON values."""
    labels: dict[str, int] = {}
    for part in parts:
        for label, rows in part.labels.items():
            labels[label] = labels.get(label, 0) + rows
    return {
        "files": len(parts),
        "rows": sum(part.rows for part in parts),
        "empty": sum(part.empty for part in parts),
        "labels": dict(sorted(labels.items())),
    }
