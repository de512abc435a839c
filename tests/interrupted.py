"""Runs in processes of their own that are killed, by the system and without warning, at a chosen moment.

The functions here run in children of a fork server that has imported torch once, so that a test with many kills does
not pay for many imports.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import multiprocessing
import multiprocessing.forkserver
import os
import pkgutil
import resource
import signal
from collections.abc import Callable, Iterable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import transformers

import recurra.training.fit as fit_module
import recurra.training.trainer as trainer_module
from recurra.core.errors import StorageError
from recurra.core.progress import Reporter
from recurra.deployment.export import build
from recurra.deployment.export.manifest import ExportOptions
from recurra.deployment.prediction import folder as prediction
from recurra.study.exporting import export_all
from recurra.study.run import execute_run
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        multiprocessing.forkserver.ensure_running()
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


def die_before(owner: str, name: str, call: int) -> None:
    """Kills this process when ``owner.name`` is called for the ``call``-th time, before it does anything."""
    found = pkgutil.resolve_name(owner)
    original, calls = getattr(found, name), itertools.count(1)

    def counted(*arguments: Any, **keywords: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **keywords)

    setattr(found, name, counted)


Moment = tuple[str, str, int]
_TRAINER = "recurra.training.trainer"
_STEPS = {"first step": 1, "middle of epoch 2": 5, "step 10": 10, "step 23": 23, "step 30": 30}
# Each is (owner, function, call): the process dies as it enters that call.
MOMENTS: dict[str, Moment] = {
    **{name: (f"{_TRAINER}:RecurraTrainer", "training_step", step) for name, step in _STEPS.items()},
    "evaluation of epoch 2": (f"{_TRAINER}:RecurraTrainer", "evaluate", 2),
    **{f"optimiser of checkpoint {number}": (_TRAINER, "save_optimizer", number) for number in (2, 3)},
    **{f"marker of checkpoint {number}": (_TRAINER, "mark_complete", number) for number in (2, 3, 4)},
    "removal after checkpoint 3": (_TRAINER, "remove_checkpoints_but", 3),
    "end of training": (f"{_TRAINER}:RecurraTrainer", "_load_best_model", 1),
    "model folder": ("recurra.tasks.run_folder", "save_model_folder", 1),
    "note that training is done": ("recurra.tasks.run_folder", "write_json", 1),
    "predictions": ("recurra.tasks.labelling.task", "write_predictions", 2),
    "record": ("recurra.study.run", "write_record", 1),
}


def _prepare(moments: list[str]) -> None:
    # What the server has imported is not garbage: without it, a collection takes milliseconds instead of a second.
    gc.freeze()
    transformers.utils.logging.disable_progress_bar()
    for moment in moments:
        die_before(*MOMENTS[moment])


def train(folder: Path, protocol: ProtocolConfig, moments: list[str], options: dict[str, float]) -> None:
    """Trains a tiny model in ``folder`` and saves its weights as ``final.safetensors``; dies at the first moment."""
    from safetensors.torch import save_model

    from tiny import tiny_model, tiny_split

    _prepare(moments)
    trainer_module.CHECKPOINT_MINUTES = options.get("checkpoint_minutes", trainer_module.CHECKPOINT_MINUTES)
    model = tiny_model()
    record = train_transformer(
        model, tiny_split(rows=48, seed=1), tiny_split(rows=32, seed=2), protocol,
        folder=folder, seed=0, precision="fp32", reporter=Reporter(quiet=True),
        mask_tokens=MaskTokens(mask=3, exempt=(0, 1, 2, 3)) if protocol.token_dropout else None,
        auxiliary=tiny_split(rows=48, seed=3) if protocol.auxiliary_epochs else None,
    )  # fmt: skip
    save_model(model, folder / "final.safetensors")
    (folder / "training.json").write_text(record.model_dump_json(), encoding="utf-8")


def execute(config: dict[str, Any], folder: Path, moments: list[str], keep_checkpoints: bool = False) -> None:
    """Executes a run in ``folder``; dies at the first moment."""
    _prepare(moments)
    if keep_checkpoints:
        setattr(fit_module, "remove_checkpoints", lambda _: None)  # noqa: B010 - for this process
    machine = Machine(threads=1, latency=False, cache_dir=folder.parent / "cache")
    assert execute_run(StudyData(machine), folder, RunConfig.parse(config)) is not None


def execute_with_little_space(config: dict[str, Any], folder: Path, most_bytes: int) -> None:
    """Executes a run that may write no file larger than ``most_bytes``; leaves the error's text in ``refused.txt``."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    try:
        execute(config, folder, [])
    except StorageError as error:
        (folder.parent / "refused.txt").write_text(str(error), encoding="utf-8")


_BUILD, _FILES = "recurra.deployment.export.build", "recurra.core.files"
EXPORT_MOMENTS: dict[str, Moment] = {
    "weights": ("recurra.deployment.export.formats", "write_safetensors", 1),
    "tokenizer": (_BUILD, "save_tokenizer", 1),
    "check": (_BUILD, "compare_logits", 1),
    "card": (_BUILD, "render_card", 1),
    "manifest": (_BUILD, "write_manifest", 1),
    "flush": (_FILES, "_flush", 1),
    "place": (_FILES, "_place", 1),
    "exchange": (_FILES, "_exchange", 1),
}
ONNX_MOMENTS: dict[str, Moment] = {"build_classifier": ("recurra.deployment.onnx.model", "build_classifier", 1)}


def export(run: Path, output: Path, options: dict[str, Any], moment: str) -> None:
    """Exports a run; dies at the moment, if one is named."""
    transformers.utils.logging.disable_progress_bar()
    if moment:
        die_before(*{**EXPORT_MOMENTS, **ONNX_MOMENTS}[moment])
    build.export_run(run, output, ExportOptions(**options))


_FOLDER = "recurra.deployment.prediction.folder"
FOLDER_MOMENTS: dict[str, Moment] = {
    "note of the model": (_FOLDER, "write_json", 1),
    "first file": (_FOLDER, "write_stream", 1),
    "third file": (_FOLDER, "write_stream", 3),
    "name of file 2": ("pathlib:Path", "replace", 3),
}


def predict_folder(run: Path, source: Path, output: Path, moment: str) -> None:
    """Predicts a folder; dies at the moment, if one is named."""
    if moment:
        die_before(*FOLDER_MOMENTS[moment])
    prediction.predict_folder(prediction.FolderJob(run, source, output), Reporter(quiet=True))


def export_in_a_study(output: Path, work: list[dict[str, Any]], call: int) -> None:
    """Makes exports of a study; dies before the record of one of them is written."""
    die_before("recurra.study.exporting", "write_export_record", call)
    export_all(StudyData(Machine(threads=1, latency=False)), str(output), 1, work)
