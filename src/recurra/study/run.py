"""Executes one run of any task: checks, claims, trains and measures it, and writes its record last."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from recurra.core.configuration import content_hash
from recurra.core.environment import code_record
from recurra.core.errors import ConfigurationError, RecurraError
from recurra.core.files import locked_folder
from recurra.core.progress import Reporter
from recurra.core.record import RECORD_NAME, AnyRecord, read_any_record, write_record
from recurra.data.configuration import DataConfig
from recurra.study.plan import ERROR_NAME, ProgressReporter, claim_folder, load_run_config, note_failure
from recurra.tasks.base import RunConfig, task_of_data
from recurra.tasks.run_folder import speaks_for_all
from recurra.tasks.study_data import StudyData

_IMITATED = (
    "precision 'bf16': this processor has no instructions for it and emulates them, several times slower than FP32; "
    "use fp32 unless you compare with other runs in bf16"
)


def preflight(configs: Iterable[RunConfig], data: StudyData) -> list[str]:
    """Checks data, tokenizer, protocol and model configuration of runs, each distinct one once.

    Raises:
        RecurraError: As the first run that cannot start would raise.
    """
    seen: set[str] = set()
    lines: list[str] = []
    for config in configs:
        if config.precision == "bf16" and config.needs_torch:
            from recurra.models.inference import default_device, imitates_bf16

            lines += [_IMITATED] if imitates_bf16(default_device()) else []
        key = content_hash([{**config.plain(), "seed": 0, "teachers": [teacher.name for teacher in config.teachers]}])
        if key not in seen:
            lines += task_of_data(config.data).preflight(config, data)
        seen.add(key)
    return list(dict.fromkeys(lines))


def refuse_unlabelled_without_teacher(configs: Iterable[RunConfig]) -> None:
    """Refuses texts without labels if no model has a teacher that could label them.

    Raises:
        ConfigurationError: If no run would use them.
    """
    runs_by_file: dict[str, list[RunConfig]] = {}
    for config in configs:
        if isinstance(config.data, DataConfig) and config.data.unlabelled is not None:
            runs_by_file.setdefault(config.data.unlabelled, []).append(config)
    for name, runs in runs_by_file.items():
        if not any(run.teachers for run in runs):
            raise ConfigurationError(
                f"--unlabelled '{name}' is only for models with a teacher; name one with teacher=RUN, or leave the "
                "file out"
            )


def is_finished(config: RunConfig, folder: Path) -> bool:
    """Whether the folder holds the record of this very run."""
    try:
        return read_any_record(folder).config_hash == config.config_hash
    except RecurraError:
        return False


def execute_run(
    data: StudyData,
    folder: Path | str,
    config: RunConfig | None = None,
    *,
    reporter: Reporter | None = None,
    notes: Sequence[str] = (),
) -> AnyRecord | None:
    """Executes a run, or resumes an interrupted one, or returns the record of a finished one.

    This process locks the folder meanwhile.

    Args:
        config: None reads the configuration that a study has written into the folder; progress and failures are
            then written there too.
        reporter: For progress; None is silent, but a run that a study started reports to the study.
        notes: Lines that are printed once it is clear that the run starts.

    Raises:
        StorageError: If the folder holds another run or is in use.
        RecurraError: If the data or the configuration cannot be used.
    """
    folder = Path(folder)
    with contextlib.ExitStack() as context:
        if config is None:
            (folder / ERROR_NAME).unlink(missing_ok=True)
            config = load_run_config(folder)
            if speaks_for_all():
                reporter = context.enter_context(ProgressReporter(folder, epochs=config.protocol.max_epochs))
            context.enter_context(_failure_noted(folder))
        reporter = reporter or Reporter(quiet=True)
        if config.needs_torch or config.precision == "fp16":
            from recurra.models.inference import check_precision, torch_threads
            from recurra.models.quiet import quieten_libraries

            check_precision(config.precision)
            quieten_libraries()
            context.enter_context(torch_threads(data.machine.threads))
        code_record()  # remembers the commit that is loaded now: the checkout may move on during a long run
        task = task_of_data(config.data)
        if not speaks_for_all():
            # A control is fitted by one process.
            if not config.is_control and not (folder / RECORD_NAME).exists():
                task.trainer(config)(config, folder, data, Reporter(quiet=True))
            return None
        context.enter_context(locked_folder(folder))
        if (done := claim_folder(config, folder)) is not None:
            reporter.say(f"{config.run_id}: already done")
            return done
        for line in notes:
            reporter.say(line)
        data.refuse_changed(config.data, config.data_hash)
        started = time.perf_counter()
        trained = task.trainer(config)(config, folder, data, reporter)
        record = task.record_run(config, trained, folder, data, reporter, started=started)
        data.refuse_changed(config.data, config.data_hash)  # what was read meanwhile
        # The model is on disk. Checkpoints go before the record, because a finished run is not cleaned up later.
        if config.needs_torch:
            from recurra.training.fit import remove_checkpoints

            remove_checkpoints(folder)
        write_record(folder, record)
        return record


@contextlib.contextmanager
def _failure_noted(folder: Path) -> Iterator[None]:
    """Writes a failure to ``error.json`` for the study, because its worker passes on only the message."""
    try:
        yield
    except RecurraError as error:
        if not (folder / RECORD_NAME).exists():
            note_failure(folder / ERROR_NAME, str(error), kind=type(error).__name__, code=error.exit_code)
        raise
