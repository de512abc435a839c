"""Nodes of an ONNX graph, and the parts that layers are made of."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from recurra.core.environment import code_record
from recurra.models.configuration import RecurraConfig

# The first with attention, rotary embedding and RMSNorm as operators: see `docs/decisions/0010-onnx-by-hand.md`.
OPSET = 23
IR_VERSION = 11

Array = npt.NDArray[Any]
Kind: TypeAlias = onnx.TypeProto


def tensor(element: int, *shape: int | str | None) -> Kind:
    """What is known of a value before it is computed.

    ONNX Runtime finds out by itself; other runtimes cannot read a loop whose body does not say it.

    Args:
        element: Type of its elements.
        shape: Its sizes; one that has a name is the same wherever the name stands, None is any.
    """
    return helper.make_tensor_type_proto(element, list(shape))


class Graph:
    """The nodes of a graph, or of the body of a loop in it. A body sees the outer graph's values and weights.

    Args:
        outer: The graph that the body stands in; none for the main graph.
    """

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
        names = [self._name(kind) for _ in range(outputs)]
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
        """Adds a loop; returns the names of what it carried, after it.

        Args:
            trips: Most iterations, a whole number ``()``.
            carried: What it carries; sizes without a name may change on the way.
            body: The nodes of one iteration.
            iteration: Name by which the body knows the iteration's number.
            goes_on: What the body computes to say whether another one follows; none means always.
        """
        going = self._name("going")
        if not goes_on:
            goes_on = self._name("goes_on")
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
        found = self.op("Loop", trips, "", *(part.before for part in carried), body=graph, outputs=len(carried))
        names: list[str] = found if isinstance(found, list) else [found]
        self._kinds += [helper.make_value_info(name, part.kind) for name, part in zip(names, carried, strict=True)]
        return names

    def choose(self, condition: str, then: Branch, otherwise: Branch, names: Sequence[str] | None = None) -> list[str]:
        """Adds a choice between two branches, of which one is computed; returns the names of its results.

        Args:
            condition: A truth value ``()``.
            then: What is computed if it holds.
            otherwise: What is computed if not; its results are of the same kinds.
            names: Of the results; none gives them names.
        """
        chosen = list(names or (self._name("If") for _ in then.results))
        branches = {
            which: helper.make_graph(
                branch.graph.nodes,
                which,
                [],
                [helper.make_value_info(name, kind) for name, kind in branch.results],
                value_info=branch.graph._kinds,
            )
            for which, branch in (("then_branch", then), ("else_branch", otherwise))
        }
        self.nodes.append(helper.make_node("If", [condition], chosen, **branches))
        return chosen

    def rename(self, value: str, name: str) -> None:
        """Gives a node's output that nothing reads the name of an output of the graph."""
        for node in self.nodes:
            for place, output in enumerate(node.output):
                if output == value:
                    node.output[place] = name
        self._kinds = [known for known in self._kinds if known.name != value]

    def name(self, kind: str) -> str:
        """A name that nothing else has."""
        return self._name(kind)

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

    def _name(self, kind: str) -> str:
        self._top._names += 1
        return f"{kind}_{self._top._names}"


@dataclass(frozen=True)
class Carried:
    """A value that a loop carries from one iteration to the next.

    Attributes:
        before: The value before the first.
        inner: Name by which the body knows it.
        result: What the body makes of it.
        kind: Type and shape of all three.
    """

    before: str
    inner: str
    result: str
    kind: Kind


@dataclass(frozen=True)
class Branch:
    """One side of a choice: its nodes, and which of their values are its results, with their types and shapes."""

    graph: Graph
    results: Sequence[tuple[str, Kind]]


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
