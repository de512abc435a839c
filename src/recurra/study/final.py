"""Trains the recommended model of a comparison once more, on test rows too; predict and export then use this model.

The rows that choose the epoch stay apart: they also calibrate the probabilities and evaluate thresholds.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from recurra.core.best_run import FINAL_NAME
from recurra.core.configuration import content_hash
from recurra.core.environment import available_cores
from recurra.core.files import locked_folder
from recurra.core.progress import Reporter
from recurra.core.record import RECORD_NAME, AnyRecord, read_any_record
from recurra.data.configuration import DataConfig
from recurra.data.corpora import CORPORA
from recurra.study.executor import threads_of
from recurra.study.plan import CONFIG_NAME, load_run_config
from recurra.study.run import execute_run
from recurra.study.workers import Workers
from recurra.tasks.base import RunConfig
from recurra.tasks.study_data import Machine, StudyData


def gains_rows(judged: RunConfig) -> bool:
    """Whether the final run may also train on the test rows: only if they were split off a user's file."""
    data = judged.data
    splits_off_rows = isinstance(data, DataConfig) and judged.data_hash is not None and data.test is None
    return splits_off_rows and data.name not in CORPORA and not judged.teachers and judged.answers is None


def final_config(judged: RunConfig) -> RunConfig:
    """Configuration of the final run: that of the judged run, with another data hash."""
    return judged.model_copy(update={"data_hash": content_hash([judged.config_hash, FINAL_NAME])})


def final_run(judged: RunConfig, output: Path) -> Path | None:
    """Folder of the finished final run of a judged run; None if there is none or it belongs to another run."""
    folder = output / FINAL_NAME
    finished = (folder / RECORD_NAME).is_file() and (folder / CONFIG_NAME).is_file()
    return folder if finished and _is_of(judged, folder) else None


def train_again(
    judged: RunConfig, note: str, output: Path, machine: Machine, *, reporter: Reporter, workers: Workers
) -> tuple[AnyRecord | None, str]:
    """Trains a judged run once more, in a worker, or resumes that. The note goes into its record."""
    folder = output / FINAL_NAME
    if (folder / CONFIG_NAME).is_file() and not _is_of(judged, folder):
        # Another call may be training there.
        with locked_folder(folder):
            shutil.rmtree(folder)
    reporter.say(f"training {judged.model} once more, on test rows too")
    # A model without torch gains nothing from threads, and a worker that has run one has imported what it needs.
    threads = threads_of(machine, available_cores(), 1).threads if judged.needs_torch else workers.threads
    untimed = replace(machine, latency=False, threads=threads)
    arguments = judged.plain(), str(folder), note
    ended = workers.call("recurra.study.final:train", *arguments, machine=untimed, threads=threads)
    if ended.code:
        return None, ended.last.removeprefix("error: ")[:300] or ended.cause
    return read_any_record(folder), ""


def train(data: StudyData, judged: dict[str, object], folder: str, note: str) -> None:
    """Trains the final run of a judged run in this process."""
    config = RunConfig.parse(judged)
    assert isinstance(config.data, DataConfig)
    study_data = StudyData(data.machine)
    study_data.hold(config.data, data.rows(config.data).with_test_rows(note))
    data.refuse_changed(config.data, config.data_hash)
    Path(folder).mkdir(parents=True, exist_ok=True)
    execute_run(study_data, folder, final_config(config))


def _is_of(judged: RunConfig, folder: Path) -> bool:
    return load_run_config(folder).config_hash == final_config(judged).config_hash
