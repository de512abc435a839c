"""ONNX Runtime: which versions will do, a model loaded into it, and batches computed side by side."""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
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
# The fewest tokens that all threads make faster on every processor. In int8 it depends from `SHORTEST` to there.
LONG_TEXT = {"int8": 192}
SHORTEST = 8
# Once so many computations in a row had no other beside them, one thread and then all compute so many texts each.
RACE = 8
# All win if they take less than this share of one thread's time.
WORTH = 0.9
# What one thread computes best at once: it fits its cache.
SMALL_BATCH = 8 * TOKENS_A_ROW
# What a call takes beside its tokens, in tokens: 17 for int8 encoders of 384 and 256 wide, 20 in FP32 (docs/log.md).
TOKENS_OF_A_CALL = 16
# The runtime fuses Add and LayerNormalization into a kernel that is slower than the two: int8 batches of a LayerNorm
# encoder take 1.2 to 1.4 times as long with it, FP32 ones 1.1 times (docs/log.md).
_SLOWER_FUSIONS = ["SkipLayerNormFusion"]


class Sessions:
    """A loaded model, its threads put to work as suits what is asked.

    Batches are small, and each is computed by one thread beside the others: 1.2 to 1.3 times as fast as batches that
    all threads share (`docs/log.md`). What comes alone is shared by all threads, but for a short text in int8 where
    that does not help. The model is loaded once for one thread and once for all, the second time when it is first
    needed.
    """

    def __init__(self, path: Path, precision: str, threads: int = 0) -> None:
        self.threads = threads or available_cores()
        self.long_text = LONG_TEXT.get(precision, 0)
        self._path, self._opened = path, _identity(path)
        self._opening, self._counting = threading.Lock(), threading.RLock()
        # Computations under way, and how many in a row began beside no other.
        self._computing = self._undisturbed = 0
        self._raced: dict[int, list[float]] = {1: [], self.threads: []}
        # Whatever comes first: mostly a text alone.
        first = self.threads if self.long_text == 0 else 1
        self.session = open_session(path, first)
        self._by_threads: dict[int, Any] = {first: self.session}

    def cut(self, lengths: Integers, budget: int) -> list[Integers]:
        """Cuts rows, sorted by length, into batches of so many tokens at most, or of one row: those that cost least.

        A batch costs its tokens, padding included, and `TOKENS_OF_A_CALL`.
        """
        order = np.argsort(-lengths, kind="stable")
        longest, most = np.maximum(lengths[order], 1), min(budget, SMALL_BATCH)
        # By the number of rows from the longest on: what they cost, and where the last of their batches starts.
        costs, starts, first = np.zeros(len(order) + 1), np.zeros(len(order) + 1, dtype=np.int64), 0
        for end in range(1, len(order) + 1):
            while first < end - 1 and (end - first) * longest[first] > most:
                first += 1
            ways = costs[first:end] + np.arange(end - first, 0, -1) * longest[first:end]
            starts[end] = first + ways.argmin()
            costs[end] = ways.min() + TOKENS_OF_A_CALL
        batches, end = [], len(order)
        while end:
            batches.append(order[starts[end] : end])
            end = int(starts[end])
        return batches[::-1]

    def run(
        self, lengths: Integers, budget: int, compute: Callable[[Any, Integers], Result]
    ) -> Iterator[tuple[Integers, Result]]:
        """Computes rows in batches of so many tokens at most; ``compute`` is called from several threads."""
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
        """Computes a batch that comes alone: on all threads if that is faster, but beside others in int8 on one.

        For a short text in int8, two threads take 0.7 to 0.9 times as long as one on some processors, and longer on
        others. So the first texts are timed.
        """
        with contextlib.ExitStack() as counted:
            with self._counting:
                threads, raced = self._threads_for(int(lengths.max()))
                counted.enter_context(self._counted())
            try:
                session = self._session(threads)
                started = time.perf_counter()
                result = compute(session)
            except CheckpointError as error:
                if not raced or threads == 1:
                    raise
                self._raced[threads] = [math.inf] * RACE
                warnings.warn(f"short texts stay on one thread: {error}", RuntimeWarning, stacklevel=2)
                return compute(self._session(1))
            # Reset by whatever began meanwhile.
            if raced and self._undisturbed:
                cost = (time.perf_counter() - started) / (int(lengths.sum()) + TOKENS_OF_A_CALL)
                self._raced[threads].append(cost)
            return result

    def _threads_for(self, tokens: int) -> tuple[int, bool]:
        """Threads of a batch whose longest text has so many tokens, and whether it is to be timed."""
        if tokens >= self.long_text and not (self._computing and self.long_text):
            return self.threads, False
        if self._computing or self._undisturbed < RACE or self.threads == 1 or tokens < SHORTEST:
            return 1, False
        for threads, costs in self._raced.items():
            if len(costs) < RACE:
                return threads, True
        one, shared = (statistics.median(costs) for costs in self._raced.values())
        return (self.threads if shared < WORTH * one else 1), False

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
        """The model for so many threads; the one that is there if something else lies in the file's place by now."""
        with self._opening:
            if threads not in self._by_threads:
                if _identity(self._path) != self._opened:
                    return self.session
                opened = open_session(self._path, threads)
                if _identity(self._path) != self._opened:
                    return self.session
                self._by_threads[threads] = opened
            return self._by_threads[threads]


def _identity(path: Path) -> tuple[int, ...]:
    """What another file under this name, or this one with another content, has not; empty if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def require_onnxruntime() -> Any:
    """Returns the package."""
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
    """Loads a model into ONNX Runtime; 0 threads mean one for each core."""
    runtime = require_onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or available_cores()
    options.log_severity_level = _ERRORS_ONLY
    # Plans of memory are kept for every shape that comes, and texts have many lengths.
    options.enable_mem_pattern = False
    try:
        return runtime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=_SLOWER_FUSIONS
        )
    except Exception as error:
        first = str(error).strip().splitlines()[0][:200]
        raise CheckpointError(
            f"'{path}' cannot be read by ONNX Runtime {runtime.__version__} ({first}); export the run again"
        ) from error


def run_session(session: Any, outputs: Sequence[str], feeds: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
    """Computes outputs of a loaded model."""
    try:
        values: list[npt.NDArray[Any]] = session.run(outputs, feeds)
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime."):
            raise
        first = one_line(str(error), 200)
        raise CheckpointError(f"ONNX Runtime cannot compute the export ({first}); export the run again") from error
    return values
