"""Heads over the vocabulary: one after the last recurrence, and one after each exit."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from recurra.models.configuration import RecurraConfig


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
