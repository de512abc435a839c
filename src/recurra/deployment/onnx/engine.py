"""Logits by ONNX Runtime. Neither torch nor transformers is needed, nor imported."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.files import read_json
from recurra.core.tokenizer_files import read_tokenizer_file
from recurra.data.encoding import encode_windows
from recurra.data.windows import pool_windows
from recurra.deployment.engines.computation import TOKENS_A_ROW, Computation, Depth, Early, padded_ids
from recurra.deployment.onnx.contract import (
    CHARACTERS,
    CONFIDENCES,
    ENTROPIES,
    EXIT_LOGITS,
    EXITED_AFTER,
    INPUT_IDS,
    LOGITS,
    MASK,
    MODEL_NAME,
    RECURRENCES,
    WORDS,
)
from recurra.deployment.onnx.linear_engine import units_of
from recurra.deployment.onnx.sessions import Sessions, run_session
from recurra.models.exits.rules import CONFIDENCE, ENTROPY, Bound, ExitRule

TOKENIZER_NAME = "tokenizer.json"
CONFIGURATION_NAME = "config.json"
# No probability is so large: the head speaks, and nobody leaves.
_NOBODY = 2.0


class OnnxEngine:
    """Runs an exported classifier on ONNX Runtime.

    Args:
        sessions: The loaded model.
        tokenizer: Its tokenizer.
        precision: Precision of the stored weights, which is computed in.
        max_length: Tokens after which a text is cut, or a window of it.
        pad_token_id: Token that fills.
        windows: Most windows that a text is read in, whose logits are averaged (`recurra.data.windows`).
        exits: Recurrences after which a head of their own stands.
        num_recurrences: How often the core is applied, if nothing else is said.
    """

    def __init__(
        self,
        sessions: Sessions,
        tokenizer: Tokenizer,
        *,
        precision: str,
        max_length: int,
        pad_token_id: int,
        windows: int = 1,
        exits: Sequence[int] = (),
        num_recurrences: int = 1,
    ) -> None:
        self.sessions = sessions
        # Of a linear model whose scores are in the same graph, which then takes one text a call.
        self._units = [each.name for each in sessions.session.get_inputs() if each.name in (WORDS, CHARACTERS)]
        recurrences = 1 if self._units else num_recurrences
        self.depth = Depth(tuple(exits), recurrences, int(sessions.session.get_outputs()[0].shape[1]), windows)
        self.tokenizer = tokenizer
        self._encoding = threading.Lock()
        self.max_length, self.windows = max_length, windows
        self.pad_token_id = pad_token_id
        self.computation = Computation(
            engine="onnxruntime", storage_precision=precision, compute_precision=precision, device="cpu"
        )

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        precision: str,
        max_length: int,
        pad_token_id: int,
        windows: int = 1,
        requested: str | None = None,
        threads: int = 0,
    ) -> OnnxEngine:
        """Reads model and tokenizer from an export.

        Args:
            folder: The export.
            precision: Precision of the stored weights.
            max_length: Tokens after which a text is cut, or a window of it.
            pad_token_id: Token that fills.
            windows: Most windows that a text is read in.
            requested: Precision to compute in, if the user asks for one; only that of the weights will do.
            threads: Threads of a computation; 0 takes all cores.

        Raises:
            ConfigurationError: If another precision is asked for.
            UnavailableError: If ONNX Runtime is not installed.
            CheckpointError: If this version of it cannot read the model, or the files beside it are not ours.
        """
        if requested not in (None, precision):
            raise ConfigurationError(
                f"'{folder}' is an ONNX export and computes in {precision}, not in {requested}; "
                "leave --precision out, or export safetensors"
            )
        sessions = Sessions(folder / MODEL_NAME, precision, threads)
        return cls(
            sessions,
            read_tokenizer_file(folder / TOKENIZER_NAME, "export the run again"),
            precision=precision,
            max_length=max_length,
            pad_token_id=pad_token_id,
            windows=windows,
            **_read_depth(folder),
        )

    @property
    def concurrency(self) -> int:
        """How many threads may ask at once and gain by it."""
        return self.sessions.threads if self.sessions.long_text else 1

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:
        """Returns ``(texts, labels)`` for cleaned texts."""
        (result,) = self._run(texts, batch_size, [LOGITS])
        return result

    def leave_early(self, texts: Sequence[str], batch_size: int, rule: ExitRule) -> Early:
        """Computes cleaned texts, each no deeper than the rule lets it."""
        self.depth.check_one_window()
        bounds = _bounds(rule, self.depth.exits)
        if not np.isfinite(bounds[CONFIDENCES]).any():
            taken = np.full(len(texts), self.depth.num_recurrences, dtype=np.int64)
            return Early(self.logits(texts, batch_size), taken)
        logits, depths = self._run(texts, batch_size, [LOGITS, EXITED_AFTER], bounds)
        return Early(logits, depths)

    def logits_by_recurrence(self, texts: Sequence[str], batch_size: int) -> dict[int, npt.NDArray[np.float32]]:
        """Returns what the model says after each recurrence, ``(texts, labels)``, for cleaned texts.

        Without exits the final head is applied early, and each recurrence is a run of its own from the start.
        """
        most, exits = self.depth.num_recurrences, self.depth.exits
        if exits:
            everybody = {CONFIDENCES: np.full(len(exits), _NOBODY, dtype=np.float32)}
            last, early = self._run(texts, batch_size, [LOGITS, EXIT_LOGITS], everybody)
            return {number: early[:, index] for index, number in enumerate(exits)} | {most: last}
        found = {
            number: self._run(texts, batch_size, [LOGITS], {RECURRENCES: np.array(number)})[0]
            for number in range(1, most)
        }
        return found | {most: self.logits(texts, batch_size)}

    def _run(
        self, texts: Sequence[str], batch_size: int, outputs: Sequence[str], more: Mapping[str, Any] | None = None
    ) -> list[npt.NDArray[Any]]:
        """Outputs of the graph, in the order of the texts."""
        # Where a text is cut is set for each call: two threads would take it from each other.
        with self._encoding:
            input_ids, offsets, counts = encode_windows(texts, self.tokenizer, self.max_length, self.windows)
        lengths, starts = np.diff(offsets), offsets[:-1]

        def compute(session: Any, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
            ids, keep = padded_ids(input_ids, starts[rows], lengths[rows], self.pad_token_id)
            feeds = {INPUT_IDS: ids, MASK: keep.astype(np.int64), **(more or {})}
            feeds |= {name: np.array(units_of(name, texts[rows[0]]), dtype=object) for name in self._units}
            return run_session(session, outputs, feeds)

        if len(lengths) == 1:
            return compute(self.sessions.alone(lengths), np.zeros(1, dtype=np.int64))
        results: list[npt.NDArray[Any]] = []
        for rows, found in self.sessions.run(lengths, 1 if self._units else batch_size * TOKENS_A_ROW, compute):
            if not results:
                results = [np.empty((len(lengths), *values.shape[1:]), dtype=values.dtype) for values in found]
            for result, values in zip(results, found, strict=True):
                result[rows] = values
        return [pool_windows(result, counts) for result in results]


def _bounds(rule: ExitRule, exits: Sequence[int]) -> dict[str, npt.NDArray[np.float32]]:
    """A rule as the graph takes it, see `recurra.deployment.onnx.model`.

    Raises:
        ConfigurationError: If the graph has no comparison for it.
    """
    confidences, entropies = [], []
    for number in exits:
        bound = rule.as_bound(number) if rule.asks(number) else Bound(CONFIDENCE, np.inf)
        if bound is None or bound.measure not in (CONFIDENCE, ENTROPY):
            raise ConfigurationError(
                f"an ONNX export cannot stop texts by rule '{rule.name}': its graph compares the {CONFIDENCE} or the "
                f"{ENTROPY} of a head with a bound and can do no more; take another rule, or an export in safetensors"
            )
        confidences.append(bound.value if bound.measure == CONFIDENCE else _NOBODY)
        entropies.append(bound.value if bound.measure == ENTROPY else -1.0)
    names = {CONFIDENCES: confidences, ENTROPIES: entropies}
    return {name: np.array(values, dtype=np.float32) for name, values in names.items()}


def _read_depth(folder: Path) -> dict[str, Any]:
    """Exits and number of recurrences, from the model's configuration."""
    path = folder / CONFIGURATION_NAME
    if not path.is_file():
        return {}
    try:
        config = dict(read_json(path))
        exits, most = config.get("exits") or [], config.get("num_recurrences", 1)
        whole = [type(number) is int and number > 0 for number in (*exits, most)]
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"'{path}' is no configuration of ours; export the run again") from error
    if not all(whole) or max(exits, default=0) > most:
        raise CheckpointError(
            f"'{path}': 'exits' is {exits!r} and 'num_recurrences' {most!r}; whole numbers from 1 are needed; "
            "export the run again"
        )
    return {"exits": exits, "num_recurrences": most}
