"""Linear models computed by ONNX Runtime: texts are cut here, all else is in the graph. Imports no onnx, no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from recurra.core.errors import CheckpointError
from recurra.core.tokenizer_files import read_tokenizer_file
from recurra.deployment.engines.computation import Computation
from recurra.deployment.onnx.contract import CHARACTERS, LOGITS, MODEL_NAME, PIECES, WORDS
from recurra.deployment.onnx.sessions import open_session, run_session
from recurra.models.controls import TOKENIZER_NAME, piece_ids


def units_of(unit: str, text: str) -> list[str]:
    """What the n-grams of a cleaned text are runs of, in their order.

    Words are runs of letters and digits. Characters are those of what blanks set apart, with a blank at either end, and
    behind each an empty one, which stands in no n-gram.
    """
    if unit == WORDS:
        return re.findall(r"\b\w+\b", text)
    return [character for word in text.split() for character in (*f" {word} ", "")]


class OnnxLinearEngine:
    """Runs the graph of a linear model, text by text.

    Args:
        session: The graph, loaded.
        tokenizer: Cuts texts into the pieces of a static model; none for n-grams.
    """

    def __init__(self, session: Any, tokenizer: Tokenizer | None) -> None:
        self._session, self._tokenizer = session, tokenizer
        self._inputs = [each.name for each in session.get_inputs()]
        self._labels = session.get_outputs()[0].shape[-1]
        self.computation = Computation(
            engine="onnxruntime", storage_precision="fp32", compute_precision="fp64", device="cpu"
        )

    @classmethod
    def load(cls, folder: Path, threads: int = 0) -> OnnxLinearEngine:
        """Reads an export's folder; 0 threads are one for each core.

        Raises:
            UnavailableError: If ONNX Runtime is not installed, or is too old.
            CheckpointError: If the graph cannot be read, or takes something else than words, characters or pieces.
        """
        session = open_session(folder / MODEL_NAME, threads)
        names = {each.name for each in session.get_inputs()}
        if not names or not names <= {PIECES, WORDS, CHARACTERS}:
            raise CheckpointError(
                f"'{folder / MODEL_NAME}' takes {', '.join(sorted(names)) or 'nothing'}, which is no linear model of "
                "ours; export the run again"
            )
        tokenizer = read_tokenizer_file(folder / TOKENIZER_NAME, "export the run again") if PIECES in names else None
        return cls(session, tokenizer)

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:  # noqa: ARG002 - an Engine's
        """Returns ``(texts, labels)`` for cleaned texts."""
        rows = [run_session(self._session, [LOGITS], self._read(text))[0] for text in texts]
        return np.concatenate(rows) if rows else np.zeros((0, self._labels), dtype=np.float32)

    def _read(self, text: str) -> dict[str, npt.NDArray[Any]]:
        if self._tokenizer is not None:
            return {PIECES: np.array(piece_ids([text], self._tokenizer)[0], dtype=np.int64)}
        return {name: np.array(units_of(name, text), dtype=object) for name in self._inputs}
