"""ONNX Runtime: which versions will do, a model loaded into it, and batches computed side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from recurra.core.environment import available_cores
from recurra.core.errors import CheckpointError, UnavailableError
from recurra.core.terminal import one_line
from recurra.deployment.engines.computation import TOKENS_A_ROW, budget_batches

Integers = npt.NDArray[np.int64]
Found = TypeVar("Found")

# 1.22 to 1.24 gave logits of thousands for small int8 products on a processor with AMX; the operator set needs 1.23.
OLDEST_RUNTIME = (1, 25)
_ERRORS_ONLY = 3
# In int8: the fewest tokens whose computation a second thread makes faster, and what a thread computes best at once.
LONG_TEXT = 192
SMALL_BATCH = 8 * TOKENS_A_ROW


class Sessions:
    """A loaded model, its threads put to work as suits what is asked.

    In FP32 all threads share each computation. In int8 a computation is so short that sharing a text takes longer up to
    a hundred tokens, and small batches side by side take 5 to 28 % less time than batches that all threads share
    (`docs/log.md`, "The int8 export in batches"). So in int8 each thread has batches of its own, small enough for its
    cache, but for one long text that comes alone: for it the model is loaded again, for all threads.

    Args:
        path: The model.
        precision: Of its weights.
        threads: Those that may be used; 0 means one for each core.

    Raises:
        UnavailableError: If ONNX Runtime is not installed, or is too old.
        CheckpointError: If this version of it cannot read the model.
    """

    def __init__(self, path: Path, precision: str, threads: int = 0) -> None:
        self.threads = threads or available_cores()
        self.apart = precision == "int8"
        self._path, self._opened = path, _identity(path)
        self.session = open_session(path, 1 if self.apart else self.threads)
        self._shared: Any = None if self.apart else self.session
        self._opening = threading.Lock()

    def cut(self, lengths: Integers, budget: int) -> list[Integers]:
        """Cuts rows, sorted by length, into batches of at most so many tokens, or as few as suit the threads."""
        return list(budget_batches(lengths, min(budget, SMALL_BATCH) if self.apart else budget))

    def run(
        self, lengths: Integers, budget: int, compute: Callable[[Any, Integers], Found]
    ) -> Iterator[tuple[Integers, Found]]:
        """Computes rows in batches.

        Args:
            lengths: Tokens of each row.
            budget: Most tokens of a batch.
            compute: Given a session and a batch's rows; called from several threads in int8.

        Yields:
            The rows of each batch and what was computed for them.
        """
        batches = self.cut(lengths, budget)
        if not self.apart or min(self.threads, len(batches)) < 2:
            for rows in batches:
                yield rows, compute(self.alone(lengths[rows]), rows)
            return
        with ThreadPoolExecutor(min(self.threads, len(batches))) as pool:
            yield from zip(batches, pool.map(lambda rows: compute(self.session, rows), batches), strict=True)

    def alone(self, lengths: Integers) -> Any:
        """The session for a batch of such lengths that has the machine to itself."""
        if not self.apart or self.threads == 1 or int(lengths.max()) < LONG_TEXT:
            return self.session
        with self._opening:
            if self._shared is None:
                self._shared = self._open_again()
        return self._shared

    def _open_again(self) -> Any:
        """The model for all threads; the one for one thread if something else lies in its place by now."""
        found = open_session(self._path, self.threads) if _identity(self._path) == self._opened else self.session
        return found if _identity(self._path) == self._opened else self.session


def _identity(path: Path) -> tuple[int, ...]:
    """What another file under this name, or this one with another content, has not; empty if there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


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

    Args:
        path: The model.
        threads: Threads that share a computation; 0 means one for each core.

    Raises:
        UnavailableError: If ONNX Runtime is not installed, or is too old.
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


def run_session(session: Any, outputs: Sequence[str], feeds: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
    """Computes outputs of a loaded model.

    Raises:
        CheckpointError: If ONNX Runtime cannot: what the files of the export say does not fit together.
    """
    try:
        found: list[npt.NDArray[Any]] = session.run(outputs, feeds)
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime."):
            raise
        first = one_line(str(error), 200)
        raise CheckpointError(f"ONNX Runtime cannot compute the export ({first}); export the run again") from error
    return found
