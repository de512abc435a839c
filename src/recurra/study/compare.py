"""One call from a labelled file to a report: a study of one data set."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recurra.core.progress import Reporter
from recurra.data.configuration import DataConfig
from recurra.study.machine import Machine
from recurra.study.spec import StudySpec
from recurra.study.study import StudyResult, run_study

DEFAULT_MODELS = ("linear", "baseline", "recurrent")


def comparison(
    data: DataConfig,
    *,
    models: Sequence[str] = DEFAULT_MODELS,
    protocol: str = "tuned",
    protocol_overrides: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    precision: str = "fp32",
    title: str = "",
) -> StudySpec:
    """Returns the study that compares models on one data set."""
    stem = Path(data.name).stem
    name = "".join(character if character.isalnum() or character in "._-" else "-" for character in stem)
    return StudySpec.parse(
        {
            "name": (name.lstrip("._-") or "data")[:80],
            "title": title,
            "data": [data.plain()],
            "models": list(models),
            "protocols": [protocol],
            "protocol_overrides": list(protocol_overrides),
            "seeds": list(seeds),
            "precision": precision,
        },
        source="comparison",
    )


def compare(
    data: str | Path,
    *,
    models: Sequence[str] = DEFAULT_MODELS,
    seeds: int = 3,
    output: str | Path = "runs/compare",
    protocol: str = "tuned",
    precision: str = "fp32",
    data_root: str | Path | None = None,
    quiet: bool = False,
    **data_options: Any,
) -> StudyResult:
    """Trains and compares models on a labelled file or a corpus, and writes the report.

    Args:
        data: A file (CSV, TSV, JSONL, Parquet) or a corpus by name.
        models: Presets, ``linear``, or model files.
        seeds: Number of seeds.
        output: Folder of the study; what is done there is not done again.
        protocol: Training protocol.
        precision: ``fp32`` or ``bf16``.
        data_root: Local copies of public corpora.
        quiet: Whether to say nothing.
        data_options: Fields of `recurra.data.configuration.DataConfig`.

    Raises:
        RecurraError: If the data or the configuration cannot be used.
    """
    config = DataConfig.parse({"name": str(data), **data_options}, source="data")
    spec = comparison(config, models=models, protocol=protocol, seeds=range(seeds), precision=precision)
    command = f"recurra compare {shlex.quote(str(data))} --seeds {seeds} --output {shlex.quote(str(output))}"
    machine = Machine(data_root=Path(data_root) if data_root else None)
    return run_study(spec, Path(output), machine, reporter=Reporter(quiet=quiet), command=command)
