"""Runs in processes of their own that are killed, by the system and without warning, at a chosen moment.

The functions here run in children of a fork server that has imported torch once, so that a test with many kills does
not pay for many imports.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import resource
import signal
from collections.abc import Callable, Iterable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import transformers

import recurra.core.files as folders_module
import recurra.deployment.export.build as export_module
import recurra.deployment.export.formats as formats_module
import recurra.deployment.prediction.folder as folder_module
import recurra.study.exporting as exporting_module
import recurra.study.run as run_module
import recurra.tasks.labelling.task as labelling_task_module
import recurra.tasks.run_folder as run_folder_module
import recurra.training.fit as fit_module
import recurra.training.trainer as trainer_module
from recurra.core.errors import StorageError
from recurra.core.progress import Reporter
from recurra.core.record import AnyRecord
from recurra.deployment.export.manifest import ExportOptions
from recurra.tasks.base import RunConfig
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.fit import train_transformer
from recurra.training.protocols import ProtocolConfig
from recurra.training.vocabulary import MaskTokens

# What runs import sooner or later.
for _name in ("recurra.study.timing", "recurra.models.controls.fitting", "recurra.tasks.language.training"):
    importlib.import_module(_name)


def fork_server() -> ForkServerContext:
    """A context whose processes start from one that has imported this module, and with it torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["interrupted"])
    # The server looks for what it imports ahead of time in PYTHONPATH, not in our sys.path.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def one_fast(cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test, of which all but the first belong to the slow part: the same at other moments."""
    first, *others = cases
    return [first, *(pytest.param(case, marks=pytest.mark.slow) for case in others)]


def in_a_process(target: Callable[..., None], *arguments: Any) -> int:
    """Runs a function of this module in a process; returns its exit code (-9 after a kill)."""
    process = fork_server().Process(target=target, args=arguments)
    process.start()
    process.join(timeout=200)
    if process.is_alive():
        process.kill()
        raise TimeoutError(f"{target.__name__}{arguments} does not end")
    return int(process.exitcode or 0)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_before(owner: Any, name: str, call: int) -> None:
    """Kills this process when ``owner.name`` is called for the ``call``-th time, before it does anything."""
    original, calls = getattr(owner, name), 0

    def counted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            _die()
        return original(*arguments, **keywords)

    setattr(owner, name, counted)


# Each is (owner, function, call): the process dies as it enters that call.
MOMENTS: dict[str, tuple[Any, str, int]] = {
    "first step": (trainer_module.RecurraTrainer, "training_step", 1),
    "middle of epoch 2": (trainer_module.RecurraTrainer, "training_step", 5),
    "step 23": (trainer_module.RecurraTrainer, "training_step", 23),
    "step 10": (trainer_module.RecurraTrainer, "training_step", 10),
    "step 20": (trainer_module.RecurraTrainer, "training_step", 20),
    "step 30": (trainer_module.RecurraTrainer, "training_step", 30),
    "evaluation of epoch 2": (trainer_module.RecurraTrainer, "evaluate", 2),
    "optimiser of checkpoint 2": (trainer_module, "save_optimizer", 2),
    "random state of checkpoint 2": (trainer_module, "save_random_state", 2),
    "marker of checkpoint 2": (trainer_module, "mark_complete", 2),
    "marker of checkpoint 3": (trainer_module, "mark_complete", 3),
    "optimiser of checkpoint 3": (trainer_module, "save_optimizer", 3),
    "marker of checkpoint 4": (trainer_module, "mark_complete", 4),
    "optimiser of checkpoint 5": (trainer_module, "save_optimizer", 5),
    "marker of checkpoint 6": (trainer_module, "mark_complete", 6),
    "removal after checkpoint 3": (trainer_module, "remove_checkpoints_but", 3),
    "end of training": (trainer_module.RecurraTrainer, "_load_best_model", 1),
    "model folder": (run_folder_module, "save_model_folder", 1),
    "note that training is done": (run_folder_module, "write_json", 1),
    "predictions": (labelling_task_module, "write_predictions", 2),
    "record": (run_module, "write_record", 1),
}


def _prepare(moments: list[str]) -> None:
    # What the server has imported is not garbage: without it, a collection takes milliseconds instead of a second.
    gc.freeze()
    transformers.utils.logging.disable_progress_bar()
    for moment in moments:
        die_before(*MOMENTS[moment])


def train(folder: Path, protocol: ProtocolConfig, moments: list[str], options: dict[str, Any]) -> None:
    """Trains a tiny model in ``folder`` and saves its weights as ``final.safetensors``; dies at the first moment."""
    from safetensors.torch import save_model

    from tiny import tiny_model, tiny_split

    _prepare(moments)
    trainer_module.CHECKPOINT_MINUTES = options.get("checkpoint_minutes", trainer_module.CHECKPOINT_MINUTES)
    model = tiny_model(seed=options.get("seed", 0), **options.get("model", {}))
    rows = options.get("rows", 48)
    train_rows, selection = tiny_split(rows=rows, seed=1), tiny_split(rows=32, seed=2)
    record = train_transformer(
        model, train_rows, selection, protocol,
        folder=folder, seed=options.get("seed", 0), precision=options.get("precision", "fp32"),
        reporter=Reporter(quiet=True),
        mask_tokens=MaskTokens(mask=3, exempt=(0, 1, 2, 3)) if protocol.token_dropout else None,
        auxiliary=tiny_split(rows=48, seed=3) if protocol.auxiliary_epochs else None,
    )  # fmt: skip
    save_model(model, folder / "final.safetensors")
    (folder / "training.json").write_text(record.model_dump_json(), encoding="utf-8")


def execute(
    config: dict[str, Any],
    folder: Path,
    moments: list[str],
    keep_checkpoints: bool = False,
    data_root: Path | None = None,
) -> None:
    """Executes a run in ``folder``; dies at the first moment."""
    _prepare(moments)
    if keep_checkpoints:
        setattr(fit_module, "remove_checkpoints", lambda _: None)  # noqa: B010 - for this process
    cache = folder.parent / "cache"
    machine = Machine(threads=1, latency=False, cache_dir=cache, data_root=data_root)
    record: AnyRecord | None = run_module.execute_run(StudyData(machine), folder, RunConfig.parse(config))
    assert record is not None


def execute_with_little_space(config: dict[str, Any], folder: Path, most_bytes: int) -> None:
    """Executes a run that may write no file larger than ``most_bytes``; leaves the error's text in ``refused.txt``."""
    _prepare([])
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    machine = Machine(threads=1, latency=False, cache_dir=folder.parent / "cache")
    try:
        run_module.execute_run(StudyData(machine), folder, RunConfig.parse(config))
    except StorageError as error:
        (folder.parent / "refused.txt").write_text(str(error), encoding="utf-8")


EXPORT_MOMENTS: dict[str, tuple[Any, str, int]] = {
    "weights": (formats_module, "write_safetensors", 1),
    "tokenizer": (export_module, "save_tokenizer", 1),
    "check": (export_module, "compare_logits", 1),
    "card": (export_module, "render_card", 1),
    "manifest": (export_module, "write_manifest", 1),
    "flush": (folders_module, "_flush", 1),
    "place": (folders_module, "_place", 1),
    "exchange": (folders_module, "_exchange", 1),
}

# Functions of `recurra.deployment.onnx.model`, which needs the package onnx.
ONNX_MOMENTS = ("build_classifier",)


def export(run: Path, output: Path, options: dict[str, Any], moment: str) -> None:
    """Exports a run; dies at the moment, if one is named."""
    transformers.utils.logging.disable_progress_bar()
    if moment in ONNX_MOMENTS:
        import recurra.deployment.onnx.model as onnx_model_module

        die_before(onnx_model_module, moment, 1)
    elif moment:
        die_before(*EXPORT_MOMENTS[moment])
    export_module.export_run(run, output, ExportOptions(**options))


FOLDER_MOMENTS: dict[str, tuple[Any, str, int]] = {
    "note of the model": (folder_module, "write_json", 1),
    "first file": (folder_module, "write_stream", 1),
    "third file": (folder_module, "write_stream", 3),
    "name of file 2": (Path, "replace", 3),
}


def predict_folder(run: Path, source: Path, output: Path, moment: str) -> None:
    """Predicts a folder; dies at the moment, if one is named."""
    if moment:
        die_before(*FOLDER_MOMENTS[moment])
    folder_module.predict_folder(folder_module.FolderJob(run, source, output), Reporter(quiet=True))


def export_in_a_study(output: Path, work: list[dict[str, Any]], call: int) -> None:
    """Makes exports of a study; dies before the record of one of them is written."""
    die_before(exporting_module, "write_export_record", call)
    exporting_module.export_all(StudyData(Machine(threads=1, latency=False)), str(output), 1, work)
