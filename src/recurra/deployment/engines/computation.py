"""How logits are computed: engine, precision of weights and of arithmetic, place; and how rows are cut in batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from recurra.core.configuration import HashedSettings

# Every FP16 and every bf16 number is one of these.
_WIDER = "fp32"


class Computation(HashedSettings):
    """How an engine computes.

    Attributes:
        engine: ``torch``, ``onnxruntime``, or ``scikit-learn`` for a linear model.
        storage_precision: Precision of the weights on disk: ``fp32``, ``bf16``, ``fp16`` or ``int8``.
        compute_precision: Precision of the matrix products.
        device: ``cpu``, or the accelerator as torch names it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str
    storage_precision: str
    compute_precision: str
    device: str

    def describe(self) -> str:
        """Says it in one line."""
        return (
            f"weights stored in {self.storage_precision}, "
            f"computed in {self.compute_precision} by {self.engine} on {self.device}"
        )


def compute_precision(storage: str, requested: str | None, device: str, *, imitates_bf16: bool = False) -> str:
    """Returns the precision to compute in: what is asked for, else that of the weights where the device is good at it.

    FP16 is computed in FP16 on an accelerator. A CPU computes it in FP32: its own FP16 products are tens of times
    slower, and every FP16 weight is an FP32 number, but not a bf16 one. So it is with bf16 where that is imitated.

    Args:
        storage: Precision of the weights: ``fp32``, ``bf16`` or ``fp16``.
        requested: What the user asks for, or none.
        device: Where it is computed.
        imitates_bf16: Whether the device has no instructions for bf16.
    """
    if requested is not None:
        return requested
    slow = (storage == "fp16" and device == "cpu") or (storage == "bf16" and imitates_bf16)
    return _WIDER if slow else storage


Integers = npt.NDArray[np.int64]

# Texts of `TOKENS_A_ROW` tokens a batch, where nobody says otherwise.
DEFAULT_BATCH_SIZE = 64
# A batch has as many tokens as `batch_size` rows of this length.
TOKENS_A_ROW = 32


def budget_batches(lengths: Integers, budget: int) -> Iterator[Integers]:
    """Cuts rows, sorted by length, into batches of at most ``budget`` tokens, but of one row at least."""
    if len(lengths) == 1:
        yield np.zeros(1, dtype=np.int64)
        return
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    start = 0
    while start < len(order):
        before = ends[start] - lengths[order[start]]
        end = max(int(np.searchsorted(ends, before + budget, side="right")), start + 1)
        yield order[start:end]
        start = end


def padded_ids(
    input_ids: npt.NDArray[np.int32], starts: Integers, lengths: Integers, pad: int
) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Cuts rows out of flat ids and pads them on the right to the longest.

    Args:
        input_ids: Flat ids.
        starts: First token of each row.
        lengths: Tokens of each row.
        pad: Token that fills.

    Returns:
        Ids and whether a token is real, ``(rows, longest)`` each.
    """
    if len(lengths) == 1:
        row = input_ids[starts[0] : starts[0] + lengths[0]][None].astype(np.int64)
        return row, np.ones(row.shape, dtype=np.bool_)
    columns = np.arange(int(lengths.max()))
    keep = columns < lengths[:, None]
    positions = np.minimum(starts[:, None] + columns, len(input_ids) - 1)
    return np.where(keep, input_ids[positions], pad).astype(np.int64), keep
