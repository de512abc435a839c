"""``export.json``: what an export folder is, where it comes from, and the hash of everything in it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.files import pickles_in
from recurra.core.model_files import MODEL_NAME, FileEntry, FileName, verify_file
from recurra.core.record import AnyDecisionRecord, CodeRecord, LabelRunRecord, read_record
from recurra.core.sealed import SealedByValues
from recurra.data.cleaning import CLEANINGS
from recurra.data.windows import MOST_WINDOWS
from recurra.deployment.export.formats.interface import StoredModel
from recurra.deployment.export.formats.registry import find_format, find_precision
from recurra.deployment.export.records import CalibrationRecord, CheckRecord, VocabularyRecord
from recurra.models.controls import holds_linear_model

MANIFEST_NAME = "export.json"
RUN_RECORD_NAME = "run-record.json"


class ExportManifest(SealedByValues):
    """What an export folder is.

    Attributes:
        run_id: The run that it was made from.
        record_hash: Hash of that run's record.
        format: A name of `recurra.deployment.export.formats.registry`.
        precision: Precision of the stored weights, one of the format's.
        created: When.
        code: Version that wrote it.
        label_names: Name of each class, by index of the logits.
        max_length: Tokens after which a text is cut, or a window of it, special tokens included; a linear model reads
            all of it.
        pad_token_id: Token that fills.
        cleaning: Name of the cleaning that texts get before the tokenizer.
        cleaning_steps: The same in words, in order.
        files: Every other file of the folder.
        check: How it compares with the run's model.
        exits: The exit rule that it carries, for a model with exits.
        decision: How logits become labels; none takes the most probable label, by their softmax.
        vocabulary: What a smaller vocabulary cost; none if it has the run's. The check is then against the run's model
            with that vocabulary.
        kind: ``transformer`` or ``linear``, as in the run's record.
        windows: Most windows that a text is read in, whose logits are averaged (`recurra.data.windows`).
    """

    schema_version: Literal[1] = 1
    run_id: str
    record_hash: str
    format: str
    precision: str
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
    decision: AnyDecisionRecord | None = None
    vocabulary: VocabularyRecord | None = None
    kind: Literal["transformer", "linear"] = "transformer"
    windows: int = Field(default=1, ge=1, le=MOST_WINDOWS)

    @field_validator("format")
    @classmethod
    def _known_format(cls, name: str) -> str:
        try:
            return find_format(name).name
        except ConfigurationError as error:
            raise ValueError(str(error)) from error

    @field_validator("precision")
    @classmethod
    def _known_precision(cls, name: str, info: ValidationInfo) -> str:
        try:
            # Without a format, that is what is wrong.
            return find_precision(info.data["format"], name).name if "format" in info.data else name
        except ConfigurationError as error:
            raise ValueError(str(error)) from error

    @property
    def size_bytes(self) -> int:
        """Bytes of all files that it lists."""
        return sum(entry.size_bytes for entry in self.files.values())

    @property
    def weights_bytes(self) -> int:
        """Bytes of the files that hold the weights."""
        return sum(self.files[name].size_bytes for name in find_format(self.format).weight_files if name in self.files)

    def stored_in(self, folder: Path) -> StoredModel:
        """The model that lies in the export's folder."""
        linear = self.kind == "linear"
        return StoredModel(folder, self.precision, self.max_length, self.pad_token_id, linear, self.windows)


def is_export(folder: Path | str) -> bool:
    """Whether a folder calls itself an export."""
    return (Path(folder) / MANIFEST_NAME).is_file()


def needs_torch(folder: Path | str) -> bool:
    """Whether reading a run or an export takes torch and transformers; that of a linear model never does."""
    if not is_export(folder):
        return not holds_linear_model(Path(folder) / MODEL_NAME)
    manifest = read_manifest(folder)
    return manifest.kind != "linear" and find_format(manifest.format).needs_torch


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
    if manifest.cleaning not in CLEANINGS:
        raise CheckpointError(
            f"'{folder}' wants texts cleaned by '{manifest.cleaning}', this version has {', '.join(CLEANINGS)}; "
            "export again"
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
        verify_file(folder / name, manifest.files.get(name), of="export", cure="copy it or export the run again")


def read_source_record(folder: Path | str) -> LabelRunRecord:
    """Reads the record of a run folder, or of the run that an export was made from.

    Raises:
        CheckpointError: If it is neither, or cannot be trusted.
    """
    if not is_export(folder):
        return read_record(folder)
    verify_files(Path(folder), read_manifest(folder), [RUN_RECORD_NAME])
    return read_record(Path(folder) / RUN_RECORD_NAME)
