"""What a job is asked for, and the folder that belongs to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recurra.core.best_run import no_run
from recurra.core.configuration import content_hash
from recurra.core.errors import ConfigurationError, StorageError, unknown
from recurra.core.files import FolderLock
from recurra.core.record import read_record
from recurra.core.sealed import SealedByValues
from recurra.data.tables import check_pyarrow
from recurra.deployment.export.manifest import is_export, read_manifest

JOB_NAME = "job.json"
TOKEN_PREFIX = ".shared-"
PART_FORMATS = ("parquet", "jsonl", "csv", "tsv")


class JobManifest(SealedByValues):
    """What the predictions of a folder are of: a second start must ask for the same.

    Attributes:
        model: Run that the model is of.
        model_hash: Hash of the run's record, or of the export's manifest.
        precision: Precision to compute in, if the user asked for one.
        text_column: Column with the text.
        part_format: Format of the files of predictions.
    """

    schema_version: Literal[1] = 1
    model: str
    model_hash: str
    precision: str | None
    text_column: str
    part_format: str


@dataclass(frozen=True)
class Job:
    """Many files to predict.

    Attributes:
        model: Run or export.
        source: Folder of the input files.
        output: Folder of the predictions.
        text_column: Column with the text.
        precision: Precision to compute in; none takes the model's own.
        batch_size: Texts of 32 tokens a batch.
        part_format: Format of the files of predictions.
    """

    model: Path
    source: Path
    output: Path
    text_column: str = "text"
    precision: str | None = None
    batch_size: int = 64
    part_format: str = "parquet"

    def manifest(self) -> JobManifest:
        """What is asked for.

        Raises:
            ConfigurationError: If the format is unknown.
            CheckpointError: If the model is neither a run nor an export.
            UnavailableError: If the predictions are to be Parquet and pyarrow is not installed.
        """
        if self.part_format not in PART_FORMATS:
            raise ConfigurationError(unknown("format of parts", self.part_format, PART_FORMATS))
        if self.part_format == "parquet":
            check_pyarrow("or give --part-format jsonl, csv or tsv")
        model, model_hash = identify(self.model)
        made = JobManifest(
            model=model,
            model_hash=model_hash,
            precision=self.precision,
            text_column=self.text_column,
            part_format=self.part_format,
        )
        return made.model_copy(update={"content_hash": made.hashed()})


def identify(model: Path) -> tuple[str, str]:
    """The run that a model is of, and a hash that no other model has.

    Raises:
        CheckpointError: If it is neither a run nor an export.
    """
    if is_export(model):
        export = read_manifest(model)
        return export.run_id, export.content_hash
    if not model.is_dir():
        raise no_run(model)
    record = read_record(model)
    return record.run_id, record.content_hash or content_hash(record.model_dump(mode="json"), length=64)


@contextlib.contextmanager
def owned_folder(job: Job, wanted: JobManifest) -> Iterator[None]:
    """Holds the output folder for this process, and removes what a killed one had begun to write.

    Raises:
        StorageError: If another process is at it, it cannot be written, or something else lies there.
        ConfigurationError: If it holds predictions that were asked for differently.
    """
    folder = job.output
    path = folder / JOB_NAME
    if folder.exists() and not folder.is_dir():
        raise StorageError(f"'{folder}' is a file, where a folder is needed; choose another --output")
    if folder.is_dir() and not path.exists() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
        raise StorageError(f"'{folder}' is not empty and holds no job of ours; choose another --output")
    with FolderLock(folder):
        if path.exists():
            _check_same(folder, JobManifest.read(path, what="a job of ours", cure="choose another --output"), wanted)
        else:
            wanted.write(path)
        for pattern in (".*.part", f"{TOKEN_PREFIX}*"):
            for leftover in folder.glob(pattern):
                leftover.unlink(missing_ok=True)
        yield


def _check_same(folder: Path, found: JobManifest, wanted: JobManifest) -> None:
    if found.model_hash != wanted.model_hash:
        raise ConfigurationError(
            f"'{folder}' holds predictions of another model (of the run '{found.model}'); choose another --output"
        )
    for name in ("text_column", "part_format", "precision"):
        option = f"--{name.replace('_', '-')}"
        before, now = getattr(found, name), getattr(wanted, name)
        if before != now:
            raise ConfigurationError(
                f"'{folder}' was begun with {option} {before or 'left out'}, not {now or 'left out'}; give the same, "
                "or choose another --output"
            )
