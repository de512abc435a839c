"""One run from configuration to record, whatever its task: claimed, trained, measured, and the record written last."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from recurra.core.environment import code_record
from recurra.core.files import FolderLock
from recurra.core.progress import Reporter
from recurra.core.record import RECORD_NAME, AnyRecord, write_record
from recurra.study.plan import claim_folder
from recurra.tasks.base import task_of_data
from recurra.tasks.machine import Machine
from recurra.tasks.run_folder import speaks_for_all
from recurra.tasks.runs import RunConfig


def execute_run(
    config: RunConfig, folder: Path, machine: Machine, reporter: Reporter, said: Sequence[str] = ()
) -> AnyRecord | None:
    """Executes a run, or takes it up where it was interrupted, or returns its record if it is done.

    Args:
        config: What to run.
        folder: The run folder; held by this process meanwhile.
        machine: Where and how.
        reporter: For progress.
        said: Lines for a person, once it is clear that the run starts.

    Returns:
        The record; none on the other processes of a distributed run.

    Raises:
        StorageError: If the folder holds another run or is in use.
        RecurraError: Whatever is wrong with the data or the configuration.
    """
    threads: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if config.needs_torch or config.precision == "fp16":
        from recurra.models.inference import check_precision, torch_threads
        from recurra.models.quiet import quieten_libraries

        check_precision(config.precision)
        quieten_libraries()
        threads = torch_threads(machine.threads)
    code_record()  # remembers the commit that is loaded now: the checkout may move on during a long run
    engine = task_of_data(config.data).engine
    with threads:
        if not speaks_for_all():
            if not (folder / RECORD_NAME).exists():
                engine.train(config, folder, machine, Reporter(quiet=True))
            return None
        with FolderLock(folder):
            done = claim_folder(config, folder)
            if done is not None:
                reporter.say(f"{config.run_id}: already done")
                return done
            for line in said:
                reporter.say(line)
            record = engine.execute(config, folder, machine, reporter)
            # The model is on disk. Once there is a record nobody comes back to clear up.
            if config.needs_torch and not machine.keep_checkpoints:
                from recurra.training.fit import remove_checkpoints

                remove_checkpoints(folder)
            write_record(folder, record)
            return record
