"""Exports as an ONNX graph in FP32 or int8, which are computed without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from recurra.deployment.export.formats.interface import (
    FP32,
    INT8,
    ExportFormat,
    ExportSource,
    StoredModel,
    refuse_precision,
)
from recurra.deployment.onnx.contract import MODEL_NAME, check_writable

if TYPE_CHECKING:
    from recurra.deployment.engines.interface import LoadedEngine
    from recurra.models.controls.linear import LinearModel


class OnnxFormat(ExportFormat):
    """What ONNX Runtime reads."""

    name = "onnx"
    precisions = (FP32, INT8)
    weight_files = (MODEL_NAME,)
    carries_exits = True
    needs_torch = False
    packages = ("onnx", "onnxruntime")
    install = "recurra[onnx]"
    usage = (
        '`recurra.Classifier.from_export(".")` in Python. Other programs clean the texts first ({cleaning}), tokenise\n'
        "them with `tokenizer.json`, cut them at {max_length} tokens and pad with token {pad_token_id}."
    )

    linear_usage = (
        '`recurra.Classifier.from_export(".")` in Python. Other programs clean the texts first ({cleaning}), and cut\n'
        "them as the graph's inputs say: `words` are runs of letters and digits, `characters` those of each word\n"
        "between blanks, with a blank at either end and an empty string behind it, `pieces` what `tokenizer.json`\n"
        "makes of the text without special tokens."
    )

    joined_usage = (
        '`recurra.Classifier.from_export(".")` in Python. Other programs clean the texts first ({cleaning}), and give\n'
        "the graph one text a call: as `input_ids` and `attention_mask` what `tokenizer.json` makes of it, cut at\n"
        "{max_length} tokens; as `words` its runs of letters and digits; as `characters` those of each word between\n"
        "blanks, with a blank at either end and an empty string behind it."
    )

    def check_model(self, config: object) -> None:
        """Refuses norms, positions and biases that the graph is not written for."""
        check_writable(config)

    def write(self, source: ExportSource, precision: str, folder: Path) -> None:
        """Writes ``config.json`` and ``model.onnx``."""
        from recurra.deployment.onnx.model import write_onnx

        metadata = {"run_id": source.record.run_id, "labels": json.dumps(source.record.data.label_names)}
        words = getattr(source.engine, "words", None)
        write_onnx(source.engine.model, precision, source.engine.max_length, folder, metadata, words=words)

    def write_linear(self, model: LinearModel, folder: Path) -> None:
        """Writes ``model.onnx``, and of a static model the tokenizer."""
        from recurra.deployment.onnx.linear import write_linear

        write_linear(model, folder)

    def open(self, stored: StoredModel, *, precision: str | None = None, threads: int = 0) -> LoadedEngine:
        """Reads it into ONNX Runtime."""
        if stored.linear:
            refuse_precision(precision)
            from recurra.deployment.onnx.linear_engine import OnnxLinearEngine

            return OnnxLinearEngine.load(stored.folder, threads)
        from recurra.deployment.onnx.engine import OnnxEngine

        return OnnxEngine.load(
            stored.folder,
            precision=stored.precision,
            max_length=stored.max_length,
            pad_token_id=stored.pad_token_id,
            windows=stored.windows,
            requested=precision,
            threads=threads,
        )
