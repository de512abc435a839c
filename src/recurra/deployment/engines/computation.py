"""The interface of engines, their batches and depths, and the engine of linear models. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recurra.core.configuration import HashedSettings
from recurra.core.errors import ConfigurationError
from recurra.models.exits.rules import ExitRule

if TYPE_CHECKING:
    from recurra.models.controls.linear import LinearModel


class Computation(HashedSettings):
    """How an engine (``torch``, ``onnxruntime``, or ``scikit-learn`` for a linear model) computes."""

    engine: str
    storage_precision: str
    compute_precision: str
    device: str

    def describe(self) -> str:
        """Describes it in one line."""
        return (
            f"weights stored in {self.storage_precision}, "
            f"computed in {self.compute_precision} by {self.engine} on {self.device}"
        )


def compute_precision(storage: str, requested: str | None, device: str, *, imitates_bf16: bool = False) -> str:
    """Returns the precision to compute in: the requested one, else that of the weights if the device is fast in it.

    FP16 weights are computed in FP16 on an accelerator, but in FP32 on a CPU, whose FP16 products are tens of times
    slower; every FP16 weight is an FP32 number, but not a bf16 one. bf16 weights likewise where bf16 is imitated.
    """
    if requested is not None:
        return requested
    is_slow = (storage == "fp16" and device == "cpu") or (storage == "bf16" and imitates_bf16)
    return "fp32" if is_slow else storage


Integers = npt.NDArray[np.int64]

# Default batch size, in texts of `TOKENS_A_ROW` tokens.
DEFAULT_BATCH_SIZE = 64
# A batch has as many tokens as `batch_size` rows of this length.
TOKENS_A_ROW = 32


def budget_batches(lengths: Integers, budget: int) -> Iterator[Integers]:
    """Divides rows, sorted by length, into batches of at most ``budget`` tokens, but at least one row."""
    if len(lengths) == 1:
        yield np.zeros(1, dtype=np.int64)
        return
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    start = 0
    while start < len(order):
        tokens_before = ends[start] - lengths[order[start]]
        end = max(int(np.searchsorted(ends, tokens_before + budget, side="right")), start + 1)
        yield order[start:end]
        start = end


def padded_ids(
    input_ids: npt.NDArray[np.int32], starts: Integers, lengths: Integers, pad: int
) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Takes rows from flat ids, padded on the right; returns ids and which are real, ``(rows, longest)`` each."""
    if len(lengths) == 1:
        row = input_ids[starts[0] : starts[0] + lengths[0]][None].astype(np.int64)
        return row, np.ones(row.shape, dtype=np.bool_)
    columns = np.arange(int(lengths.max()))
    real = columns < lengths[:, None]
    positions = np.minimum(starts[:, None] + columns, len(input_ids) - 1)
    return np.where(real, input_ids[positions], pad).astype(np.int64), real


Logits = npt.NDArray[np.float32]
NO_RECURRENCES = "{} needs a Transformer; this model has no recurrences to stop after"


@dataclass(frozen=True)
class Depth:
    """The recurrences after which a model has outputs; each of ``exits`` has a head of its own.

    With ``counted`` the model itself chooses the number of recurrences of each text.
    """

    exits: tuple[int, ...]
    num_recurrences: int
    labels: int
    windows: int = 1
    counted: bool = False

    @property
    def output_after(self) -> tuple[int, ...]:
        """Recurrences with an output: exits and the last; without exits all recurrences, by the final head."""
        return (*self.exits, self.num_recurrences) if self.exits else tuple(range(1, self.num_recurrences + 1))

    @property
    def own_heads(self) -> bool:
        """Whether all these outputs come from heads that were trained for them."""
        return bool(self.exits) or self.num_recurrences == 1

    def check_one_window(self) -> None:
        """Refuses early exits of texts read in windows: a rule sees one window, but the label depends on all."""
        if self.windows > 1:
            raise ConfigurationError(
                f"an exit rule works on one window, and this model reads a text in up to {self.windows} and pools "
                "their scores; leave the rule out: texts take all recurrences"
            )


class Engine(ABC):
    """Computes logits from cleaned texts; an engine without recurrences, such as a linear model, has no depth.

    ``concurrency`` is how many threads gain by calling it at once; more threads, or any with torch, must take turns.
    ``max_length`` is how many tokens it reads of a text, or of each of its ``windows``; none reads all of them.
    """

    computation: Computation
    depth: Depth | None = None
    concurrency: int = 1
    max_length: int | None = None
    windows: int = 1

    @property
    def reads_all(self) -> bool:
        """Whether texts of any length are read whole."""
        return self.max_length is None

    def are_cut(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which cleaned texts its tokenizer cuts, ``(texts,)``."""
        return np.zeros(len(texts), dtype=np.bool_)

    @abstractmethod
    def logits(self, texts: Sequence[str], batch_size: int) -> Logits:
        """Returns ``(texts, labels)`` for cleaned texts."""

    def leave_early(self, texts: Sequence[str], batch_size: int, rule: ExitRule) -> tuple[Logits, Integers]:  # noqa: ARG002
        """Returns logits of the head where each text stops, ``(texts, labels)``, and its recurrences, ``(texts,)``."""
        raise ConfigurationError(NO_RECURRENCES.format("an exit rule"))

    def recurrences(self, texts: Sequence[str], batch_size: int) -> Integers | None:  # noqa: ARG002
        """Recurrences that the model itself chooses for each cleaned text, ``(texts,)``; none if it chooses none."""
        return None

    def logits_by_recurrence(self, texts: Sequence[str], batch_size: int) -> dict[int, Logits]:  # noqa: ARG002
        """Returns its logits after each recurrence of `Depth.output_after`, ``(texts, labels)``."""
        raise ConfigurationError(NO_RECURRENCES.format("a trace"))


class LinearEngine(Engine):
    """Runs a linear model on scikit-learn."""

    computation: Computation = Computation(
        engine="scikit-learn", storage_precision="fp32", compute_precision="fp64", device="cpu"
    )

    def __init__(self, model: LinearModel) -> None:
        self.model = model

    def logits(self, texts: Sequence[str], batch_size: int) -> Logits:  # noqa: ARG002 - all at once is fastest
        return self.model.logits(texts)


@dataclass(frozen=True, eq=False)
class Trace:
    """Probabilities of texts ``after`` some recurrences, ``(texts, recurrences, labels)``.

    Without ``own_heads`` the final head was applied early, to states that it never saw in training, so they are a hint
    at most. ``stops_after``, ``(texts,)``, is the recurrence at which the rule in force would stop each text.
    """

    after: tuple[int, ...]
    probabilities: npt.NDArray[np.float64]
    own_heads: bool
    stops_after: Integers | None = None

    def __len__(self) -> int:
        return len(self.probabilities)

    def __getitem__(self, rows: slice) -> Trace:
        stops_after = None if self.stops_after is None else self.stops_after[rows]
        return replace(self, probabilities=self.probabilities[rows], stops_after=stops_after)


@dataclass(frozen=True, eq=False)
class Classified:
    """Predictions for texts; ``exited_after`` is ``(texts,)``, or none without a rule.

    A server adds ``cut``, ``(texts,)``: which texts are longer than the model reads.
    """

    probabilities: npt.NDArray[np.float64]
    exited_after: npt.NDArray[np.int64] | None = None
    trace: Trace | None = None
    cut: npt.NDArray[np.bool_] | None = None

    def __getitem__(self, rows: slice) -> Classified:
        values: dict[str, Any] = {name: value if value is None else value[rows] for name, value in vars(self).items()}
        return Classified(**values)


def softmax(logits: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Returns probabilities over the last axis."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
