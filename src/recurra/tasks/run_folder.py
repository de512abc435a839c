"""Folder, processes and device of a run, whatever its task."""

from __future__ import annotations

import datetime
import gc
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurra.core.environment import code_record, environment_record, started_by_torchrun
from recurra.core.files import storage_errors, write_json
from recurra.core.record import EncoderRecord, LanguageTrainingRecord, ModelRecord, TrainingRecord
from recurra.core.sealed import MODEL_NAME, SEAL_NAME, seal_model
from recurra.models.adaptation.source import EncoderSource
from recurra.models.names import MODEL_KEYS
from recurra.tasks.base import RunConfig

if TYPE_CHECKING:
    from recurra.models.configuration import RecurraConfig
    from recurra.models.presets import HeadKind

TRAINING_NAME = "training.json"


def save_model_folder(folder: Path, write: Callable[[Path], Any]) -> None:
    """Writes the model folder under a temporary name and renames it, so that it is whole or absent; then seals it."""
    target, temporary = folder / MODEL_NAME, folder / f".{MODEL_NAME}.part"
    with storage_errors(target):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write(temporary)
        (folder / SEAL_NAME).unlink(missing_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    seal_model(folder)


def keep_trained(
    folder: Path, model: Any, tokenizer: Any, max_length: int, training: TrainingRecord | LanguageTrainingRecord
) -> None:
    """Writes model, tokenizer and, last, the training record, which marks the end; then ends a distributed training."""
    if speaks_for_all():
        tokenizer.model_max_length = max_length
        save_model_folder(folder, lambda target: (model.save_pretrained(target), tokenizer.save_pretrained(target)))
        write_json(folder / TRAINING_NAME, training.model_dump(mode="json"))
    # A trainer that still lives when the process group ends can abort the process; and the memory is needed.
    gc.collect()
    if started_by_torchrun():
        import torch

        # A process that just exits can abort the others.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def single_fit(
    config: RunConfig, *, wall_s: float = 0.0, words: int = 0, peak_memory_mib: float = 0.0
) -> TrainingRecord:
    """The training record of a model that is fitted once, without epochs, or not trained at all."""
    return TrainingRecord(
        protocol=config.protocol.name,
        epochs=0,
        steps=0,
        best_epoch=0,
        wall_s=wall_s,
        tokens_per_s=words / wall_s if words else 0.0,
        peak_memory_mib=peak_memory_mib,
    )


def run_facts(config: RunConfig, started: float, threads: int) -> dict[str, Any]:
    """The first fields of every run's record: which run, when, with which code, where."""
    return {
        "run_id": config.run_id,
        "config": config.plain(),
        "config_hash": config.config_hash,
        "seed": config.seed,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "wall_s": time.perf_counter() - started,
        "code": code_record(),
        "environment": environment_record(
            threads=threads,
            precision=config.precision,
            accelerator=accelerator_name() if config.is_accelerated else None,
        ),
    }


def shape_of(config: RecurraConfig) -> dict[str, Any]:
    """The part of a model's configuration that a record keeps: every key of the architecture, with its value."""
    return {key: getattr(config, key) for key in MODEL_KEYS if hasattr(config, key)}


def transformer_record(
    name: str,
    description: str,
    config: RecurraConfig,
    task: HeadKind,
    *,
    tokens: int,
    folder: Path,
    encoder: EncoderRecord | None = None,
) -> ModelRecord:
    """The model record of a Transformer."""
    from recurra.models.presets import count_parameters, flops_per_token

    counts = count_parameters(config, task)
    weights = folder / MODEL_NAME / "model.safetensors"
    return ModelRecord(
        preset=name,
        kind="transformer",
        parameters=counts.total,
        embedding_parameters=counts.embeddings,
        non_embedding_parameters=counts.non_embedding,
        flops_per_token=flops_per_token(config, tokens, task),
        file_size_bytes=weights.stat().st_size if weights.exists() else 0,
        description=description,
        encoder=encoder,
    )


def encoder_record(source: EncoderSource, plan: str = "") -> EncoderRecord:
    """The record of the encoder that a model starts from."""
    return EncoderRecord(
        name=source.name,
        sha256=source.sha256,
        plan=str(source.plan(plan)),
        layers=source.num_layers,
        licence=source.licence,
        trained_on=source.trained_on,
    )


def speaks_for_all() -> bool:
    """Whether this process writes the folder: the only one, or the first of a distributed training."""
    return not started_by_torchrun() or int(os.environ["RANK"]) == 0


def accelerator_name() -> str | None:
    """Name of the accelerator, if there is one."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
