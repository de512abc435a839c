"""Building blocks of an ONNX graph: nodes, and weights that stand once whatever refers to them."""

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
