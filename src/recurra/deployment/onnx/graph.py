"""Nodes of an ONNX graph, and linear maps in FP32 and int8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from recurra.core.environment import code_record

# The first opset with attention, rotary embedding and RMSNorm: see `docs/decisions/0010-onnx-by-hand.md`.
OPSET = 23
IR_VERSION = 11

Array = npt.NDArray[Any]
Kind: TypeAlias = onnx.TypeProto


def tensor(element: int, *shape: int | str | None) -> Kind:
    """Type and shape of a value, which runtimes other than ONNX Runtime need in bodies of loops.

    A named size is the same everywhere the name occurs; None is any size.
    """
    return helper.make_tensor_type_proto(element, list(shape))


class Graph:
    """The nodes of a graph, or of a loop body in an ``outer`` graph, whose values and weights it can use."""

    def __init__(self, outer: Graph | None = None) -> None:
        self.outer = outer
        self.nodes: list[onnx.NodeProto] = []
        self._kinds: list[onnx.ValueInfoProto] = []
        self._top: Graph = outer._top if outer else self
        if outer is None:
            self.weights: dict[str, onnx.TensorProto] = {}
            self._names = 0
            self._scalars: dict[tuple[str, bytes], str] = {}

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node; returns the name of its output."""
        return self.ops(1, kind, *inputs, **attributes)[0]

    def ops(self, outputs: int, kind: str, *inputs: str, **attributes: Any) -> list[str]:
        """Adds a node with several outputs; returns their names."""
        names = [self.name(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def weight(self, name: str, values: Array) -> str:
        """Stores a weight in the main graph, once for each name; returns the name."""
        if name not in self._top.weights:
            self._top.weights[name] = numpy_helper.from_array(np.asarray(values, order="C"), name)
        return name

    def constant(self, value: Any, dtype: npt.DTypeLike) -> str:
        """A small constant, stored once for each value."""
        array = np.asarray(value, dtype=dtype)
        key = (f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._top._scalars:
            self._top._scalars[key] = self.weight(f"constant_{len(self._top._scalars)}", array)
        return self._top._scalars[key]

    def numbers(self, *values: int) -> str:
        """A constant vector of whole numbers, for shapes, axes and slices."""
        return self.constant(values, np.int64)

    def number(self, value: float) -> str:
        """A constant FP32 number."""
        return self.constant(value, np.float32)

    def slice(self, value: str, start: int, end: int, axis: int) -> str:
        """Part of a value along one axis."""
        parts = (self.numbers(start), self.numbers(end), self.numbers(axis))
        return self.op("Slice", value, *parts)

    def loop(
        self, trips: str, carried: Sequence[Carried], body: Graph, *, iteration: str, goes_on: str = ""
    ) -> list[str]:
        """Adds a loop of at most ``trips`` iterations; returns the names of the carried values after it.

        ``goes_on`` names the body's truth value that says whether another iteration follows; empty means always.
        """
        condition = self.name("going")
        if not goes_on:
            goes_on = self.name("goes_on")
            body.nodes.append(helper.make_node("Identity", [condition], [goes_on]))
        graph = helper.make_graph(
            body.nodes,
            "recurrence",
            [
                helper.make_tensor_value_info(iteration, TensorProto.INT64, []),
                helper.make_tensor_value_info(condition, TensorProto.BOOL, []),
                *(helper.make_value_info(value.inner, value.kind) for value in carried),
            ],
            [
                helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []),
                *(helper.make_value_info(value.result, value.kind) for value in carried),
            ],
            value_info=body._kinds,
        )
        names = self.ops(len(carried), "Loop", trips, "", *(value.before for value in carried), body=graph)
        self._kinds += [helper.make_value_info(name, value.kind) for name, value in zip(names, carried, strict=True)]
        return names

    def choose(
        self, condition: str, kinds: Sequence[Kind], then: Branch, otherwise: Branch, names: Sequence[str] = ()
    ) -> list[str]:
        """Adds a choice between branches, only one of which is computed; returns the names of its results."""
        chosen = list(names or (self.name("If") for _ in kinds))
        branches = {
            which: helper.make_graph(
                graph.nodes,
                which,
                [],
                [helper.make_value_info(*pair) for pair in zip(results, kinds, strict=True)],
                value_info=graph._kinds,
            )
            for which, (graph, results) in (("then_branch", then), ("else_branch", otherwise))
        }
        self.nodes.append(helper.make_node("If", [condition], chosen, **branches))
        return chosen

    def rename(self, value: str, name: str) -> None:
        """Gives a node's output, which no node reads, the name of an output of the graph."""
        for node in self.nodes:
            for index, output in enumerate(node.output):
                if output == value:
                    node.output[index] = name
        self._kinds = [kind for kind in self._kinds if kind.name != value]

    def name(self, kind: str) -> str:
        """A name that nothing else has."""
        self._top._names += 1
        return f"{kind}_{self._top._names}"

    def model(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto], metadata: dict[str, str]
    ) -> onnx.ModelProto:
        """The finished model; an input with the name of a weight is optional, and its default is that weight."""
        graph = helper.make_graph(
            self.nodes,
            "recurra",
            list(inputs),
            list(outputs),
            initializer=list(self.weights.values()),
            value_info=self._kinds,
        )
        version = code_record().version
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="recurra",
            producer_version=version,
        )
        helper.set_model_props(model, metadata)
        return model


@dataclass(frozen=True)
class Carried:
    """A value that a loop carries from one iteration to the next."""

    before: str
    inner: str
    result: str
    kind: Kind


# One branch of a choice: its nodes, and the names of its results.
Branch: TypeAlias = tuple[Graph, Sequence[str]]


_LARGEST = 127
_TINY = float(np.finfo(np.float32).tiny)


class Linear:
    """Stores and computes linear maps and the token table in FP32."""

    def product(self, graph: Graph, states: str, name: str, weight: Array) -> str:
        """Maps ``(..., inputs)`` to ``(..., outputs)`` without a bias; ``weight`` is ``(outputs, inputs)``."""
        return graph.op("MatMul", states, graph.weight(f"{name}.weight", weight.T))

    def embed(self, graph: Graph, ids: str, name: str, table: Array) -> str:
        """Looks up rows of a table."""
        return graph.op("Gather", graph.weight(f"{name}.weight", table), ids, axis=0)


def quantise_rows(weight: Array) -> tuple[Array, Array]:
    """Returns int8 values ``(rows, columns)`` and FP32 scales ``(rows, 1)``; symmetric, so that 0 stays 0.

    The error of a weight is at most half its row's scale. The scale is never below the smallest normal number, because
    runtimes treat smaller numbers as 0, and dividing by 0 gives NaN.
    """
    largest = np.abs(weight).max(axis=1, keepdims=True)
    scale = np.where(largest > 0, np.maximum(largest / _LARGEST, _TINY), 1.0).astype(np.float32)
    return np.clip(np.rint(weight / scale), -_LARGEST, _LARGEST).astype(np.int8), scale


class Int8Linear(Linear):
    """Products of unsigned 8-bit activations and signed 8-bit weights, in whole numbers.

    The activations of a whole batch share a scale and a zero point, computed at run time; a weight matrix has a scale
    for each output, the token table one for each token. Biases, norms, low-rank updates and classifier stay in FP32.
    """

    def product(self, graph: Graph, states: str, name: str, weight: Array) -> str:
        """Quantises, multiplies whole numbers, scales back: a form that runtimes fuse, together with the bias."""
        values, scale = quantise_rows(weight)
        int8_weight = graph.weight(f"{name}.weight_int8", values.T)
        scales = graph.weight(f"{name}.weight_scale", scale[:, 0])
        weight_zero = graph.constant(0, np.int8)
        quantised, state_scale, state_zero = graph.ops(3, "DynamicQuantizeLinear", states)
        product = graph.op("MatMulInteger", quantised, int8_weight, state_zero, weight_zero)
        product = graph.op("Cast", product, to=TensorProto.FLOAT)
        return graph.op("Mul", product, graph.op("Mul", state_scale, scales))

    def embed(self, graph: Graph, ids: str, name: str, table: Array) -> str:
        values, scale = quantise_rows(table)
        rows = graph.op("Gather", graph.weight(f"{name}.weight_int8", values), ids, axis=0)
        scales = graph.op("Gather", graph.weight(f"{name}.weight_scale", scale), ids, axis=0)
        return graph.op("Mul", graph.op("Cast", rows, to=TensorProto.FLOAT), scales)
