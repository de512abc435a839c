"""ONNX Runtime: the versions that work, loaded models, and batches computed side by side."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from recurra.core.environment import available_cores
from recurra.core.errors import CheckpointError, UnavailableError
from recurra.core.terminal import one_line
from recurra.deployment.engines.computation import TOKENS_A_ROW

Integers = npt.NDArray[np.int64]
Result = TypeVar("Result")

# 1.22 to 1.24 gave logits of thousands for small int8 products on a processor with AMX; the operator set needs 1.23.
OLDEST_RUNTIME = (1, 25)
_ERRORS_ONLY = 3
# Fewest tokens for which all threads are at once worth a second loaded model in int8.
LONG_TEXT = {"int8": 192}
# After this many computations in a row without another beside them, all threads share shorter batches too, which take
# 0.6 to 1.1 times as long (docs/log.md); below so many tokens the smallest models lose.
LONE, SHORTEST = 8, 8
# Tokens that one thread computes best at once, because they fit its cache.
SMALL_BATCH = 8 * TOKENS_A_ROW
# Fixed cost of a call, in tokens: 17 for int8 encoders of width 384 and 256, 20 in FP32 (docs/log.md).
TOKENS_OF_A_CALL = 16
# The runtime fuses Add and LayerNormalization into a kernel that is slower than the two: int8 batches of a LayerNorm
# encoder take 1.2 to 1.4 times as long with it, FP32 ones 1.1 times (docs/log.md).
_SLOWER_FUSIONS = ["SkipLayerNormFusion"]


class Sessions:
    """A loaded model whose threads work as suits each request.

    Batches are small, and each is computed by one thread beside the others: 1.2 to 1.3 times as fast as batches that
    all threads share (`docs/log.md`). A batch that comes alone is shared by all threads, in int8 if it is long or
    batches keep coming alone. The model is loaded once for one thread and once for all threads, the second time when
    it is first needed.
    """

    def __init__(self, path: Path, precision: str, threads: int = 0) -> None:
        self.threads = threads or available_cores()
        self.long_text = LONG_TEXT.get(precision, 0)
        self._path, self._opened = path, _identity(path)
        self._opening, self._counting = threading.Lock(), threading.RLock()
        # Computations in progress, and how many in a row began without another in progress.
        self._computing = self._undisturbed = 0
        # The session for the first request, which mostly is a single text.
        first = self.threads if self.long_text == 0 else 1
        self.session = open_session(path, first)
        self._by_threads: dict[int, Any] = {first: self.session}

    def cut(self, lengths: Integers, budget: int) -> list[Integers]:
        """Divides rows, sorted by length, into the cheapest batches of at most ``budget`` tokens, or of one row.

        The cost of a batch is its tokens, including padding, and `TOKENS_OF_A_CALL`.
        """
        order = np.argsort(-lengths, kind="stable")
        longest, most_tokens = np.maximum(lengths[order], 1), min(budget, SMALL_BATCH)
        # For each number of rows from the longest on: their cost, and the start of their last batch.
        costs, starts, first = np.zeros(len(order) + 1), np.zeros(len(order) + 1, dtype=np.int64), 0
        for end in range(1, len(order) + 1):
            while first < end - 1 and (end - first) * longest[first] > most_tokens:
                first += 1
            total_costs = costs[first:end] + np.arange(end - first, 0, -1) * longest[first:end]
            starts[end] = first + total_costs.argmin()
            costs[end] = total_costs.min() + TOKENS_OF_A_CALL
        batches, end = [], len(order)
        while end:
            batches.append(order[starts[end] : end])
            end = int(starts[end])
        return batches[::-1]

    def run(
        self, lengths: Integers, budget: int, compute: Callable[[Any, Integers], Result]
    ) -> Iterator[tuple[Integers, Result]]:
        """Computes rows in batches of at most ``budget`` tokens; ``compute`` is called from several threads."""
        batches = self.cut(lengths, budget)
        if len(batches) == 1:
            (rows,) = batches
            yield rows, self.alone(lengths[rows], lambda session: compute(session, rows))
        elif batches:
            session = self._session(1)
            with self._counted():
                if self.threads == 1:
                    yield from ((rows, compute(session, rows)) for rows in batches)
                    return
                with ThreadPoolExecutor(min(self.threads, len(batches))) as pool:
                    yield from zip(batches, pool.map(lambda rows: compute(session, rows), batches), strict=True)

    def alone(self, lengths: Integers, compute: Callable[[Any], Result]) -> Result:
        """Computes a batch that comes alone: on all threads, but in int8 beside others on one."""
        with contextlib.ExitStack() as context:
            with self._counting:
                threads = self._threads_for(int(lengths.max()) * len(lengths))
                context.enter_context(self._counted())
            return compute(self._session(threads))

    def _threads_for(self, tokens: int) -> int:
        if not self.long_text:
            return self.threads
        lone = self._undisturbed >= LONE and tokens >= SHORTEST
        return self.threads if not self._computing and (lone or tokens >= self.long_text) else 1

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Counts a computation while it lasts."""
        with self._counting:
            self._undisturbed = 0 if self._computing else self._undisturbed + 1
            self._computing += 1
        try:
            yield
        finally:
            with self._counting:
                self._computing -= 1

    def _session(self, threads: int) -> Any:
        """The session for this many threads; the first session if the file was replaced since."""
        with self._opening:
            if threads not in self._by_threads:
                if _identity(self._path) != self._opened:
                    return self.session
                try:
                    opened = open_session(self._path, threads)
                except CheckpointError as error:  # such as no memory
                    warnings.warn(f"all texts use the model that is loaded: {error}", RuntimeWarning, stacklevel=2)
                    opened = self.session
                if _identity(self._path) != self._opened:
                    return self.session
                self._by_threads[threads] = opened
            return self._by_threads[threads]


def _identity(path: Path) -> tuple[int, ...]:
    """Identifies a file and its content, to notice replacements; empty if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def require_onnxruntime() -> Any:
    """Returns the package."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UnavailableError("ONNX Runtime is not installed; pip install 'recurra[onnx]'") from error
    if tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) < OLDEST_RUNTIME:
        raise UnavailableError(
            f"ONNX Runtime {onnxruntime.__version__} lacks operators of an export and computes int8 products wrongly "
            f"on some processors; at least {'.'.join(map(str, OLDEST_RUNTIME))} is needed: pip install --upgrade "
            "'recurra[onnx]'"
        )
    return onnxruntime


def open_session(path: Path, threads: int = 0) -> Any:
    """Loads a model into ONNX Runtime; 0 threads mean one for each core."""
    runtime = require_onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or available_cores()
    options.log_severity_level = _ERRORS_ONLY
    # The runtime would keep a memory plan for every input shape, and texts have many lengths.
    options.enable_mem_pattern = False
    try:
        return runtime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=_SLOWER_FUSIONS
        )
    except Exception as error:
        message = one_line(str(error), 200)
        raise CheckpointError(
            f"'{path}' cannot be read by ONNX Runtime {runtime.__version__} ({message}); export the run again"
        ) from error


def run_session(session: Any, outputs: Sequence[str], feeds: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
    """Computes outputs of a loaded model."""
    try:
        values: list[npt.NDArray[Any]] = session.run(outputs, feeds)
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime."):
            raise
        message = one_line(str(error), 200)
        raise CheckpointError(f"ONNX Runtime cannot compute the export ({message}); export the run again") from error
    return values
