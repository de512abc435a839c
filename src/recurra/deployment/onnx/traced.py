"""ONNX graphs of classifiers over transformers' own layers: traced by torch, quantised by ONNX Runtime."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn

from recurra.core.errors import ConfigurationError
from recurra.deployment.onnx import INPUT_IDS, LOGITS, MASK, MODEL_NAME

_OPSET = 17


class _Logits(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids, attention_mask).logits
        return logits


def write_traced(model: Any, precision: str, folder: Path, metadata: dict[str, str]) -> None:
    """Writes ``config.json`` and ``model.onnx``; raises `ConfigurationError` if torch cannot trace the encoder."""
    path, fp32_path = folder / MODEL_NAME, folder / f"fp32-{MODEL_NAME}"
    ids = torch.ones(2, 6, dtype=torch.long)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    token_axes = {0: "rows", 1: "tokens"}
    try:
        with _quiet():
            torch.onnx.export(
                _Logits(copy.deepcopy(model).cpu()).eval(),
                (ids, mask),
                fp32_path,
                input_names=[INPUT_IDS, MASK],
                output_names=[LOGITS],
                dynamic_axes={INPUT_IDS: token_axes, MASK: token_axes, LOGITS: {0: "rows"}},
                opset_version=_OPSET,
                dynamo=False,
            )
    # Another library's layers can fail in the tracer with any exception.
    except Exception as error:
        raise ConfigurationError(
            f"torch cannot write this encoder as ONNX ({' '.join(str(error).split())[:120]}); take --format safetensors"
        ) from error
    if precision == "int8":
        with _quiet():
            quantize_dynamic(fp32_path, path, weight_type=QuantType.QInt8, per_channel=True)
        fp32_path.unlink()
    else:
        fp32_path.rename(path)
    graph = onnx.load(path)
    onnx.helper.set_model_props(graph, metadata)
    onnx.save(graph, path)
    model.config.save_pretrained(folder)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides warnings about branches and old interfaces; the export's own check judges the graph."""
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
