"""What every part of the ONNX graph is written with: the model's weights, linear maps, norms, and the rows at hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnx import TensorProto

from recurra.deployment.onnx.graph import Array, Graph
from recurra.deployment.onnx.linear import Linear
from recurra.models.configuration import RecurraConfig


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

    @contextlib.contextmanager
    def among(self, rows: Rows) -> Iterator[None]:
        """Writes for other rows for the time: those of the body of a loop."""
        before, self.rows = self.rows, rows
        yield
        self.rows = before

    def linear_map(self, graph: Graph, states: str, name: str) -> str:
        """A linear map by its name among the model's weights."""
        return self.linear.apply(graph, states, name, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, graph: Graph, states: str, name: str) -> str:
        """RMSNorm or LayerNorm."""
        scale = graph.weight(f"{name}.weight", self.weights[f"{name}.weight"])
        epsilon = self.config.rms_norm_eps
        if self.config.norm == "rms":
            return str(graph.op("RMSNormalization", states, scale, axis=-1, epsilon=epsilon))
        shift = graph.weight(f"{name}.bias", self.weights[f"{name}.bias"])
        return str(graph.op("LayerNormalization", states, scale, shift, axis=-1, epsilon=epsilon))

    def without_padding(self, graph: Graph, states: str, value: float) -> str:
        """States ``(batch, tokens, hidden)`` with a value in place of those of padding."""
        real = graph.op("Cast", graph.op("Unsqueeze", self.rows.real, graph.numbers(2)), to=TensorProto.BOOL)
        return str(graph.op("Where", real, states, graph.number(value)))
