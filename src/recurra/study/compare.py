"""One call from a labelled file to a report: a study of one data set."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recurra.core.progress import Reporter
from recurra.data.configuration import DataConfig
from recurra.data.tokenization import TRAINED
from recurra.study.assignments import configure_data
from recurra.study.machine import Machine
from recurra.study.spec import StudySpec
from recurra.study.study import StudyResult, run_study

DEFAULT_MODELS = ("linear", "baseline", "recurrent")
# The longest review of the demo corpus has fewer tokens.
DEMO_MAX_LENGTH = 64
DEMO_VOCAB_SIZE = 2000
DEMO_MODELS = ("linear", "baseline-tiny", "recurrent-tiny")


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


def demonstration(*, seeds: int = 3) -> StudySpec:
    """Returns the study that compares small models on the embedded corpus; needs no network and a few minutes."""
    data = DataConfig(name="demo", tokenizer=TRAINED, max_length=DEMO_MAX_LENGTH, trained_vocab_size=DEMO_VOCAB_SIZE)
    title = "Demo: a linear model, a stacked and a recurrent Transformer"
    return comparison(data, models=DEMO_MODELS, protocol="demo", seeds=range(seeds), title=title)


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
        data_options: Fields of `recurra.data.configuration.DataConfig`; without ``tokenizer`` the one of
            `recurra.data.tokenization.default_tokenizer`.

    Raises:
        RecurraError: If the data or the configuration cannot be used.
    """
    root = Path(data_root) if data_root else None
    config, _ = configure_data(str(data), data_options, {}, root)
    spec = comparison(config, models=models, protocol=protocol, seeds=range(seeds), precision=precision)
    command = f"recurra compare {shlex.quote(str(data))} --seeds {seeds} --output {shlex.quote(str(output))}"
    return run_study(spec, Path(output), Machine(data_root=root), reporter=Reporter(quiet=quiet), command=command)
