"""Linear maps and the token table in the graph: in FP32, or in int8 with activations quantised as they come."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from onnx import TensorProto

from recurra.deployment.onnx.graph import Array, Graph

_LARGEST = 127
_TINY = float(np.finfo(np.float32).tiny)


class Linear(ABC):
    """How linear maps and the token table are stored and computed."""

    @abstractmethod
    def product(self, graph: Graph, states: str, name: str, weight: Array) -> str:
        """Maps ``(..., inputs)`` to ``(..., outputs)`` without a bias; ``weight`` is ``(outputs, inputs)``."""

    @abstractmethod
    def embed(self, graph: Graph, ids: str, name: str, table: Array) -> str:
        """Looks rows of a table up."""


class FullLinear(Linear):
    """Everything in FP32."""

    def product(self, graph: Graph, states: str, name: str, weight: Array) -> str:
        """One product."""
        return str(graph.op("MatMul", states, graph.weight(f"{name}.weight", weight.T)))

    def embed(self, graph: Graph, ids: str, name: str, table: Array) -> str:
        """The table's rows."""
        return str(graph.op("Gather", graph.weight(f"{name}.weight", table), ids, axis=0))


def quantise_rows(weight: Array) -> tuple[Array, Array]:
    """Returns int8 values ``(rows, columns)`` and FP32 scales ``(rows, 1)``; symmetric, so that 0 stays 0.

    The error of a weight is at most half its row's scale, which is never below the smallest normal number: runtimes
    take what is smaller for 0, and a row divided by it would be no number.
    """
    largest = np.abs(weight).max(axis=1, keepdims=True)
    scale = np.where(largest > 0, np.maximum(largest / _LARGEST, _TINY), 1.0).astype(np.float32)
    return np.clip(np.rint(weight / scale), -_LARGEST, _LARGEST).astype(np.int8), scale


class Int8Linear(Linear):
    """Products of unsigned 8-bit activations and signed 8-bit weights, in whole numbers.

    The activations of a whole batch share a scale and a zero point, found when they come; a weight matrix has a scale
    for each output, the token table one for each token. Biases, norms, low-rank updates, the classifier stay in FP32.
    """

    def product(self, graph: Graph, states: str, name: str, weight: Array) -> str:
        """Quantise, multiply whole numbers, scale back: the form that runtimes know and, with the bias, fuse."""
        values, scale = quantise_rows(weight)
        whole = graph.weight(f"{name}.weight_int8", values.T)
        scales = graph.weight(f"{name}.weight_scale", scale[:, 0])
        zero = graph.constant(0, np.int8)
        quantised, own_scale, own_zero = graph.op("DynamicQuantizeLinear", states, outputs=3)
        product = graph.op("MatMulInteger", quantised, whole, own_zero, zero)
        product = graph.op("Cast", product, to=TensorProto.FLOAT)
        return str(graph.op("Mul", product, graph.op("Mul", own_scale, scales)))

    def embed(self, graph: Graph, ids: str, name: str, table: Array) -> str:
        """The rows, each by its own scale."""
        values, scale = quantise_rows(table)
        rows = graph.op("Gather", graph.weight(f"{name}.weight_int8", values), ids, axis=0)
        scales = graph.op("Gather", graph.weight(f"{name}.weight_scale", scale), ids, axis=0)
        return str(graph.op("Mul", graph.op("Cast", rows, to=TensorProto.FLOAT), scales))
