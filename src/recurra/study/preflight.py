"""Looking at what runs will need before the first one starts: a user's mistake is told once, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from recurra.core.configuration import content_hash
from recurra.core.errors import ConfigurationError, RecurraError
from recurra.core.record import read_any_record
from recurra.data.configuration import DataConfig
from recurra.study.spec import StudySpec
from recurra.tasks.base import task_of_data
from recurra.tasks.machine import Machine
from recurra.tasks.profile import part_of
from recurra.tasks.reporting import Reporting
from recurra.tasks.runs import RunConfig

_IMITATED = (
    "precision 'bf16': this processor has no instructions for it and imitates them, several times slower than FP32; "
    "take fp32 unless the runs belong beside others in bf16"
)


def preflight(configs: Iterable[RunConfig], machine: Machine) -> list[str]:
    """Checks data, tokenizer, protocol and model configuration of runs, each different one once.

    Args:
        configs: Runs that are about to start.
        machine: Where local copies of public data lie.

    Returns:
        Lines that a person should read before they start, each once.

    Raises:
        RecurraError: What the first run that cannot start would have raised.
    """
    seen: set[str] = set()
    said: list[str] = []
    for config in configs:
        if config.precision == "bf16" and config.needs_torch and _imitates_bf16():
            said.append(_IMITATED)
        key = content_hash([{**config.plain(), "seed": 0, "teachers": [teacher.name for teacher in config.teachers]}])
        if key not in seen:
            said += task_of_data(config.data).preflight(config, machine)
        seen.add(key)
    return list(dict.fromkeys(said))


def _imitates_bf16() -> bool:
    from recurra.models.inference import default_device, imitates_bf16

    return imitates_bf16(default_device())


def check_measure(spec: StudySpec, machine: Machine) -> None:
    """Looks whether the data have what the study wants its models judged by.

    Raises:
        ConfigurationError: If there is no such measure, or no such label.
        RecurraError: If the data cannot be used.
    """
    if spec.measure is None:
        return
    reporting: Reporting = part_of(spec.task.name, "reporting")
    for data in spec.data:
        reporting.asked(spec.judging, spec.task.label_names(data, machine))


def refuse_unheard_texts(configs: Iterable[RunConfig]) -> None:
    """Refuses texts without labels where no model has a teacher that could answer them.

    Args:
        configs: All runs of a study, or the only one.

    Raises:
        ConfigurationError: If nobody would read them.
    """
    of_data: dict[str, list[RunConfig]] = {}
    for config in configs:
        if isinstance(config.data, DataConfig) and config.data.unlabelled is not None:
            of_data.setdefault(config.data.unlabelled, []).append(config)
    for name, runs in of_data.items():
        if not any(run.teachers for run in runs):
            raise ConfigurationError(
                f"--unlabelled '{name}' came without a model that has a teacher; name one with teacher=RUN, or leave "
                "the file out"
            )


def is_finished(config: RunConfig, folder: Path) -> bool:
    """Whether the folder holds the record of this very run."""
    try:
        return read_any_record(folder).config_hash == config.config_hash
    except RecurraError:
        return False
