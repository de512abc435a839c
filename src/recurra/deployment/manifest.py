"""``export.json``: what an export folder is, where it comes from, and the hash of everything in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from recurra.core.configuration import GrowingSettings, Settings
from recurra.core.errors import CheckpointError
from recurra.core.files import pickles_in
from recurra.core.record import CodeRecord, RunRecord, read_record
from recurra.core.sealed import Sealed
from recurra.data.cleaning import CLEANING_NAME
from recurra.deployment.calibration import CalibrationRecord
from recurra.deployment.computation import Computation

MANIFEST_NAME = "export.json"
RUN_RECORD_NAME = "run-record.json"

# One name, no folder: a manifest must not point outside its own.
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=100)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(Settings):
    """One file: its size and the SHA-256 of its content."""

    size_bytes: int
    sha256: Sha256


class CheckRecord(Settings):
    """The export held against the run's model on real rows, when it was made.

    Attributes:
        source: Which rows, in words.
        rows: How many.
        label_agreement: Share of rows with the same label.
        largest_logit_difference: Largest absolute difference of a logit.
        largest_logit: Largest absolute logit of the run's model, to judge the difference by.
        reference: How the run's model was computed.
        computation: How the export was computed.
        reference_accuracy: Accuracy of the run's model on the rows, where their labels are known.
        accuracy: Accuracy of the export.
    """

    source: str
    rows: int
    label_agreement: float
    largest_logit_difference: float
    largest_logit: float
    reference: Computation
    computation: Computation
    reference_accuracy: float | None = None
    accuracy: float | None = None

    @property
    def lost_points(self) -> float | None:
        """Points of accuracy that the export loses, where labels are known; negative if it gains."""
        if self.accuracy is None or self.reference_accuracy is None:
            return None
        return round(100 * (self.reference_accuracy - self.accuracy), 6)


class ExportManifest(Sealed, GrowingSettings):
    """What an export folder is.

    Attributes:
        run_id: The run that it was made from.
        record_hash: Hash of that run's record.
        format: ``safetensors`` or ``onnx``.
        precision: Precision of the stored weights.
        created: When.
        code: Version that wrote it.
        label_names: Name of each class, by index of the logits.
        max_length: Tokens after which a text is cut, special tokens included.
        pad_token_id: Token that fills.
        cleaning: Name of the cleaning that texts get before the tokenizer.
        cleaning_steps: The same in words, in order.
        files: Every other file of the folder.
        check: How it compares with the run's model.
        exits: The exit rule that it carries, for a model with exits.
    """

    # Exports without exits stay what they were, and versions without them read them.
    _LATER = frozenset({"exits"})

    schema_version: Literal[1] = 1
    run_id: str
    record_hash: str
    format: Literal["safetensors", "onnx"]
    precision: Literal["fp32", "bf16", "fp16", "int8"]
    created: str
    code: CodeRecord
    label_names: list[str] = Field(min_length=2)
    max_length: int = Field(ge=3)
    pad_token_id: int = Field(ge=0)
    cleaning: str
    cleaning_steps: list[str]
    files: dict[FileName, FileEntry]
    check: CheckRecord
    exits: CalibrationRecord | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all files that it lists."""
        return sum(entry.size_bytes for entry in self.files.values())


def is_export(folder: Path | str) -> bool:
    """Whether a folder calls itself an export."""
    return (Path(folder) / MANIFEST_NAME).is_file()


def needs_torch(folder: Path | str) -> bool:
    """Whether reading a run or an export takes torch and transformers: all but ONNX exports do."""
    return not is_export(folder) or read_manifest(folder).format != "onnx"


def describe_file(path: Path) -> FileEntry:
    """Size and hash of a file."""
    with path.open("rb") as stream:
        return FileEntry(size_bytes=path.stat().st_size, sha256=hashlib.file_digest(stream, "sha256").hexdigest())


def write_manifest(folder: Path, manifest: ExportManifest) -> ExportManifest:
    """Writes ``export.json`` with the hash of its content; returns what was written."""
    return manifest.write(folder / MANIFEST_NAME)


def read_manifest(folder: Path | str) -> ExportManifest:
    """Reads ``export.json`` and looks at no other file.

    Raises:
        CheckpointError: If there is none, it is not ours, a newer version wrote it, or it was changed.
    """
    path = Path(folder) / MANIFEST_NAME
    if not path.is_file():
        raise CheckpointError(f"'{folder}' is not an export: no {MANIFEST_NAME}; give a folder of 'recurra export'")
    manifest = ExportManifest.read(path, what="an export of ours", cure="export the run again")
    if manifest.cleaning != CLEANING_NAME:
        raise CheckpointError(
            f"'{folder}' wants texts cleaned by '{manifest.cleaning}', this version has '{CLEANING_NAME}'; export again"
        )
    return manifest


def read_export(folder: Path | str) -> ExportManifest:
    """Reads an export's manifest and holds every file against its hash.

    Raises:
        CheckpointError: If a file is missing, truncated or changed, or the folder holds a pickle.
    """
    manifest = read_manifest(folder)
    pickles = pickles_in(folder)
    if pickles:
        raise CheckpointError(
            f"'{folder}' holds '{pickles[0]}', a pickle, which can run code when it is read and is no part of an "
            "export; remove it"
        )
    verify_files(Path(folder), manifest, manifest.files)
    return manifest


def verify_files(folder: Path, manifest: ExportManifest, names: Iterable[str]) -> None:
    """Holds some files of an export against what its manifest says of them.

    Raises:
        CheckpointError: If one is missing, truncated or changed.
    """
    for name in names:
        path, wanted = folder / name, manifest.files.get(name)
        if wanted is None or not path.is_file():
            raise CheckpointError(f"'{path}' is missing: the export is not whole; copy it or export the run again")
        found = path.stat().st_size
        if found != wanted.size_bytes:
            raise CheckpointError(
                f"'{path}' has {found:,} bytes instead of {wanted.size_bytes:,}: truncated or changed; "
                "copy it or export the run again"
            )
        if describe_file(path).sha256 != wanted.sha256:
            raise CheckpointError(
                f"'{path}' was changed after the export: its hash does not fit; copy it or export the run again"
            )


def read_source_record(folder: Path | str) -> RunRecord:
    """Reads the record of a run folder, or of the run that an export was made from.

    Raises:
        CheckpointError: If it is neither, or cannot be trusted.
    """
    if not is_export(folder):
        return read_record(folder)
    verify_files(Path(folder), read_manifest(folder), [RUN_RECORD_NAME])
    return read_record(Path(folder) / RUN_RECORD_NAME)
