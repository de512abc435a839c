"""Exports as a Hugging Face folder: weights in FP32, bf16 or FP16 as safetensors. Linear models as one too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from recurra.core.errors import AuditError
from recurra.deployment.export.formats.interface import (
    BF16,
    FP16,
    FP32,
    ExportFormat,
    ExportSource,
    StoredModel,
    refuse_precision,
)
from recurra.models.controls import LINEAR_NAME, holds_joined_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from recurra.deployment.engines.interface import LoadedEngine
    from recurra.models.controls.linear import LinearModel

# The name that transformers looks for.
WEIGHTS_NAME = "model.safetensors"


class SafetensorsFormat(ExportFormat):
    """What transformers reads as it is; a linear model is read by us alone, without torch."""

    name = "safetensors"
    precisions = (FP32, BF16, FP16)
    weight_files = (WEIGHTS_NAME, LINEAR_NAME)
    carries_exits = True
    needs_torch = True
    usage = (
        '`recurra.Classifier.from_export(".")` in Python; after `import recurra` the stock classes of transformers '
        "read this folder too, and\nthen the texts have to be cleaned first: {cleaning}."
    )
    linear_usage = (
        '`recurra.Classifier.from_export(".")` in Python, which imports scikit-learn here, not torch or transformers.'
        "\n`linear.safetensors` holds n-grams and weights as plain arrays: see the guide of exports. "
        "Texts are cleaned first: {cleaning}."
    )

    joined_usage = (
        '`recurra.Classifier.from_export(".")` in Python. The scores of `linear.safetensors`, which holds n-grams and '
        "weights as\nplain arrays, are added to those of the classifier beside it: stock classes of transformers read "
        "the second alone.\nTexts are cleaned first: {cleaning}."
    )

    def write(self, source: ExportSource, precision: str, folder: Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, and the linear model that may stand beside it."""
        write_safetensors(source.run / "model", precision, folder)
        if holds_joined_model(source.run / "model"):
            shutil.copyfile(source.run / "model" / LINEAR_NAME, folder / LINEAR_NAME)

    def write_linear(self, model: LinearModel, folder: Path) -> None:
        """Writes the file of a linear run's model folder."""
        model.save(folder)

    def open(self, stored: StoredModel, *, precision: str | None = None, threads: int = 0) -> LoadedEngine:  # noqa: ARG002 - torch has its own
        """Reads it into torch, whose threads are set there; a linear model into scikit-learn."""
        if stored.linear:
            refuse_precision(precision)
            from recurra.deployment.engines.interface import LinearEngine

            return LinearEngine.load(stored.folder)
        if holds_joined_model(stored.folder):
            from recurra.deployment.engines.joined import JoinedEngine

            return JoinedEngine.load(stored.folder, precision=precision)
        from recurra.deployment.engines.trained import TransformerEngine

        return TransformerEngine.load(
            stored.folder, precision=precision, max_length=stored.max_length, windows=stored.windows
        )


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
    from recurra.models.inference import PRECISIONS
    from recurra.models.loading import load_classifier_model

    model = load_classifier_model(model_folder).to(PRECISIONS[precision])
    _check_range(model, precision)
    model.save_pretrained(folder)
    # The library leaves the file readable by its owner alone.
    (folder / WEIGHTS_NAME).chmod(0o644)


def _check_range(model: PreTrainedModel, precision: str) -> None:
    wider = "fp32" if precision == "bf16" else "fp32 or bf16"
    for name, weight in model.state_dict().items():
        if not weight.isfinite().all():
            raise AuditError(
                f"weight '{name}' has values that {precision} cannot hold; nothing was written; export in {wider}"
            )
