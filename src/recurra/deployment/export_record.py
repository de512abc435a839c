"""Exports requested by a study, and the record of one export: the stored model's figures on the run's own splits."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import model_validator

from recurra.core.configuration import HashedSettings, Settings
from recurra.core.errors import ConfigurationError
from recurra.core.packed import study_files
from recurra.core.record import AnyRecord, CodeRecord, EnvironmentRecord, MetricsRecord
from recurra.core.sealed import Sealed
from recurra.deployment.engines.computation import Computation
from recurra.deployment.export.formats import find_precision
from recurra.deployment.export.manifest import CalibrationRecord, CheckRecord

EXPORTS_NAME = "exports"
# Suffix of an export's name for the same export with early exits.
WITH_EXITS = "+exits"
_ERROR_SUFFIX = ".error.json"


class ExportRequest(Settings):
    """One export of every Transformer of a study, once it is trained."""

    format: str = "safetensors"
    precision: str

    @model_validator(mode="after")
    def _known(self) -> ExportRequest:
        try:
            find_precision(self.format, self.precision)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def name(self) -> str:
        """Name of the folder and of the record."""
        return f"{self.format}-{self.precision}"


class ExportedSplit(HashedSettings):
    """The export and the run's model, computed in FP32, on the same rows."""

    metrics: MetricsRecord
    reference: MetricsRecord
    labels_changed: int
    only_export: int
    only_reference: int


class ExportedExits(HashedSettings):
    """The same export with early exits by its calibrated rule."""

    calibration: CalibrationRecord
    splits: dict[str, ExportedSplit]
    taken: dict[str, dict[int, int]]


class ExportRecord(Sealed):
    """The result of one export of one run; it has ``exits`` if a threshold keeps enough labels."""

    schema_version: Literal[1] = 1
    run_id: str
    record_hash: str
    format: str
    precision: str
    created: str
    code: CodeRecord
    environment: EnvironmentRecord
    computation: Computation
    weights_bytes: int
    folder_bytes: int
    splits: dict[str, ExportedSplit]
    check: CheckRecord
    exits: ExportedExits | None = None


def export_folder(output: Path, run_id: str, request: ExportRequest) -> Path:
    """Folder of an export of a study; its record is beside it."""
    return output / EXPORTS_NAME / run_id / request.name


def record_path(folder: Path) -> Path:
    """The record of the export in a folder."""
    return folder.with_name(f"{folder.name}.json")


def error_path(folder: Path) -> Path:
    """The file that says why the export in a folder failed when it was last tried."""
    return folder.with_name(f"{folder.name}{_ERROR_SUFFIX}")


def write_export_record(folder: Path, record: ExportRecord) -> None:
    """Writes the record beside the export, atomically and with its hash."""
    record.write(record_path(folder))


def read_export_record(path: Path) -> ExportRecord:
    """Reads the record of an export."""
    return ExportRecord.read(path, what="a record of an export", cure="restore it, or delete it to export again")


def fits(export: ExportRecord, record: AnyRecord) -> bool:
    """Whether an export was made of exactly this run; a run that was deleted and trained again is another run.

    Run records of schema 1 have no hash of their own and are matched by their identifier.
    """
    return export.run_id == record.run_id and (record.content_hash or export.record_hash) == export.record_hash


def load_export_records(output: Path) -> list[ExportRecord]:
    """Every export record of a study's folder, by run and name."""
    paths = study_files(output, f"{EXPORTS_NAME}/*/*.json")
    return [read_export_record(path) for path in paths if not path.name.endswith(_ERROR_SUFFIX)]
