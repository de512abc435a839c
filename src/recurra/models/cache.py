"""What a language model keeps between the tokens that it generates."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from recurra.core.errors import ConfigurationError
from recurra.models.configuration import RecurraConfig


class RecurraCache(Cache):
    """Keys and values of every layer application, and the last states that every convolution reads.

    A shared layer has different states in every recurrence, so each application keeps its own (`layers`, as many as the
    configuration's ``num_hidden_layers``), and each convolution of each application its history, ``(batch, span,
    channels)``, whose size does not grow. Both are numbered in the order in which a forward pass comes by.

    Args:
        config: The model.
    """

    is_croppable = False

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(config.num_hidden_layers)])
        self.histories: list[Tensor] = []

    def history(self, number: int, states: Tensor, span: int) -> Tensor:
        """Returns a convolution's last states ``(batch, span, channels)``; zeros before the first token."""
        if number == len(self.histories):
            self.histories.append(states.new_zeros(states.shape[0], span, states.shape[2]))
        return self.histories[number]

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self.histories = []

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Puts the rows in another order, for beam search."""
        super().reorder_cache(beam_idx)
        self.histories = [history.index_select(0, beam_idx.to(history.device)) for history in self.histories]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every row."""
        super().batch_repeat_interleave(repeats)
        self.histories = [history.repeat_interleave(repeats, dim=0) for history in self.histories]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps some rows."""
        super().batch_select_indices(indices)
        self.histories = [history[indices] for history in self.histories]

    def crop(self, tokens_to_remove: int) -> None:
        """Takes the last tokens out.

        Raises:
            ConfigurationError: If there are convolutions: what they read before is gone.
        """
        if tokens_to_remove and self.histories:
            raise ConfigurationError(
                f"cannot take {-tokens_to_remove} tokens out of the cache: convolutions keep only the states that they "
                "read next; generate without an assistant model"
            )
        super().crop(tokens_to_remove)

    def memory_bytes(self) -> int:
        """Bytes of all tensors kept."""
        kept = [part for layer in self.layers if layer.is_initialized for part in (layer.keys, layer.values)]
        return sum(part.numel() * part.element_size() for part in (*kept, *self.histories))


def growth_bytes_per_token(config: RecurraConfig, dtype: torch.dtype = torch.float32) -> int:
    """Bytes by which the cache of one row grows with every token: keys and values of every layer application."""
    return 2 * config.num_hidden_layers * config.hidden_size * dtype.itemsize
