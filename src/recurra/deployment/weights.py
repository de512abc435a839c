"""Weights in a narrower precision, as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from recurra.core.errors import AuditError
from recurra.models.inference import PRECISIONS
from recurra.models.loading import WEIGHTS_NAME, load_classifier_model


def write_safetensors(model_folder: Path, precision: str, folder: Path) -> None:
    """Writes ``config.json`` and ``model.safetensors`` with every weight in ``precision``.

    Args:
        model_folder: The model folder of a run.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        folder: Where to write.

    Raises:
        CheckpointError: If the model folder is not whole.
        AuditError: If a weight does not fit the precision.
    """
    model = load_classifier_model(model_folder).to(PRECISIONS[precision])
    _check_range(model, precision)
    model.save_pretrained(folder)
    # The library leaves the file readable by its owner alone.
    (folder / WEIGHTS_NAME).chmod(0o644)


def _check_range(model: PreTrainedModel, precision: str) -> None:
    for name, weight in model.state_dict().items():
        if not torch.isfinite(weight).all():
            raise AuditError(
                f"weight '{name}' has values that {precision} cannot hold; nothing was written; export in fp32 or bf16"
            )


def write_tokenizer(tokenizer: PreTrainedTokenizerFast, max_length: int, folder: Path) -> None:
    """Writes ``tokenizer.json`` and ``tokenizer_config.json``, with the length after which texts are cut."""
    tokenizer.model_max_length = max_length
    tokenizer.save_pretrained(folder)
