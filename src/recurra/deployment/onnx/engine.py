"""Logits by ONNX Runtime, of Transformers and of linear models. Imports neither onnx nor torch nor transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.files import read_json
from recurra.data.encoding import are_cut, encode_windows
from recurra.data.tokenization import read_tokenizer_file
from recurra.data.windows import pool_windows
from recurra.deployment.engines.computation import (
    TOKENS_A_ROW,
    Computation,
    Depth,
    Engine,
    Integers,
    Logits,
    padded_ids,
)
from recurra.deployment.onnx import (
    CHARACTERS,
    CONFIDENCES,
    ENTROPIES,
    EXIT_LOGITS,
    EXITED_AFTER,
    INPUT_IDS,
    LOGITS,
    MASK,
    MODEL_NAME,
    PIECES,
    RECURRENCES,
    WORDS,
)
from recurra.deployment.onnx.sessions import Sessions, open_session, run_session
from recurra.models.controls import TOKENIZER_NAME, piece_ids
from recurra.models.exits.rules import CONFIDENCE, ENTROPY, Bound, ExitRule

CONFIGURATION_NAME = "config.json"
_CURE = "export the run again"
# A bound above every probability: the exit's head is computed, but no text leaves there.
_ABOVE_ALL_PROBABILITIES = 2.0


class OnnxEngine(Engine):
    """Runs an exported classifier on ONNX Runtime."""

    max_length: int

    def __init__(
        self, folder: Path, *, precision: str, max_length: int, pad_token_id: int, windows: int = 1, threads: int = 0
    ) -> None:
        """Reads model and tokenizer from an export; 0 threads are one for each core."""
        self.sessions = sessions = Sessions(folder / MODEL_NAME, precision, threads)
        exits, num_recurrences = _read_depth(folder)
        labels = int(sessions.session.get_outputs()[0].shape[1])
        # Inputs of a linear model in the same graph, which then takes one text per call.
        self._units = [item.name for item in sessions.session.get_inputs() if item.name in (WORDS, CHARACTERS)]
        self.depth: Depth = Depth(exits, 1 if self._units else num_recurrences, labels, windows)
        self.tokenizer = read_tokenizer_file(folder / TOKENIZER_NAME, _CURE)
        # Bounds of exits have no defaults in a web export, because ONNX Runtime in a browser supports none.
        input_names = {value.name for value in sessions.session.get_inputs()}
        self._nobody_leaves = {
            name: np.full(len(exits), bound, dtype=np.float32)
            for name, bound in ((CONFIDENCES, np.inf), (ENTROPIES, -1.0))
            if name in input_names
        }
        self.max_length, self.windows = max_length, windows
        self.pad_token_id = pad_token_id
        self.concurrency = sessions.threads if sessions.long_text else 1
        self.computation: Computation = Computation(
            engine="onnxruntime", storage_precision=precision, compute_precision=precision, device="cpu"
        )

    @property
    def reads_all(self) -> bool:
        """Whether a linear model in the graph reads texts whole."""
        return bool(self._units)

    def are_cut(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        return are_cut(texts, self.tokenizer, self.max_length, self.windows)

    def logits(self, texts: Sequence[str], batch_size: int) -> Logits:
        (result,) = self._run(texts, batch_size, [LOGITS])
        return result

    def leave_early(self, texts: Sequence[str], batch_size: int, rule: ExitRule) -> tuple[Logits, Integers]:
        bounds = _bounds(rule, self.depth.exits)
        if not np.isfinite(bounds[CONFIDENCES]).any():
            taken = np.full(len(texts), self.depth.num_recurrences, dtype=np.int64)
            return self.logits(texts, batch_size), taken
        logits, depths = self._run(texts, batch_size, [LOGITS, EXITED_AFTER], bounds)
        return logits, depths

    def logits_by_recurrence(self, texts: Sequence[str], batch_size: int) -> dict[int, Logits]:
        """Returns the logits after each recurrence, ``(texts, labels)``, for cleaned texts.

        Without exits the final head is applied early, and the graph runs once for each number of recurrences.
        """
        num_recurrences, exits = self.depth.num_recurrences, self.depth.exits
        if exits:
            no_exits_taken = {CONFIDENCES: np.full(len(exits), _ABOVE_ALL_PROBABILITIES, dtype=np.float32)}
            last, exit_logits = self._run(texts, batch_size, [LOGITS, EXIT_LOGITS], no_exits_taken)
            return {number: exit_logits[:, index] for index, number in enumerate(exits)} | {num_recurrences: last}
        earlier = {
            number: self._run(texts, batch_size, [LOGITS], {RECURRENCES: np.array(number)})[0]
            for number in range(1, num_recurrences)
        }
        return earlier | {num_recurrences: self.logits(texts, batch_size)}

    def _run(
        self, texts: Sequence[str], batch_size: int, outputs: Sequence[str], more: Mapping[str, Any] | None = None
    ) -> list[npt.NDArray[Any]]:
        """Outputs of the graph, in the order of the texts."""
        input_ids, offsets, counts = encode_windows(texts, self.tokenizer, self.max_length, self.windows)
        lengths, starts = np.diff(offsets), offsets[:-1]

        def compute(session: Any, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
            ids, real = padded_ids(input_ids, starts[rows], lengths[rows], self.pad_token_id)
            feeds = {INPUT_IDS: ids, MASK: real.astype(np.int64), **self._nobody_leaves, **(more or {})}
            feeds |= {name: np.array(units_of(name, texts[rows[0]]), dtype=object) for name in self._units}
            return run_session(session, outputs, feeds)

        if len(lengths) == 1:
            return self.sessions.alone(lengths, lambda session: compute(session, np.zeros(1, dtype=np.int64)))
        results: list[npt.NDArray[Any]] = []
        most_tokens = 1 if self._units else batch_size * TOKENS_A_ROW
        for rows, computed in self.sessions.run(lengths, most_tokens, compute):
            if not results:
                results = [np.empty((len(lengths), *values.shape[1:]), dtype=values.dtype) for values in computed]
            for result, values in zip(results, computed, strict=True):
                result[rows] = values
        return [pool_windows(result, counts) for result in results]


def _bounds(rule: ExitRule, exits: Sequence[int]) -> dict[str, npt.NDArray[np.float32]]:
    """A rule as inputs of the graph, see `recurra.deployment.onnx.model`."""
    confidences, entropies = [], []
    for number in exits:
        bound = rule.as_bound(number) if rule.asks(number) else Bound(CONFIDENCE, np.inf)
        if bound is None or bound.measure not in (CONFIDENCE, ENTROPY):
            raise ConfigurationError(
                f"an ONNX export cannot stop texts by rule '{rule.name}': its graph compares the {CONFIDENCE} or the "
                f"{ENTROPY} of a head with a threshold and nothing else; take another rule, or an export in "
                "safetensors"
            )
        confidences.append(bound.value if bound.measure == CONFIDENCE else _ABOVE_ALL_PROBABILITIES)
        entropies.append(bound.value if bound.measure == ENTROPY else -1.0)
    names = {CONFIDENCES: confidences, ENTROPIES: entropies}
    return {name: np.array(values, dtype=np.float32) for name, values in names.items()}


def _read_depth(folder: Path) -> tuple[tuple[int, ...], int]:
    """Exits and number of recurrences, from the model's configuration."""
    path = folder / CONFIGURATION_NAME
    try:
        config = dict(read_json(path))
        exits, most = config.get("exits") or [], config.get("num_recurrences", 1)
        are_valid = [type(number) is int and number > 0 for number in (*exits, most)]
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"'{path}' is not a configuration of an export; {_CURE}") from error
    if not all(are_valid) or max(exits, default=0) > most:
        raise CheckpointError(
            f"'{path}': 'exits' is {exits!r} and 'num_recurrences' {most!r}; whole numbers from 1 are needed; {_CURE}"
        )
    return tuple(exits), most


def units_of(unit: str, text: str) -> list[str]:
    """The words or characters that the n-grams of a cleaned text consist of, in their order.

    Words are runs of letters and digits. For characters the text is split at blanks, each part has a blank at either
    end, and is followed by an empty string, which is in no n-gram.
    """
    if unit == WORDS:
        return re.findall(r"\b\w+\b", text)
    return [character for word in text.split() for character in (*f" {word} ", "")]


class OnnxLinearEngine(Engine):
    """Runs the graph of a linear model, text by text; a static model has a tokenizer."""

    computation: Computation = Computation(
        engine="onnxruntime", storage_precision="fp32", compute_precision="fp64", device="cpu"
    )

    def __init__(self, folder: Path, threads: int = 0) -> None:
        """Reads an export's folder; 0 threads are one for each core."""
        self._session = open_session(folder / MODEL_NAME, threads)
        self._inputs = names = [item.name for item in self._session.get_inputs()]
        if not names or not {*names} <= {PIECES, WORDS, CHARACTERS}:
            raise CheckpointError(
                f"'{folder / MODEL_NAME}' takes {', '.join(sorted(names)) or 'nothing'} and is not an exported linear "
                f"model; {_CURE}"
            )
        self._tokenizer = read_tokenizer_file(folder / TOKENIZER_NAME, _CURE) if PIECES in names else None
        self._labels = self._session.get_outputs()[0].shape[-1]

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:  # noqa: ARG002 - one by one
        rows = [run_session(self._session, [LOGITS], self._read(text))[0] for text in texts]
        return np.concatenate(rows) if rows else np.zeros((0, self._labels), dtype=np.float32)

    def _read(self, text: str) -> dict[str, npt.NDArray[Any]]:
        if self._tokenizer is not None:
            return {PIECES: np.array(piece_ids([text], self._tokenizer)[0], dtype=np.int64)}
        return {name: np.array(units_of(name, text), dtype=object) for name in self._inputs}
