"""Packs a finished study into two files, as they are committed under ``results/``; see `recurra.core.packed`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from recurra.core.best_run import BEST_NAME, FINAL_NAME
from recurra.core.errors import CheckpointError
from recurra.core.exits_record import EXITS_NAME, read_exits
from recurra.core.files import atomic_path, locked_folder
from recurra.core.packed import (
    HISTORY_NAME,
    PREDICTIONS_NAME,
    RECORDS_NAME,
    RUNS_NAME,
    SPEC_NAME,
    in_study,
    line_of,
    packed_files,
    read_study_bytes,
    run_folders,
)
from recurra.core.record import RECORD_NAME, read_any_record
from recurra.deployment.export_record import EXPORTS_NAME, load_export_records
from recurra.evaluation.predictions import pack_predictions
from recurra.study.plan import ROWS_NAME

# Files that a report derives from the records and writes into a study's folder.
_DERIVED = {BEST_NAME, "summary.json", "exports.json"}
_FOLDERS = {RUNS_NAME, EXPORTS_NAME, ROWS_NAME, FINAL_NAME, "figures", "tables"}


@dataclass(frozen=True)
class PackedStudy:
    """Result of `pack_study`."""

    output: Path
    added: int
    replaced: int
    unfinished: int
    runs: int
    size_bytes: int


def pack_study(study: Path, output: Path) -> PackedStudy:
    """Packs the finished runs of a study, and the files beside them, into a packed study.

    Runs may lie in folders or be packed, as after going on with a packed study. Runs that the output
    has already are replaced; its other runs stay. The records are written last: killed at any moment, the packed study
    is whole, and the same call finishes what it began. The folder of the study is not touched.

    Raises:
        CheckpointError: If there is no finished run, or a file is damaged; nothing is written then.
        StorageError: If the packed study cannot be written.
    """
    folders = run_folders(study)
    runs = [path for path in folders if in_study(path / RECORD_NAME)]
    if not runs:
        raise CheckpointError(f"'{study}' holds no finished run; give the --output folder of a study")
    for run in runs:
        record = read_any_record(run)
        if record.run_id != run.name:
            raise CheckpointError(f"'{run}' holds the record of run '{record.run_id}'; name the folder like the run")
        read_exits(run)
    load_export_records(study)
    lines = {name: _line(study, name) for name in dict.fromkeys(_files(study, runs))}
    with locked_folder(output):
        before = packed_files(output)
        packed_before = {Path(name).parts[1] for name in before if Path(name).match(f"{RUNS_NAME}/*/{RECORD_NAME}")}
        names = {run.name for run in runs}
        others = {
            name: b'{"file": %s, "content": %s}\n' % (json.dumps(name, ensure_ascii=False).encode(), content)
            for name, content in before.items()
            if name not in lines and not (name.startswith(f"{RUNS_NAME}/") and name.split("/")[1] in names)
        }
        pack_predictions(output, runs)
        _write(output / RECORDS_NAME, [line for _, line in sorted((others | lines).items())])
        # Earlier versions wrote a copy of records into this file.
        (output / HISTORY_NAME).unlink(missing_ok=True)
    files = [output / name for name in (RECORDS_NAME, PREDICTIONS_NAME)]
    return PackedStudy(
        output,
        added=len(names - packed_before),
        replaced=len(names & packed_before),
        unfinished=len(folders) - len(runs),
        runs=len(names | packed_before),
        size_bytes=sum(file.stat().st_size for file in files if file.is_file()),
    )


def _files(study: Path, runs: Collection[Path]) -> Iterator[str]:
    """Files to be packed, by their path below the study: those on disk, and packed ones."""
    yield from packed_files(study)
    files = [run / name for run in runs for name in (RECORD_NAME, EXITS_NAME) if (run / name).is_file()]
    files += [path for path in (study / SPEC_NAME,) if path.is_file()]
    files += [path for path in study.glob("*.json") if path.name not in _DERIVED]
    files += [path for path in study.glob("*/*.json") if path.parent.name not in _FOLDERS]
    files += study.glob(f"{EXPORTS_NAME}/*/*.json")
    yield from (path.relative_to(study).as_posix() for path in files if not path.name.startswith("."))


def _line(study: Path, name: str) -> bytes:
    try:
        return line_of(name, read_study_bytes(study / name))
    except (OSError, ValueError) as error:
        kind = "JSON" if name.endswith(".json") else "text"
        raise CheckpointError(f"'{study / name}' cannot be read as {kind} ({error}); restore or delete it") from error


def _write(path: Path, lines: Collection[bytes]) -> None:
    """Writes lines atomically."""
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        stream.writelines(lines)
