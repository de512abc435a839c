"""Classifiers as ONNX graphs: the core is the body of a loop, so its layers are stored once and run repeatedly.

The graph is written from the weights and the configuration, operation by operation: an exporter that traces a run of
the model would write the core once for each recurrence and fix their number. The graph computes the same as
`recurra.models.modeling.RecurraForSequenceClassification` on padded rows; the tests compare the two for every key of
the configuration, and every export is compared on real rows. See `docs/decisions/0010-onnx-by-hand.md`.

Classifiers over transformers' own layers are traced by torch, and quantised by ONNX Runtime (`write_traced`).
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn
from transformers import PreTrainedModel

from recurra.core.errors import ConfigurationError
from recurra.deployment.onnx import (
    CONFIDENCES,
    ENTROPIES,
    EXIT_LOGITS,
    EXITED_AFTER,
    INPUT_IDS,
    LOGITS,
    MASK,
    MODEL_NAME,
    RECURRENCES,
)
from recurra.deployment.onnx.graph import Array, Carried, Graph, Int8Linear, Kind, Linear, tensor
from recurra.deployment.onnx.layers import LayerWriter, Rows
from recurra.deployment.onnx.linear import added, build_linear
from recurra.models.configuration import RecurraConfig
from recurra.models.controls.linear import LinearModel

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
# Bound from which an exit is not used; not infinity, since OpenVINO's minimum is at most the largest finite number.
_NEVER = float(np.finfo(np.float32).max)
_NOTHING = onnx.numpy_helper.from_array(np.array([np.nan], dtype=np.float32))
# Opset of traced graphs.
_TRACED_OPSET = 17


class ExitWriter:
    """Writes the recurrences of a model with exits, its heads, and the decisions to leave."""

    def __init__(self, layers: LayerWriter) -> None:
        self.layers, self.graph, self.config = layers, layers.graph, layers.config
        self.exits, self.labels = len(self.config.exits), int(self.config.num_labels)
        info = helper.make_tensor_value_info
        self.inputs: list[onnx.ValueInfoProto] = [info(name, FLOAT, [self.exits]) for name in (CONFIDENCES, ENTROPIES)]
        self.outputs: list[onnx.ValueInfoProto] = [
            info(EXITED_AFTER, INT64, ["rows_asked"]),
            info(EXIT_LOGITS, FLOAT, ["rows_asked", self.exits, self.labels]),
        ]
        self._trips = self.graph.weight(RECURRENCES, np.asarray(self.config.num_recurrences, dtype=np.int64))
        states = tensor(FLOAT, None, "tokens", int(self.config.hidden_size))
        # Types of the values of `Rows`.
        self._kinds = {
            "states": states,
            "numbers": tensor(INT64, None),
            "seen": tensor(BOOL, None, 1, "tokens", "tokens"),
            "first": states,
            "where": tensor(INT64, None, 1),
            "real": tensor(INT64, None, "tokens"),
        }
        # Types of the results for each row: logits, recurrences taken, logits of the exits.
        self._written = [
            tensor(FLOAT, None, self.labels),
            tensor(INT64, None),
            tensor(FLOAT, None, self.exits, self.labels),
        ]

    def _kinds_of(self, rows: Rows) -> list[Kind]:
        """Types of the values of rows, and of the results."""
        return [*(self._kinds[field] for field in rows.present()), *self._written]

    def write(self, states: str) -> None:
        """Adds the outputs to the main graph, from the core's input states ``(batch, tokens, hidden)``."""
        graph, layers = self.graph, self.layers
        for name, never in ((CONFIDENCES, np.inf), (ENTROPIES, -1.0)):
            graph.weight(name, np.full(self.exits, never, dtype=np.float32))
        uses_exits = graph.op("Less", graph.op("ReduceMin", CONFIDENCES, keepdims=0), graph.number(_NEVER))
        last = graph.op("Sub", self._trips, graph.constant(1, np.int64))
        if self.config.input_injection == "none":
            layers.rows = replace(layers.rows, first="")
        none = graph.constant(0, np.int64)
        states = _loop(layers, states, graph.op("Where", uses_exits, none, last))

        # OpenVINO reads an empty constant as a single number, but an empty slice of a constant correctly.
        written = [
            graph.slice(graph.constant(np.zeros((1, *rest)), dtype), 0, 0, 0)
            for rest, dtype in (([self.labels], np.float32), ([], np.int64), ([self.exits, self.labels], np.float32))
        ]
        # Any one number: if the loop does not run, rows are left. A carried truth value would not do: in OpenVINO,
        # values of a fixed shape are unset after a loop that did not run.
        rows = replace(layers.rows, states=states, numbers=graph.numbers(0))
        # Iterations of the loop over the exits if no row leaves; 0 if no exit is used.
        trips = graph.op("Where", uses_exits, last, none)
        rows, written = self._read_exits(rows, written, trips)
        self._finish(rows, written, trips, last)

    def _read_exits(self, rows: Rows, written: Sequence[str], trips: str) -> tuple[Rows, list[str]]:
        """Writes ``trips`` recurrences, fewer if no rows are left: 0, or all but the last, which has no exit."""
        graph, layers = self.graph, self.layers
        body = Graph(graph)
        iteration = graph.name("iteration")
        inner = rows.renamed([graph.name("left") for _ in rows.present()])
        before = [graph.name("written") for _ in written]
        numbers, *started = self._begin(body, iteration, [inner.numbers, *before])
        with layers.among(inner):
            states = layers.recurrence(body, inner.states, iteration, narrow=False)
            results = self._read_exit(body, replace(inner, states=states, numbers=numbers), started, iteration)
        size = len(rows.present())
        goes_on = body.op("Cast", body.op("Size", results[1]), to=BOOL)
        outer_names, inner_names = [*rows.present().values(), *written], [*inner.present().values(), *before]
        names_and_kinds = zip(outer_names, inner_names, results, self._kinds_of(rows), strict=True)
        carried = [Carried(*values) for values in names_and_kinds]
        results = graph.loop(trips, carried, body, iteration=iteration, goes_on=goes_on)
        return rows.renamed(results[:size]), results[size:]

    def _begin(self, body: Graph, iteration: str, values: Sequence[str]) -> list[str]:
        """Starts the first recurrence with all rows and no results; later ones pass ``values`` on."""
        first_branch, otherwise = Graph(body), Graph(body)
        batch = first_branch.op("Shape", INPUT_IDS, start=0, end=1)
        zero, one = (first_branch.constant(value, np.int64) for value in (0, 1))
        shapes = [
            first_branch.op("Concat", batch, first_branch.numbers(*rest), axis=0)
            for rest in ([self.labels], [self.exits, self.labels])
        ]
        logits, exit_logits = (first_branch.op("ConstantOfShape", shape, value=_NOTHING) for shape in shapes)
        initial = [
            first_branch.op("Range", zero, first_branch.op("Squeeze", batch), one),
            logits,
            first_branch.op("Expand", self._trips, batch),
            exit_logits,
        ]
        kinds = [self._kinds["numbers"], *self._written]
        is_first = body.op("Equal", iteration, body.constant(0, np.int64))
        passed_on = [otherwise.op("Identity", name) for name in values]
        return body.choose(is_first, kinds, (first_branch, initial), (otherwise, passed_on))

    def _read_exit(self, body: Graph, rows: Rows, written: Sequence[str], iteration: str) -> list[str]:
        """After one recurrence: rows leave if there is an exit here that is used; otherwise nothing changes."""
        exits, num_recurrences = list(self.config.exits), int(self.config.num_recurrences)
        # After the exits' bounds comes one for recurrences without an exit, also those beyond the configuration's.
        numbers = [exits.index(done) if done in exits else len(exits) for done in range(1, num_recurrences + 1)]
        position = body.op("Min", iteration, body.constant(num_recurrences - 1, np.int64))
        number = body.op("Gather", body.numbers(*numbers), position, axis=0)
        bounds = body.op("Concat", CONFIDENCES, body.constant([np.inf], np.float32), axis=0)
        bound = body.op("Gather", bounds, number, axis=0)
        uses_exit = body.op("Less", bound, body.number(_NEVER))

        graph = Graph(body)
        exit_scores = self._exit_head(graph, self.layers.read(graph, rows.states), number)
        leaves = self._leaves(graph, exit_scores, bound, number)
        staying = graph.op("Squeeze", graph.op("NonZero", graph.op("Not", leaves)), graph.numbers(0))
        passed_on = [graph.op("Gather", name, staying, axis=0) for name in rows.present().values()]
        logits, depths, exit_logits = written
        index = graph.op("Unsqueeze", rows.numbers, graph.numbers(1))
        done = graph.op("Add", iteration, graph.constant(1, np.int64))
        exit_number = graph.op("Expand", number, graph.op("Shape", index))
        passed_on += [
            # A deeper exit overwrites the logits of this one.
            graph.op("ScatterND", logits, index, exit_scores),
            graph.op("ScatterND", depths, index, graph.op("Where", leaves, done, self._trips)),
            graph.op("ScatterND", exit_logits, graph.op("Concat", index, exit_number, axis=1), exit_scores),
        ]
        pass_branch = Graph(body)
        unchanged = [pass_branch.op("Identity", name) for name in (*rows.present().values(), *written)]
        return body.choose(uses_exit, self._kinds_of(rows), (graph, passed_on), (pass_branch, unchanged))

    def _finish(self, rows: Rows, written: Sequence[str], trips: str, last: str) -> None:
        graph, layers = self.graph, self.layers
        logits, depths, exits = written
        some_left, none_left = Graph(graph), Graph(graph)
        with layers.among(rows):
            states = layers.recurrence(some_left, rows.states, last, narrow=self.config.pooling == "first")
            pooled = layers.read(some_left, states)
        scores = some_left.op("Add", *layers.head(some_left, pooled))
        early, direct = Graph(some_left), Graph(some_left)
        index = early.op("Unsqueeze", rows.numbers, early.numbers(1))
        kinds = self._written[:1]
        (all_logits,) = some_left.choose(
            some_left.op("Greater", trips, some_left.constant(0, np.int64)),
            kinds,
            (early, [early.op("ScatterND", logits, index, scores)]),
            (direct, [direct.op("Identity", scores)]),
        )
        written_logits = none_left.op("Identity", logits)
        is_some_left = graph.op("Cast", graph.op("Size", rows.numbers), to=BOOL)
        graph.choose(is_some_left, kinds, (some_left, [all_logits]), (none_left, [written_logits]), [LOGITS])
        graph.rename(depths, EXITED_AFTER)
        graph.rename(exits, EXIT_LOGITS)

    def _exit_head(self, graph: Graph, pooled: str, number: str) -> str:
        """Logits ``(rows, labels)`` of an exit's head."""
        heads = self.exits if self.config.heads == "separate" else 1
        operands = []
        for part in ("weight", "bias"):
            values = np.stack([self.layers.weights[f"exit_classifiers.{index}.{part}"].T for index in range(heads)])
            stored = graph.weight(f"exit_classifiers.{part}", values[0] if heads == 1 else values)
            operands.append(stored if heads == 1 else graph.op("Gather", stored, number, axis=0))
        return graph.op("Gemm", pooled, *operands)

    def _leaves(self, graph: Graph, scores: str, bound: str, number: str) -> str:
        """Which rows are sure enough to leave, ``(rows,)``; see `recurra.models.exits.rules`."""
        shares = graph.op("Softmax", scores, axis=-1)
        confident = graph.op("GreaterOrEqual", graph.op("ReduceMax", shares, graph.numbers(-1), keepdims=0), bound)
        entropy_bound = graph.op("Gather", ENTROPIES, number, axis=0)
        by_entropy, by_confidence = Graph(graph), Graph(graph)
        log_shares = by_entropy.op("LogSoftmax", scores, axis=-1)
        product = by_entropy.op("Mul", shares, log_shares)
        entropy = by_entropy.op("Neg", by_entropy.op("ReduceSum", product, by_entropy.numbers(-1), keepdims=0))
        leaves = by_entropy.op("Or", confident, by_entropy.op("LessOrEqual", entropy, entropy_bound))
        (result,) = graph.choose(
            graph.op("GreaterOrEqual", entropy_bound, graph.number(0.0)),
            [tensor(BOOL, None)],
            (by_entropy, [leaves]),
            (by_confidence, [by_confidence.op("Identity", confident)]),
        )
        return result


LINEAR: dict[str, type[Linear]] = {"fp32": Linear, "int8": Int8Linear}


def build_classifier(
    config: RecurraConfig, weights: Mapping[str, Array], linear: Linear, *, max_length: int, metadata: dict[str, str]
) -> onnx.ModelProto:
    """Writes the graph.

    Inputs: ``input_ids`` and ``attention_mask``, int64 ``(batch, tokens)``; for a model with several recurrences also
    ``num_recurrences``, int64 ``()``, which may be left out and is then that of the configuration. Output: ``logits``,
    FP32 ``(batch, labels)``. A model with exits has the further inputs and outputs of
    `recurra.deployment.onnx.model`.
    """
    if config.tokens_without_recurrence is not None:
        raise ConfigurationError(
            f"'tokens_without_recurrence' is {config.tokens_without_recurrence}: a graph has one number of recurrences "
            "for all rows of a batch; export as safetensors"
        )
    graph = Graph()
    layers = LayerWriter(graph, config, weights, linear, max_length)
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in (INPUT_IDS, MASK)]
    outputs = [helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["batch", config.num_labels])]
    layers.positions(INPUT_IDS)
    layers.mask(MASK)
    states = layers.embed(INPUT_IDS, MASK)
    states = layers.stack(graph, states, "model.prelude", config.num_prelude_layers, narrow=False)
    layers.rows = replace(layers.rows, first=states)
    if config.num_recurrences > 1:
        inputs.append(helper.make_tensor_value_info(RECURRENCES, TensorProto.INT64, []))
    if config.exits:
        exits = ExitWriter(layers)
        exits.write(states)
        return graph.model([*inputs, *exits.inputs], [*outputs, *exits.outputs], metadata)
    _read(layers, states)
    return graph.model(inputs, outputs, metadata)


def _read(layers: LayerWriter, states: str) -> None:
    """All recurrences, the coda and the final head; a last recurrence of the first position alone follows the loop."""
    graph, config = layers.graph, layers.config
    leading = config.pooling == "first"
    narrow = leading and not config.num_coda_layers
    if config.num_recurrences == 1:
        states = layers.recurrence(graph, states, graph.constant(0, np.int64), narrow=narrow)
    else:
        trips = graph.weight(RECURRENCES, np.asarray(config.num_recurrences, dtype=np.int64))
        last = graph.op("Sub", trips, graph.constant(1, np.int64))
        states = _loop(layers, states, last if narrow else trips)
        states = layers.recurrence(graph, states, last, narrow=True) if narrow else states
    states = layers.stack(graph, states, "model.coda", config.num_coda_layers, narrow=leading)
    graph.nodes.append(helper.make_node("Add", list(layers.head(graph, layers.read(graph, states))), [LOGITS]))


def _loop(layers: LayerWriter, states: str, trips: str) -> str:
    """Applies the core ``trips`` times."""
    graph, body = layers.graph, Graph(layers.graph)
    iteration, inner = graph.name("iteration"), graph.name("states")
    result = layers.recurrence(body, inner, iteration, narrow=False)
    kind = tensor(FLOAT, "batch", "tokens", int(layers.config.hidden_size))
    (states,) = graph.loop(trips, [Carried(states, inner, result, kind)], body, iteration=iteration)
    return states


def write_onnx(
    model: PreTrainedModel,
    precision: str,
    max_length: int,
    folder: Path,
    metadata: dict[str, str],
    *,
    words: LinearModel | None = None,
) -> None:
    """Writes ``config.json`` and ``model.onnx``; the scores of a linear model are added to the classifier's."""
    weights = {name: values.detach().float().cpu().numpy() for name, values in model.state_dict().items()}
    graph = build_classifier(model.config, weights, LINEAR[precision](), max_length=max_length, metadata=metadata)
    if words is not None:
        graph = added(graph, build_linear(words))
    onnx.checker.check_model(graph)
    (folder / MODEL_NAME).write_bytes(graph.SerializeToString())
    model.config.save_pretrained(folder)


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
                opset_version=_TRACED_OPSET,
                dynamo=False,
            )
    # Another library's layers can fail in the tracer with any exception.
    except Exception as error:
        raise ConfigurationError(
            f"torch cannot write this encoder as ONNX ({' '.join(str(error).split())[:120]}); take --format safetensors"
        ) from error
    if precision == "int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

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
