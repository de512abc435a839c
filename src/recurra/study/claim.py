"""Taking a run folder: fresh, the same run, or refused."""

from __future__ import annotations

from pathlib import Path

from recurra.core.configuration import read_yaml, write_yaml
from recurra.core.errors import StorageError
from recurra.core.files import is_part, write_text
from recurra.core.record import RECORD_NAME, AnyRecord, read_any_record
from recurra.tasks.runs import RunConfig

CONFIG_NAME = "config.yaml"
_OURS = {".lock", "log.txt", "error.json"}


def claim_folder(config: RunConfig, folder: Path) -> AnyRecord | None:
    """Writes the configuration into a fresh folder; returns the record if the same run is finished there.

    Raises:
        StorageError: If the folder holds another run or something else; nothing is touched then.
    """
    path = folder / CONFIG_NAME
    if path.exists():
        present = RunConfig.parse(read_yaml(path), source=f"'{path}'")
        if present.config_hash != config.config_hash:
            raise StorageError(
                f"'{folder}' holds another run ({present.run_id}, wanted {config.run_id}); choose another --output"
            )
        return read_any_record(folder) if (folder / RECORD_NAME).exists() else None
    # A process that was killed while it wrote the configuration leaves a part of it, which the next one removes.
    if any(item.name not in _OURS and not is_part(item.name) for item in folder.iterdir()):
        raise StorageError(f"'{folder}' is not empty and not a run folder of ours; choose another --output")
    write_text(path, write_yaml(config.plain()))
    return None


def load_run_config(folder: Path) -> RunConfig:
    """Reads the configuration of a run folder."""
    return RunConfig.parse(read_yaml(folder / CONFIG_NAME), source=f"'{folder / CONFIG_NAME}'")
