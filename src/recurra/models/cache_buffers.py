"""Keys and values with room to grow: transformers' layer copies all it has for every token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

_LEAST_TOKENS = 32


class GrowingLayer(DynamicLayer):
    """Writes new tokens behind the old ones, in room that doubles when it is full.

    ``keys`` and ``values`` are views of that room. Whoever replaces them, as reordering does, has his tensors copied
    into new room with the next token.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rooms: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Adds ``(batch, heads, tokens, head_dim)``; returns all keys and all values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            # What a graph remembers must not be written into.
            return super().update(key_states, value_states)
        done = self.get_seq_length()
        total = done + key_states.shape[2]
        rooms = self._rooms
        if rooms is None or not self._is_room_of(rooms[0]) or total > rooms[0].shape[2]:
            rooms = self._grow(key_states, value_states, done, total)
        for room, states in zip(rooms, (key_states, value_states), strict=True):
            room[:, :, done:total] = states
        self.keys, self.values = (room[:, :, :total] for room in rooms)
        return self.keys, self.values

    def _is_room_of(self, room: Tensor) -> bool:
        writable = torch.is_inference_mode_enabled() or not room.is_inference()
        return writable and self.keys.numel() > 0 and self.keys.data_ptr() == room.data_ptr()

    def _grow(self, keys: Tensor, values: Tensor, done: int, total: int) -> tuple[Tensor, Tensor]:
        size = _LEAST_TOKENS
        while size < total:
            size *= 2
        made = []
        for states, old in ((keys, self.keys), (values, self.values)):
            batch, heads, _, width = states.shape
            room = states.new_empty(batch, heads, size, width)
            if done:
                room[:, :, :done] = old
            made.append(room)
        self._rooms = made[0], made[1]
        return self._rooms

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self._rooms = None
