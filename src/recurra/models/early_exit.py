"""A recurrent core from which rows leave: what has left a batch costs nothing any more."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from recurra.models.layout import Layout
from recurra.models.recurrence import RecurrentCore

# Given the recurrences computed, the states of the rows that are still there and those rows' numbers in the batch,
# says which of them leave, ``(rows still there,)``.
Hearing = Callable[[int, Tensor, Tensor], Tensor]


def unroll_while_rows_stay(
    core: RecurrentCore,
    states: Tensor,
    layout: Layout,
    hear: Hearing,
    *,
    rows: int,
    stops: Collection[int],
    last: int,
    queries: int | None = None,
) -> Tensor:
    """Applies the core; after each stop the rows that leave are taken out, and the rest go on as a smaller batch.

    Args:
        core: The shared layers.
        states: ``(batch, tokens, hidden)``, what the core reads first.
        layout: How the rows lie in them.
        hear: Asked after each stop; after ``last`` its answer changes nothing.
        rows: Rows of the batch.
        stops: Recurrences after which ``hear`` is asked; it is always asked after ``last``.
        last: Recurrence after which nobody goes on.
        queries: Leading positions that ``hear`` is given, if not all.

    Returns:
        How many recurrences each row took, ``(rows,)``, in the order of the batch.
    """
    first = states
    there = torch.arange(rows, device=states.device)
    depths = torch.full_like(there, last)
    for done in range(1, last + 1):
        final = done == last
        states = core.step(states, first, done - 1, layout, queries if final else None)
        if not final and done not in stops:
            continue
        told = states if final or queries is None else layout.leading(states, queries)
        leaving = hear(done, told, there)
        if final:
            break
        staying = (~leaving).nonzero()[:, 0]
        if len(staying) == len(there):
            continue
        depths[there[leaving]] = done
        if layout.keeps:
            gone = leaving.nonzero()[:, 0]
            pairs = core.skipped_keys_and_values(
                layout.take(states, gone), layout.take(first, gone), done, layout.rotary
            )
            layout.owe(gone, done, *pairs)
        if not len(staying):
            layout.skip(core.num_recurrences - done)
            break
        states, first = layout.take(states, staying), layout.take(first, staying)
        if not states.numel():
            break  # Only rows without tokens stay, which fill a packed batch up and whom nobody hears.
        layout, there = layout.select(staying), there[staying]
    return depths
