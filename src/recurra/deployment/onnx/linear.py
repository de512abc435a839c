"""Linear models as an ONNX graph: from the words and characters of a text, or its word pieces, to logits.

No standard operator cuts a text as Python does, so the graph begins where a Transformer's does, behind the cutting.
What comes in are strings: the words in their order, and the characters of each word, which other programs cut in a few
lines (`docs/how-to/export.md`). Counting n-grams, their weights, lengths and scores are in the graph, in double
precision. One text a call: counts of all n-grams stand in one dense vector.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from recurra.deployment.onnx.contract import LOGITS, MODEL_NAME, PIECES
from recurra.deployment.onnx.graph import Graph
from recurra.models.controls.ngrams import LinearClassifier
from recurra.models.controls.static import StaticClassifier, write_tokenizer
from recurra.models.controls.tfidf import Vectorizer
from recurra.models.controls.weights import LinearModel


def build_linear(model: LinearModel) -> onnx.ModelProto:
    """Writes the graph.

    Inputs: for n-grams ``words`` and ``characters``, strings ``(words,)`` and ``(characters,)`` as
    `recurra.models.controls.tfidf.Ngrams.units` gives them; for static vectors ``pieces``, int64 ``(pieces,)``, without
    special tokens. Output: ``logits``, FP32 ``(1, labels)``.

    Args:
        model: Of n-grams, or static.

    Raises:
        TypeError: For another kind of linear model.
    """
    graph = Graph()
    if isinstance(model, LinearClassifier):
        kinds = [each for each in model.vectorizers if each.terms]
        parts = [_features(graph, each) for each in kinds]
        features = graph.op("Unsqueeze", graph.op("Concat", *parts, axis=0), graph.numbers(0))
        scores = graph.op("MatMul", features, _double(graph, graph.weight("weight", model.weight.T)))
        names = dict.fromkeys(each.ngrams.unit for each in kinds)
        inputs = [helper.make_tensor_value_info(name, TensorProto.STRING, [name]) for name in names]
    elif isinstance(model, StaticClassifier):
        rows = _double(graph, graph.op("Gather", graph.weight("weight", model.weight.T), PIECES, axis=0))
        number = graph.op("Max", _double(graph, graph.op("Size", PIECES)), graph.constant(1, np.float64))
        scores = graph.op("Div", graph.op("ReduceSum", rows, graph.numbers(0), keepdims=1), number)
        inputs = [helper.make_tensor_value_info(PIECES, TensorProto.INT64, [PIECES])]
    else:
        raise TypeError(f"no graph is written for {type(model).__name__}")
    scores = graph.op("Add", scores, _double(graph, graph.weight("bias", model.bias)))
    if model.num_labels > len(model.bias):
        # Two classes share one score.
        halves = (graph.op("Mul", scores, graph.constant(half, np.float64)) for half in (-0.5, 0.5))
        scores = graph.op("Concat", *halves, axis=1)
    graph.nodes.append(helper.make_node("Cast", [scores], [LOGITS], to=TensorProto.FLOAT))
    output = helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, [1, model.num_labels])
    return graph.model(inputs, [output], {"model": model.description})


def write_linear(model: LinearModel, folder: Path) -> None:
    """Writes ``model.onnx``, and of a static model ``tokenizer.json``.

    Args:
        model: The run's.
        folder: Where to write.
    """
    graph = build_linear(model)
    onnx.checker.check_model(graph)
    (folder / MODEL_NAME).write_bytes(graph.SerializeToString())
    if isinstance(model, StaticClassifier):
        write_tokenizer(model, folder)


def _double(graph: Graph, value: str) -> str:
    return str(graph.op("Cast", value, to=TensorProto.DOUBLE))


def _features(graph: Graph, vectorizer: Vectorizer) -> str:
    """TF-IDF of one kind of n-grams, double ``(terms,)``, of length 1; of a text without any it is 0."""
    ngrams, starts, columns, pool = vectorizer.ngrams, list[int](), list[int](), list[str]()
    cut = [term.split(" ") if ngrams.unit == "words" else list(term) for term in vectorizer.terms]
    for length in range(1, ngrams.longest + 1):
        starts.append(len(pool))
        for column, units in enumerate(cut):
            if len(units) == length:
                columns.append(column)
                pool += units
    counted = graph.op(
        "TfIdfVectorizer",
        ngrams.unit,
        mode="TF",
        min_gram_length=ngrams.shortest,
        max_gram_length=ngrams.longest,
        max_skip_count=0,
        ngram_counts=starts,
        ngram_indexes=columns,
        pool_strings=pool,
    )
    one = graph.constant(1, np.float64)
    values = counts = _double(graph, counted)
    if ngrams.sublinear:
        present = _double(graph, graph.op("Greater", counts, graph.constant(0, np.float64)))
        values = graph.op("Mul", present, graph.op("Add", graph.op("Log", graph.op("Max", counts, one)), one))
    values = graph.op("Mul", values, _double(graph, graph.weight(f"idf_{ngrams.unit}", vectorizer.idf)))
    length = graph.op("Sqrt", graph.op("ReduceSum", graph.op("Mul", values, values), keepdims=1))
    none = graph.op("Equal", length, graph.constant(0, np.float64))
    return str(graph.op("Div", values, graph.op("Where", none, one, length)))
