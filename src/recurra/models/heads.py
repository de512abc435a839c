"""What reads the last states: a classifier's choice of each row's, and heads over the vocabulary after every exit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from recurra.models.configuration import RecurraConfig


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
    if pooling == "mean":
        return mean_of_packed(states, row_lengths) if packed else mean(states, attention_mask)
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


def mean(states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Returns the mean over a row's real tokens, ``(batch, hidden)``; 0 for a row without any."""
    if attention_mask is None:
        return states.mean(dim=1)
    real = attention_mask.bool()
    total = states.masked_fill(~real[:, :, None], 0).sum(dim=1)
    return total / real.sum(dim=1, keepdim=True).clamp(min=1)


def mean_of_packed(states: Tensor, row_lengths: Tensor) -> Tensor:
    """Returns the mean over each row of packed states ``(1, tokens, hidden)``; see `mean`."""
    rows = torch.arange(len(row_lengths), device=states.device).repeat_interleave(row_lengths)
    total = states.new_zeros(len(row_lengths), states.shape[-1]).index_add(0, rows, states[0])
    return total / row_lengths[:, None].clamp(min=1)


class VocabularyHeads(nn.Module):
    """The final head and the exits' heads, without biases (CRT-Deep, section 3.1.2).

    ``shared``: the exits share one. ``separate``: each exit has its own. ``tied``: every head is the token table, read
    through one linear map to the table's width (none if the widths agree), so that only that map is a parameter here.
    The table stays the embedding's; it is handed in, and stands in a checkpoint once.

    Args:
        config: The model.
    """

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        width, table = config.hidden_size, config.token_embedding_size
        self.num_exits = len(config.exits)
        self.tied = config.heads == "tied"
        own = {"shared": min(1, self.num_exits), "separate": self.num_exits, "tied": 0}[config.heads]
        self.final = None if self.tied else nn.Linear(width, config.vocab_size, bias=False)
        self.exits = nn.ModuleList(nn.Linear(width, config.vocab_size, bias=False) for _ in range(own))
        self.projection = nn.Linear(width, table, bias=False) if self.tied and table != width else nn.Identity()

    def features(self, states: Tensor) -> Tensor:
        """Maps states ``(..., hidden)`` to what the heads' weights are multiplied with."""
        return self.projection(states)

    def weight(self, exit_number: int, table: Tensor) -> Tensor:
        """Returns a head's weight, ``(vocabulary, width of the features)``.

        Args:
            exit_number: Index among the exits; their number for the final head.
            table: The token table.
        """
        if self.final is None:
            return table
        if exit_number == self.num_exits:
            return self.final.weight
        return self.exits[min(exit_number, len(self.exits) - 1)].weight


def weigh_losses(losses: Sequence[Tensor], weight: float) -> Tensor:
    """``(1 - weight) * final + weight * mean of the others`` (CRT-Deep, equation 5); the final one comes last."""
    *exits, final = losses
    if not exits:
        return final
    return (1 - weight) * final + weight * sum(exits) / len(exits)
