"""Batches for inference: rows packed end to end on a CPU, padded side by side on an accelerator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from recurra.data.batching import sorted_batches
from recurra.deployment.engines.computation import TOKENS_A_ROW, Integers, budget_batches, padded_ids

Batch = tuple[Integers, Mapping[str, torch.Tensor]]

# Packed rows are filled up to a few sizes only: whole batches, eighths of one, and powers of two from here.
_LEAST_TOKENS = 16
_ROWS_STEP = 32


@dataclass(frozen=True, eq=False)
class FlatRows:
    """Tokenised rows laid end to end.

    Attributes:
        input_ids: ``(tokens,)``.
        offsets: Row ``i`` is ``input_ids[offsets[i]:offsets[i + 1]]``, ``(rows + 1,)``.
        pad: Token that fills.
    """

    input_ids: npt.NDArray[np.int32]
    offsets: Integers
    pad: int

    @property
    def lengths(self) -> Integers:
        """Tokens of each row."""
        return np.diff(self.offsets)

    def padded(self, batch_size: int) -> Iterator[Batch]:
        """Yields batches of ``batch_size`` rows of like length, the longest first."""
        lengths = self.lengths
        for rows in sorted_batches(lengths, batch_size):
            yield rows, padded_inputs(self.input_ids, self.offsets[rows], lengths[rows], self.pad)

    def packed(self, batch_size: int, *, few_sizes: bool) -> Iterator[Batch]:
        """Yields batches of ``batch_size * TOKENS_A_ROW`` tokens of packed rows, the longest first.

        Args:
            batch_size: Rows of `TOKENS_A_ROW` tokens that make a batch; more of shorter ones.
            few_sizes: Fill batches up to one of a dozen sizes. Half precision needs it on a CPU: for every new size of
                a matrix product, oneDNN compiles a kernel for some milliseconds and keeps it, 1 to 3 MB each with AMX.
        """
        lengths = self.lengths
        for rows in budget_batches(lengths, batch_size * TOKENS_A_ROW):
            fill = few_sizes and batch_size * TOKENS_A_ROW
            yield rows, pack_rows(self.input_ids, self.offsets[rows], lengths[rows], self.pad, budget=fill or None)


def filled_size(tokens: int, budget: int) -> int:
    """Returns the least size of at least ``tokens`` among powers of two, eighths of ``budget`` and their multiples."""
    step = max(budget // 8, _LEAST_TOKENS)
    power = max(1 << (tokens - 1).bit_length(), _LEAST_TOKENS)
    return power if power <= step else -(-tokens // step) * step


def pack_rows(
    input_ids: npt.NDArray[np.int32], starts: Integers, lengths: Integers, pad: int, *, budget: int | None = None
) -> dict[str, torch.Tensor]:
    """Cuts rows out of flat ids and lays them end to end.

    Args:
        input_ids: Flat ids.
        starts: First token of each row.
        lengths: Tokens of each row.
        pad: Token that fills.
        budget: If given, rows of padding tokens follow up to `filled_size`, and rows without tokens up to a multiple of
            32 rows, so that batches have few sizes.
    """
    tokens = int(lengths.sum())
    into = np.cumsum(lengths) - lengths
    flat = input_ids[np.arange(tokens) + np.repeat(starts - into, lengths)].astype(np.int64)
    if budget is not None:
        missing = filled_size(tokens, budget) - tokens
        whole, rest = divmod(missing, int(lengths.max()))
        fillers = [int(lengths.max())] * whole + [rest] * (rest > 0)
        fillers += [0] * (-(len(lengths) + len(fillers)) % _ROWS_STEP)
        flat = np.concatenate((flat, np.full(missing, pad)))
        lengths = np.concatenate((lengths, np.array(fillers, dtype=np.int64)))
    return {"input_ids": torch.from_numpy(flat)[None], "row_lengths": torch.from_numpy(lengths)}


def padded_inputs(
    input_ids: npt.NDArray[np.int32], starts: Integers, lengths: Integers, pad: int
) -> dict[str, torch.Tensor]:
    """Cuts rows out of flat ids and pads them on the right to the longest; without padding there is no mask."""
    padded, keep = padded_ids(input_ids, starts, lengths, pad)
    inputs = {"input_ids": torch.from_numpy(padded)}
    if not keep.all():
        inputs["attention_mask"] = torch.from_numpy(keep)
    return inputs
