"""Keys and values in buffers that grow: transformers' layer copies all it has for every token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

_LEAST_TOKENS = 32


class GrowingLayer(DynamicLayer):
    """Writes new tokens behind the old ones, in a buffer that doubles when it is full.

    ``keys`` and ``values`` are views of that buffer. Tensors that take their place, as reordering does, are copied into
    a new buffer with the next token.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Adds ``(batch, heads, tokens, head_dim)``; returns all keys and all values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            # What a graph remembers must not be written into.
            return super().update(key_states, value_states)
        done = self.get_seq_length()
        total = done + key_states.shape[2]
        buffers = self._buffers
        if buffers is None or not self._is_view_of(buffers[0]) or total > buffers[0].shape[2]:
            buffers = self._grow(key_states, value_states, done, total)
        for buffer, states in zip(buffers, (key_states, value_states), strict=True):
            buffer[:, :, done:total] = states
        self.keys, self.values = (buffer[:, :, :total] for buffer in buffers)
        return self.keys, self.values

    def _is_view_of(self, buffer: Tensor) -> bool:
        writable = torch.is_inference_mode_enabled() or not buffer.is_inference()
        return writable and self.keys.numel() > 0 and self.keys.data_ptr() == buffer.data_ptr()

    def _grow(self, keys: Tensor, values: Tensor, done: int, total: int) -> tuple[Tensor, Tensor]:
        size = _LEAST_TOKENS
        while size < total:
            size *= 2
        made = []
        for states, old in ((keys, self.keys), (values, self.values)):
            batch, heads, _, width = states.shape
            buffer = states.new_empty(batch, heads, size, width)
            if done:
                buffer[:, :, :done] = old
            made.append(buffer)
        self._buffers = made[0], made[1]
        return self._buffers

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self._buffers = None
