"""What a classifier reads of a row's states: one position's, or the largest value of each channel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def pool(states: Tensor, pooling: str, attention_mask: Tensor | None, row_lengths: Tensor | None) -> Tensor:
    """Returns what a classifier reads of each row, ``(rows, hidden)``.

    Args:
        states: ``(batch, tokens, hidden)``; of packed rows ``(1, tokens, hidden)``. With ``first`` the leading
            position of each row is enough: ``(batch, 1, hidden)``, packed ``(1, rows, hidden)``.
        pooling: As the configuration has it.
        attention_mask: ``(batch, tokens)``, non-zero at real tokens; none if all are.
        row_lengths: Lengths of packed rows ``(rows,)``, if they are packed.
    """
    packed = row_lengths is not None
    if pooling == "first":
        return states[0] if packed else states[:, 0]
    if pooling == "max":
        return largest_of_packed(states, row_lengths) if packed else largest(states, attention_mask)
    return last_of_packed(states, row_lengths) if packed else last_position(states, attention_mask)


def last_position(states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Returns the states ``(batch, hidden)`` at the last real token of each row, for padding on either side."""
    if attention_mask is None:
        return states[:, -1]
    positions = torch.arange(states.shape[1], device=states.device)
    last = (attention_mask.bool() * positions).argmax(dim=1)
    return states[torch.arange(states.shape[0], device=states.device), last]


def last_of_packed(states: Tensor, row_lengths: Tensor) -> Tensor:
    """Returns the states ``(rows, hidden)`` at the last token of each row of packed states ``(1, tokens, hidden)``."""
    return states[0, (row_lengths.cumsum(0) - 1).clamp(min=0)]


def largest(states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Returns each channel's largest value over a row's real tokens, ``(batch, hidden)``; 0 for a row without any."""
    if attention_mask is None:
        return states.amax(dim=1)
    real = attention_mask.bool()
    found = states.masked_fill(~real[:, :, None], -torch.inf).amax(dim=1)
    return found.masked_fill(~real.any(dim=1, keepdim=True), 0)


def largest_of_packed(states: Tensor, row_lengths: Tensor) -> Tensor:
    """Returns each channel's largest value over each row of packed states ``(1, tokens, hidden)``; see `largest`."""
    rows = states[0].split(row_lengths.tolist())
    found = pad_sequence(list(rows), batch_first=True, padding_value=-torch.inf).amax(dim=1)
    return found.masked_fill((row_lengths == 0)[:, None], 0)
