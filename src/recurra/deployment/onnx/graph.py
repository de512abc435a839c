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

# The first with attention, rotary embedding and RMSNorm as operators: see `docs/decisions/0010-onnx-by-hand.md`.
OPSET = 23
IR_VERSION = 11

Array = npt.NDArray[Any]
Kind: TypeAlias = onnx.TypeProto


def tensor(element: int, *shape: int | str | None) -> Kind:
    """What is known of a value before it is computed: runtimes other than ONNX Runtime need it in bodies of loops.

    A size that has a name is the same wherever the name stands, None is any.
    """
    return helper.make_tensor_type_proto(element, list(shape))


class Graph:
    """The nodes of a graph, or of the body of a loop in an ``outer`` one, whose values and weights it sees."""

    def __init__(self, outer: Graph | None = None) -> None:
        self.outer = outer
        self.nodes: list[onnx.NodeProto] = []
        self._kinds: list[onnx.ValueInfoProto] = []
        self._top: Graph = outer._top if outer else self
        if outer is None:
            self.weights: dict[str, onnx.TensorProto] = {}
            self._names = 0
            self._scalars: dict[tuple[str, bytes], str] = {}

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; returns the name of its output, or a list of names."""
        names = [self.name(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def weight(self, name: str, values: Array) -> str:
        """Makes a weight known by its name, once; it is stored in the main graph."""
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
        """A constant vector of whole numbers, as shapes, axes and slices take them."""
        return self.constant(values, np.int64)

    def number(self, value: float) -> str:
        """A constant FP32 number."""
        return self.constant(value, np.float32)

    def slice(self, value: str, start: int, end: int, axis: int) -> str:
        """Part of a value along one axis."""
        parts = (self.numbers(start), self.numbers(end), self.numbers(axis))
        return str(self.op("Slice", value, *parts))

    def loop(
        self,
        trips: str,
        carried: Sequence[Carried],
        body: Graph,
        *,
        iteration: str,
        goes_on: str = "",
    ) -> list[str]:
        """Adds a loop of at most ``trips`` iterations; returns the names of what it carried, after it.

        ``goes_on`` is what the body computes to say whether another one follows; none means always.
        """
        going = self.name("going")
        if not goes_on:
            goes_on = self.name("goes_on")
            body.nodes.append(helper.make_node("Identity", [going], [goes_on]))
        graph = helper.make_graph(
            body.nodes,
            "recurrence",
            [
                helper.make_tensor_value_info(iteration, TensorProto.INT64, []),
                helper.make_tensor_value_info(going, TensorProto.BOOL, []),
                *(helper.make_value_info(part.inner, part.kind) for part in carried),
            ],
            [
                helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []),
                *(helper.make_value_info(part.result, part.kind) for part in carried),
            ],
            value_info=body._kinds,
        )
        outputs = self.op("Loop", trips, "", *(part.before for part in carried), body=graph, outputs=len(carried))
        names: list[str] = outputs if isinstance(outputs, list) else [outputs]
        self._kinds += [helper.make_value_info(name, part.kind) for name, part in zip(names, carried, strict=True)]
        return names

    def choose(self, condition: str, then: Branch, otherwise: Branch, names: Sequence[str] | None = None) -> list[str]:
        """Adds a choice between two branches, of which one is computed; returns the names of its results."""
        chosen = list(names or (self.name("If") for _ in then[1]))
        branches = {
            which: helper.make_graph(
                graph.nodes,
                which,
                [],
                [helper.make_value_info(name, kind) for name, kind in results],
                value_info=graph._kinds,
            )
            for which, (graph, results) in (("then_branch", then), ("else_branch", otherwise))
        }
        self.nodes.append(helper.make_node("If", [condition], chosen, **branches))
        return chosen

    def rename(self, value: str, name: str) -> None:
        """Gives a node's output that nothing reads the name of an output of the graph."""
        for node in self.nodes:
            for index, output in enumerate(node.output):
                if output == value:
                    node.output[index] = name
        self._kinds = [known for known in self._kinds if known.name != value]

    def name(self, kind: str) -> str:
        """A name that nothing else has."""
        self._top._names += 1
        return f"{kind}_{self._top._names}"

    def model(
        self,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
        metadata: dict[str, str],
    ) -> onnx.ModelProto:
        """The finished model; an input of a weight's name may be left out, and then has that weight's value."""
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


# One side of a choice: its nodes, and which of their values are its results, with their types and shapes.
Branch: TypeAlias = tuple[Graph, Sequence[tuple[str, Kind]]]


_LARGEST = 127
_TINY = float(np.finfo(np.float32).tiny)


class Linear:
    """Stores and computes linear maps and the token table in FP32."""

    def product(self, graph: Graph, states: str, name: str, weight: Array) -> str:
        """Maps ``(..., inputs)`` to ``(..., outputs)`` without a bias; ``weight`` is ``(outputs, inputs)``."""
        return str(graph.op("MatMul", states, graph.weight(f"{name}.weight", weight.T)))

    def embed(self, graph: Graph, ids: str, name: str, table: Array) -> str:
        """Looks rows of a table up."""
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
        values, scale = quantise_rows(table)
        rows = graph.op("Gather", graph.weight(f"{name}.weight_int8", values), ids, axis=0)
        scales = graph.op("Gather", graph.weight(f"{name}.weight_scale", scale), ids, axis=0)
        return str(graph.op("Mul", graph.op("Cast", rows, to=TensorProto.FLOAT), scales))
