"""The loop over the recurrences: recur, read the exit's head, ask the rule, drop the rows that stop, go on.

Training and inference, scoring and decoding all run it. They differ in what they do at a stop and in how rows are
dropped, which the layout knows. An ONNX graph implements the same loop; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from recurra.models.exits.rules import ExitRule
from recurra.models.recurrence import RecurrentCore
from recurra.models.rows import CachedRows, RowLayout


@dataclass(frozen=True)
class Stop:
    """An exit or the last recurrence, with states ``(batch, tokens or leading ones, hidden)`` of the remaining rows."""

    recurrence: int
    final: bool
    states: Tensor


# Says at a stop which of the remaining rows are dropped, ``(remaining,)``; None drops no row.
AtStop = Callable[[Stop], Tensor | None]
# Logits ``(remaining, ..., classes)`` of the head at a stop, given the indices of the remaining rows.
ReadHead = Callable[[Stop, Tensor], Tensor]
# Which positions of the remaining rows decide, ``(remaining, positions)``, given their indices; None means all.
CountedPositions = Callable[[Tensor], Tensor | None]


def run_recurrences(
    core: RecurrentCore,
    states: Tensor,
    layout: RowLayout,
    at_stop: AtStop,
    *,
    stops: Collection[int],
    last: int,
    queries: int | None = None,
    all_states: list[Tensor] | None = None,
) -> None:
    """Applies the core up to ``last`` times; rows that are dropped at a stop are no longer computed."""
    first = states
    for done in range(1, last + 1):
        final = done == last
        states = core(states, first, done - 1, layout, queries=queries if final else None, all_states=all_states)
        if not final and done not in stops:
            continue
        stop_states = states if final or queries is None else layout.leading(states, queries)
        stopping = at_stop(Stop(done, final, stop_states))
        if final or stopping is None:
            continue
        remaining = (~stopping).nonzero()[:, 0]
        if len(remaining) == len(stopping):
            continue
        dropped = stopping.nonzero()[:, 0]
        if isinstance(layout, CachedRows):
            skipped = layout.take(states, dropped), layout.take(first, dropped)
            layout.note_skipped(dropped, done, *core.skipped_keys_and_values(*skipped, done, layout.rotary))
        if not len(remaining):
            if isinstance(layout, CachedRows):
                layout.skip_recurrences(core.num_recurrences - done)
            break
        states, first, layout = layout.take(states, remaining), layout.take(first, remaining), layout.select(remaining)
        if not states.numel():
            break  # Only rows without tokens remain, which fill a packed batch up and whose logits mean nothing.


def exit_early(
    core: RecurrentCore,
    states: Tensor,
    layout: RowLayout,
    rule: ExitRule,
    read_head: ReadHead,
    *,
    rows: int,
    stops: Collection[int],
    last: int,
    counted: CountedPositions | None = None,
    queries: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Lets each row stop after the first exit where the rule says so; returns its logits, and its recurrences."""
    remaining = torch.arange(rows, device=states.device)
    exited_after = torch.full((rows,), last, device=states.device)
    logits: Tensor | None = None

    def at_stop(stop: Stop) -> Tensor | None:
        nonlocal remaining, logits
        if not stop.final and not rule.asks(stop.recurrence):
            return None
        head_logits = read_head(stop, remaining)
        exits = torch.ones_like(remaining, dtype=torch.bool)
        if not stop.final:
            positions = None if counted is None else counted(remaining)
            exits = rule.decide(head_logits, stop.recurrence, counted=positions, rows=remaining)
        if logits is None:
            all_stop = len(remaining) == rows and bool(exits.all())
            logits = head_logits if all_stop else head_logits.new_zeros(rows, *head_logits.shape[1:])
        stopped, remaining = remaining[exits], remaining[~exits]
        exited_after[stopped] = stop.recurrence
        if logits is not head_logits:
            logits[stopped] = head_logits[exits]
        return exits

    run_recurrences(core, states, layout, at_stop, stops=stops, last=last, queries=queries)
    assert logits is not None
    return logits, exited_after
