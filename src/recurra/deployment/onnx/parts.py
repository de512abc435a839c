"""What every part of the ONNX graph is written with: the model's weights, linear maps, norms, and the rows at hand."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from recurra.deployment.onnx.graph import Array, Graph
from recurra.models.configuration import RecurraConfig

_SHARED, _OWN = "model.core.block.", "model.core.recurrences.{}."


@dataclass(frozen=True)
class Rows:
    """Names of the values that have a row for each row of the batch, besides the states.

    Attributes:
        first: What the core was given, ``(batch, tokens, hidden)``.
        seen: Which keys a query may see, ``(batch, 1, tokens, tokens)``.
        where: Index of the position that is read, ``(batch, 1)``; empty where another's is, or more than one.
        real: Mask of real tokens, ``(batch, tokens)``; empty where nobody asks for it.
    """

    first: str = ""
    seen: str = ""
    where: str = ""
    real: str = ""


class PartWriter:
    """Writes linear maps and norms by their names among the model's weights.

    Args:
        graph: The main graph.
        config: The model's.
        weights: By the names of the model's state; FP32.
        linear: How linear maps and the token table are stored.
    """

    def __init__(self, graph: Graph, config: RecurraConfig, weights: Mapping[str, Array], linear: Linear) -> None:
        self.graph = graph
        self.config, self.weights, self.linear = config, weights, linear
        self.rows = Rows()
        self._recurrence = ""

    @contextlib.contextmanager
    def among(self, rows: Rows) -> Iterator[None]:
        """Writes for other rows for the time: those of the body of a loop."""
        before, self.rows = self.rows, rows
        yield
        self.rows = before

    @contextlib.contextmanager
    def within(self, recurrence: str) -> Iterator[None]:
        """Writes the core's layers as one recurrence has them, by the name of its number, from 0."""
        before, self._recurrence = self._recurrence, recurrence
        yield
        self._recurrence = before

    def linear_map(
        self, graph: Graph, states: str, name: str, part: str = "", outputs: Callable[[Array], Array] = np.asarray
    ) -> str:
        """A linear map by its name among the model's weights, or a part of its outputs.

        Args:
            graph: Where.
            states: ``(..., inputs)``.
            name: The map's name.
            part: Name of the part, in place of the map's.
            outputs: Takes the part's outputs from an array with an entry for each of the map's.
        """
        stored = part or name
        product = self.linear.product(graph, states, stored, outputs(self.weights[f"{name}.weight"]))
        mapped = str(graph.op("Add", product, self._own(graph, f"{name}.bias", f"{stored}.bias", outputs)))
        if not self._is_own(f"{name}.down"):
            return mapped
        inner = graph.op("MatMul", states, self._own(graph, f"{name}.down", f"{name}.down", np.transpose))
        up = self._own(graph, f"{name}.up", f"{stored}.up", lambda values: outputs(values).T)
        return str(graph.op("Add", mapped, graph.op("MatMul", inner, up)))

    def _is_own(self, name: str) -> bool:
        """Whether each recurrence has a weight of its own where the shared layers would have it."""
        return bool(self._recurrence) and name.replace(_SHARED, _OWN.format(0)) in self.weights

    def _own(self, graph: Graph, name: str, stored: str, taken: Callable[[Array], Array] = np.asarray) -> str:
        """What is taken of a weight: of the recurrence's own if it has one, of all of which stand in the file."""
        if not self._is_own(name):
            return graph.weight(stored, taken(self.weights[name]))
        recurrences = range(self.config.num_recurrences)
        own = np.stack([taken(self.weights[name.replace(_SHARED, _OWN.format(each))]) for each in recurrences])
        values = graph.weight(stored.replace(_SHARED, _OWN.format("all")), own)
        return str(graph.op("Gather", values, self._recurrence, axis=0))

    def norm(self, graph: Graph, states: str, name: str) -> str:
        """RMSNorm or LayerNorm."""
        scale = self._own(graph, f"{name}.weight", f"{name}.weight")
        epsilon = self.config.rms_norm_eps
        if self.config.norm == "rms":
            return str(graph.op("RMSNormalization", states, scale, axis=-1, epsilon=epsilon))
        shift = self._own(graph, f"{name}.bias", f"{name}.bias")
        return str(graph.op("LayerNormalization", states, scale, shift, axis=-1, epsilon=epsilon))

    def without_padding(self, graph: Graph, states: str, value: float) -> str:
        """States ``(batch, tokens, hidden)`` with a value in place of those of padding."""
        real = graph.op("Cast", graph.op("Unsqueeze", self.rows.real, graph.numbers(2)), to=TensorProto.BOOL)
        return str(graph.op("Where", real, states, graph.number(value)))


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
