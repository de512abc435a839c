"""Linear models as an ONNX graph: from the words and characters of a text, or its word pieces, to logits.

No standard operator splits a text as Python does, so the graph begins after the splitting, as a Transformer's does. Its
inputs are strings: the words in their order, and the characters of each word, which other programs compute in a few
lines (`docs/how-to/export.md`). The graph computes counts of n-grams, weights, lengths and scores in double precision.
It takes one text per call; of the counts of all n-grams, only those above 0 are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.compose
from onnx import TensorProto, helper

from recurra.core.errors import ConfigurationError
from recurra.core.files import write_text
from recurra.deployment.onnx import LOGITS, MODEL_NAME, PIECES, WORDS
from recurra.deployment.onnx.graph import Graph
from recurra.models.controls import TOKENIZER_NAME
from recurra.models.controls.linear import NGRAMS, LinearModel, Vectorizer


def build_linear(model: LinearModel) -> onnx.ModelProto:
    """Writes the graph.

    Inputs: for n-grams ``words`` and ``characters``, strings ``(words,)`` and ``(characters,)`` as
    `recurra.deployment.onnx.engine.units_of` gives them; for static vectors ``pieces``, int64 ``(pieces,)``,
    without special tokens. Output: ``logits``, FP32 ``(1, labels)``.

    Raises:
        ConfigurationError: If the n-grams are hashed, so that they are not known.
    """
    if any(vectorizer.is_hashed for vectorizer in model.vectorizers):
        raise ConfigurationError(
            "the n-grams of this linear model are hashed, because of its many training texts, which an ONNX graph "
            "cannot do; export it as safetensors"
        )
    graph = Graph()
    if model.vectorizers[0].tokenizer is None:
        kinds = [vectorizer for vectorizer in model.vectorizers if len(vectorizer.idf)]
        ends = np.cumsum([len(kind.idf) for kind in kinds])[:-1]
        parts = [
            _scores(graph, kind, weight) for kind, weight in zip(kinds, np.split(model.weight.T, ends), strict=True)
        ]
        scores = parts[0] if len(parts) == 1 else graph.op("Sum", *parts)
        inputs = [helper.make_tensor_value_info(kind.unit, TensorProto.STRING, [kind.unit]) for kind in kinds]
    else:
        rows = _double(graph, graph.op("Gather", graph.weight("weight", model.weight.T), PIECES, axis=0))
        number = graph.op("Max", _double(graph, graph.op("Size", PIECES)), graph.constant(1, np.float64))
        scores = graph.op("Div", graph.op("ReduceSum", rows, graph.numbers(0), keepdims=1), number)
        inputs = [helper.make_tensor_value_info(PIECES, TensorProto.INT64, [PIECES])]
    scores = graph.op("Add", scores, _double(graph, graph.weight("bias", model.bias)))
    if model.num_labels > len(model.bias):
        # Two classes share one score.
        halves = (graph.op("Mul", scores, graph.constant(half, np.float64)) for half in (-0.5, 0.5))
        scores = graph.op("Concat", *halves, axis=1)
    graph.nodes.append(helper.make_node("Cast", [scores], [LOGITS], to=TensorProto.FLOAT))
    output = helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, [1, model.num_labels])
    return graph.model(inputs, [output], {"model": model.description})


def write_linear(model: LinearModel, folder: Path) -> None:
    """Writes ``model.onnx``, and for a static model ``tokenizer.json``."""
    graph = build_linear(model)
    onnx.checker.check_model(graph)
    (folder / MODEL_NAME).write_bytes(graph.SerializeToString())
    if (tokenizer := model.vectorizers[0].tokenizer) is not None:
        write_text(folder / TOKENIZER_NAME, tokenizer.to_str())


def added(classifier: onnx.ModelProto, words: onnx.ModelProto) -> onnx.ModelProto:
    """One graph with the inputs of a classifier and of a linear model, and the sum of their logits; for one text."""
    parts = []
    for name, graph in (("encoder", classifier), ("words", words)):
        # Inputs keep their names; all other names get a prefix, so that the two graphs share none.
        parts.append(onnx.compose.add_prefix(graph, f"{name}.", rename_inputs=False))
    joined = onnx.compose.merge_models(*parts, io_map=[], name="recurra", outputs=[])
    total = helper.make_node("Add", [f"encoder.{LOGITS}", f"words.{LOGITS}"], [LOGITS])
    joined.graph.node.append(total)
    joined.graph.output.append(
        helper.make_tensor_value_info(
            LOGITS, TensorProto.FLOAT, [1, words.graph.output[0].type.tensor_type.shape.dim[1].dim_value]
        )
    )
    return joined


def _double(graph: Graph, value: str) -> str:
    return graph.op("Cast", value, to=TensorProto.DOUBLE)


def _scores(graph: Graph, vectorizer: Vectorizer, weight: npt.NDArray[np.floating[Any]]) -> str:
    """What one kind of n-grams adds to the scores, double ``(1, scores)``: weighted TF-IDF, normed to length 1."""
    starts, columns, pool = list[int](), list[int](), list[str]()
    shortest, longest = NGRAMS[vectorizer.unit]["ngram_range"]
    term_units = [term.split(" ") if vectorizer.unit == WORDS else list(term) for term in vectorizer.terms]
    for length in range(1, longest + 1):
        starts.append(len(pool))
        for column, units in enumerate(term_units):
            if len(units) == length:
                columns.append(column)
                pool += units
    tf = graph.op(
        "TfIdfVectorizer",
        vectorizer.unit,
        mode="TF",
        min_gram_length=shortest,
        max_gram_length=longest,
        max_skip_count=0,
        ngram_counts=starts,
        ngram_indexes=columns,
        pool_strings=pool,
    )
    present = graph.op("Squeeze", graph.op("NonZero", tf), graph.numbers(0))

    def of_present(name: str, values: npt.NDArray[np.floating[Any]]) -> str:
        weights = graph.weight(f"{name}_{vectorizer.unit}", values)
        return _double(graph, graph.op("Gather", weights, present, axis=0))

    values = _double(graph, graph.op("Gather", tf, present, axis=0))
    if vectorizer.sublinear:
        values = graph.op("Add", graph.op("Log", values), graph.constant(1, np.float64))
    values = graph.op("Mul", values, of_present("idf", vectorizer.idf.astype(np.float32)))
    norm = graph.op("Sqrt", graph.op("ReduceSum", graph.op("Mul", values, values), keepdims=1))
    values = graph.op("Unsqueeze", graph.op("Div", values, norm), graph.numbers(1))
    return graph.op("ReduceSum", graph.op("Mul", values, of_present("weight", weight)), graph.numbers(0), keepdims=1)
