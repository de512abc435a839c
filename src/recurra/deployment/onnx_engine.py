"""Logits by ONNX Runtime. Neither torch nor transformers is needed, nor imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from recurra.core.environment import available_cores
from recurra.core.errors import CheckpointError, ConfigurationError, UnavailableError
from recurra.data.encoding import encode_texts
from recurra.deployment.computation import Computation
from recurra.deployment.rows import TOKENS_A_ROW, budget_batches, padded_ids

MODEL_NAME = "model.onnx"
TOKENIZER_NAME = "tokenizer.json"
_ERRORS_ONLY = 3
# 1.22 to 1.24 gave logits of thousands for small int8 products on a processor with AMX; the operator set needs 1.23.
OLDEST_RUNTIME = (1, 25)


class OnnxEngine:
    """Runs an exported classifier on ONNX Runtime.

    Args:
        session: The loaded model.
        tokenizer: Its tokenizer.
        precision: Precision of the stored weights, which is computed in.
        max_length: Tokens after which a text is cut.
        pad_token_id: Token that fills.
    """

    def __init__(
        self, session: Any, tokenizer: Tokenizer, *, precision: str, max_length: int, pad_token_id: int
    ) -> None:
        self.session = session
        self.tokenizer = tokenizer
        self.max_length = max_length
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
        requested: str | None = None,
        threads: int = 0,
    ) -> OnnxEngine:
        """Reads model and tokenizer from an export.

        Args:
            folder: The export.
            precision: Precision of the stored weights.
            max_length: Tokens after which a text is cut.
            pad_token_id: Token that fills.
            requested: Precision to compute in, if the user asks for one; only that of the weights will do.
            threads: Threads of a computation; 0 takes all cores.

        Raises:
            ConfigurationError: If another precision is asked for.
            UnavailableError: If ONNX Runtime is not installed.
            CheckpointError: If this version of it cannot read the model.
        """
        if requested not in (None, precision):
            raise ConfigurationError(
                f"'{folder}' is an ONNX export and computes in {precision}, not in {requested}; "
                "leave --precision out, or export safetensors"
            )
        session = open_session(folder / MODEL_NAME, threads)
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_NAME))
        return cls(session, tokenizer, precision=precision, max_length=max_length, pad_token_id=pad_token_id)

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:
        """Returns ``(texts, labels)`` for cleaned texts."""
        input_ids, offsets = encode_texts(texts, self.tokenizer, self.max_length)
        lengths, starts = np.diff(offsets), offsets[:-1]
        labels = self.session.get_outputs()[0].shape[1]
        result = np.empty((len(texts), labels), dtype=np.float32)
        for rows in budget_batches(lengths, batch_size * TOKENS_A_ROW):
            ids, keep = padded_ids(input_ids, starts[rows], lengths[rows], self.pad_token_id)
            inputs = {"input_ids": ids, "attention_mask": keep.astype(np.int64)}
            result[rows] = self.session.run(None, inputs)[0]
        return result


def require_onnxruntime() -> Any:
    """Returns the package.

    Raises:
        UnavailableError: If it is not installed, or is one that computes wrongly.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UnavailableError("ONNX Runtime is not installed; pip install 'recurra[onnx]'") from error
    if tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) < OLDEST_RUNTIME:
        raise UnavailableError(
            f"ONNX Runtime {onnxruntime.__version__} lacks operators of an export and gets int8 products wrong on some "
            f"processors; at least {'.'.join(map(str, OLDEST_RUNTIME))} is needed: "
            "pip install --upgrade 'recurra[onnx]'"
        )
    return onnxruntime


def open_session(path: Path, threads: int = 0) -> Any:
    """Loads a model into ONNX Runtime.

    Raises:
        UnavailableError: If ONNX Runtime is not installed.
        CheckpointError: If this version of it cannot read the model.
    """
    runtime = require_onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or available_cores()
    options.log_severity_level = _ERRORS_ONLY
    # Plans of memory are kept for every shape that comes, and texts have many lengths.
    options.enable_mem_pattern = False
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        first = str(error).strip().splitlines()[0][:200]
        raise CheckpointError(
            f"'{path}' cannot be read by ONNX Runtime {runtime.__version__} ({first}); export the run again"
        ) from error
