"""What a run costs: training operations counted exactly from the lengths of its rows.

A training step is a forward pass and a backward pass of twice its operations (Kaplan et al. 2020, section 2.1); an
epoch is every training row once, at its own length and without padding. Early stopping may end a run sooner, so a run's
cost is the most that it can take. What an epoch costs is kept beside the cached tokens, because counting it anew means
to load and tokenise the data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recurra.core.configuration import content_hash
from recurra.core.errors import StorageError
from recurra.core.files import read_json, write_json
from recurra.tasks.base import DataCost, task_of_data
from recurra.tasks.machine import Machine
from recurra.tasks.runs import RunConfig

BACKWARD = 2  # passes that the backward pass costs
_AUXILIARY, _UNLABELLED = " on auxiliary rows", " on texts without labels"
_PACKAGE = Path(__file__).resolve().parents[1]


class CostBook:
    """Costs of runs; data are looked at once.

    Args:
        machine: Where data lie and tokens are cached.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._stamp: str | None = None
        self._data: dict[str, tuple[Path, DataCost]] = {}

    def training_flops(self, run: RunConfig, epochs: int | None = None) -> float | None:
        """Operations of a run's training.

        Args:
            run: The run.
            epochs: How many epochs; none takes the most that its protocol allows. Those of pretraining come on top,
                each counted as one of the classifier: the most that they can take but for the guesses themselves.

        Returns:
            The operations; none for a control, whose solver decides how long it works.

        Raises:
            RecurraError: If the data or the model configuration cannot be used.
        """
        if run.is_control:
            return None
        path, data = self._look_at(run)
        model = content_hash([run.model, run.model_overrides])
        parts = {"": data.lengths, _AUXILIARY: data.auxiliary_lengths, _UNLABELLED: data.unlabelled_lengths}
        if any(model + part not in data.flops for part in parts):
            engine = task_of_data(run.data).engine
            for part, lengths in parts.items():
                flops = (1 + BACKWARD) * engine.epoch_flops(run, lengths, data) if lengths else 0.0
                data.flops[model + part] = flops
            _keep(path, data)
        passes = run.protocol.max_epochs if epochs is None else epochs
        of_part = {
            "": passes + run.protocol.pretraining_epochs,
            _AUXILIARY: run.protocol.auxiliary_epochs,
            _UNLABELLED: passes if run.teachers else 0,
        }
        return sum(data.flops[model + part] * count for part, count in of_part.items())

    def data(self, run: RunConfig) -> DataCost:
        """What an epoch on a run's data is made of.

        Raises:
            RecurraError: If the data cannot be used.
        """
        return self._look_at(run)[1]

    def _look_at(self, run: RunConfig) -> tuple[Path, DataCost]:
        key = content_hash([run.data.plain(), run.data_hash])
        if key not in self._data:
            folder = self.machine.cache_dir or Path.home() / ".cache" / "recurra" / "tokens"
            path = folder / f"{content_hash([key, self._sources()])}.cost.json"
            self._data[key] = path, _kept(path) or task_of_data(run.data).data_cost(run.data, self.machine)
        return self._data[key]

    def _sources(self) -> str:
        """What the counts depend on besides the configuration: the local corpora, and our own code."""
        if self._stamp is None:
            folders = [_PACKAGE / "data", _PACKAGE / "models"]
            folders += [self.machine.data_root] if self.machine.data_root else []
            self._stamp = content_hash([_stamp(folder) for folder in folders])
        return self._stamp


def _kept(path: Path) -> DataCost | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return DataCost(**read_json(path))
    return None


def _keep(path: Path, data: DataCost) -> None:
    # A cache that cannot be written costs time only.
    with contextlib.suppress(StorageError):
        write_json(path, asdict(data), indent=None)


def _stamp(folder: Path) -> Sequence[Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [[path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
