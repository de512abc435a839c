"""The cache of a language model: what it keeps between generated tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from recurra.core.errors import ConfigurationError
from recurra.models.configuration import RecurraConfig

_LEAST_TOKENS = 32
# The keyword and the output by which transformers passes a cache: ``cache`` since its version 5.24. Ours take both.
PAST = "past_key_values"
CACHE = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else PAST


class GrowingLayer(DynamicLayer):
    """Appends tokens in a buffer that doubles when it is full; ``keys`` and ``values`` are views of it."""

    keys: Tensor
    values: Tensor
    _buffers: tuple[Tensor, ...] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Adds ``(batch, heads, tokens, head_dim)``; returns all keys and all values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            # Tensors that an autograd graph holds must not be overwritten.
            return super().update(key_states, value_states)
        old_tokens = self.get_seq_length()
        all_tokens = old_tokens + key_states.shape[2]
        buffers = self._buffers
        if buffers is None or not self._is_view_of(buffers[0]) or all_tokens > buffers[0].shape[2]:
            size = max(_LEAST_TOKENS, 1 << (all_tokens - 1).bit_length())
            buffers = self._buffers = tuple(
                states.new_empty(*states.shape[:2], size, states.shape[3]) for states in (key_states, value_states)
            )
            for buffer, old_states in zip(buffers, (self.keys, self.values), strict=True):
                if old_tokens:
                    buffer[:, :, :old_tokens] = old_states
        for buffer, states in zip(buffers, (key_states, value_states), strict=True):
            buffer[:, :, old_tokens:all_tokens] = states
        self.keys, self.values = (buffer[:, :, :all_tokens] for buffer in buffers)
        return self.keys, self.values

    def _is_view_of(self, buffer: Tensor) -> bool:
        writable = torch.is_inference_mode_enabled() or not buffer.is_inference()
        return writable and self.keys.numel() > 0 and self.keys.data_ptr() == buffer.data_ptr()

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self._buffers = None


@dataclass(frozen=True)
class SkippedEntries:
    """Keys and values ``(rows, heads, recurrences skipped, head_dim)`` of the first core layer for stopped rows."""

    rows: Tensor
    done: int
    keys: Tensor
    values: Tensor


class RecurraCache(Cache):
    """Keys and values of every layer application, and the last states that every convolution reads.

    A shared layer has different states in every recurrence, so each application has keys and values of its own, and
    each of its convolutions a history, ``(batch, span, channels)``. Both are numbered in the order of a forward pass.

    Tokens that stop early compute nothing in the recurrences that they skip. There the core's first layer gets keys and
    values of the state with which they stopped; everything else is copied from the last recurrence computed for them.
    """

    is_croppable = False

    def __init__(self, config: RecurraConfig) -> None:
        self._before = config.num_prelude_layers
        self._attentions = config.num_core_layers
        self._convolutions = config.num_core_layers * config.num_cycles if config.has_convolution else 0
        super().__init__(layers=[GrowingLayer() for _ in range(config.num_hidden_layers)])
        self.histories: list[Tensor] = []
        self.exit_counts: Counter[int] = Counter()
        # The inputs of the last pass's convolutions, if some of its tokens may be taken back.
        self._windows: dict[int, Tensor] | None = None

    def allow_taking_back(self) -> None:
        """Stores the inputs of convolutions until the next pass, so that `keep` can take back tokens of a pass."""
        self._windows = {}

    def mark(self) -> tuple[int, list[Tensor]]:
        """The state of the cache, for `restore`."""
        return self.get_seq_length(), list(self.histories)

    def restore(self, mark: tuple[int, list[Tensor]]) -> None:
        """Takes back all tokens since a mark."""
        tokens, self.histories = mark
        self._shorten(tokens)

    def keep(self, tokens: int, mark: tuple[int, list[Tensor]]) -> None:
        """Takes back all but the first tokens of the one pass since a mark."""
        assert self._windows is not None
        self._shorten(mark[0] + tokens)
        for number, history in enumerate(self.histories):
            self.histories[number] = self._windows[number][:, tokens : tokens + history.shape[1]]

    def _shorten(self, tokens: int) -> None:
        # Drafts add no tokens to the layers of later recurrences, so each layer is cut by its own surplus.
        for layer in self.layers:
            layer.crop(min(0, tokens - layer.get_seq_length()))

    def update_attention(
        self,
        number: int,
        keys: Tensor,
        values: Tensor,
        past: int,
        *,
        rows: Tensor | None = None,
        skipped: Sequence[SkippedEntries] = (),
    ) -> tuple[Tensor, Tensor]:
        """Stores the new keys and values of a layer application; returns all that its queries see."""
        layer = self.layers[number]
        check_length(number, layer.get_seq_length(), past)
        if rows is not None:
            whole_keys, whole_values = self._skipped_entry(number, skipped)
            whole_keys[rows], whole_values[rows] = keys.to(whole_keys.dtype), values.to(whole_values.dtype)
            keys, values = whole_keys, whole_values
        layer.update(keys, values)
        return (layer.keys, layer.values) if rows is None else (layer.keys[rows], layer.values[rows])

    def _skipped_entry(self, number: int, skipped: Sequence[SkippedEntries]) -> tuple[Tensor, Tensor]:
        """Keys and values of one token as if all rows had stopped, ``(batch, heads, 1, head_dim)`` each."""
        previous = self.layers[number - self._attentions]
        keys, values = previous.keys[:, :, -1:].clone(), previous.values[:, :, -1:].clone()
        recurrence, layer = divmod(number - self._before, self._attentions)
        for entries in skipped if layer == 0 else ():
            position = slice(recurrence - entries.done, recurrence - entries.done + 1)
            keys[entries.rows] = entries.keys[:, :, position].to(keys.dtype)
            values[entries.rows] = entries.values[:, :, position].to(values.dtype)
        return keys, values

    def update_convolution(self, number: int, states: Tensor, span: int, rows: Tensor | None = None) -> Tensor:
        """Stores new inputs of a convolution, only of ``rows`` if given; returns them after the old ones."""
        if number == len(self.histories):
            batch = len(states) if rows is None else len(self.histories[number - self._convolutions])
            self.histories.append(states.new_zeros(batch, span, states.shape[2]))
        history = self.histories[number]
        window = torch.cat((history if rows is None else history[rows], states), dim=1)
        if self._windows is not None:
            self._windows[number] = window
        new_history = window[:, window.shape[1] - span :]
        if rows is not None:
            previous = self.histories[number - self._convolutions][:, -1:]
            full_history = torch.cat((history[:, 1:], previous), dim=1)
            full_history[rows] = new_history
            new_history = full_history
        # A view would keep a whole prompt in memory.
        self.histories[number] = new_history.clone() if states.shape[1] > 1 else new_history
        return window

    def fill_recurrences(
        self, recurrences: int, attention: int, convolution: int, past: int, skipped: Sequence[SkippedEntries]
    ) -> None:
        """Fills in one token of all rows for the next ``recurrences`` recurrences."""
        for number in range(attention, attention + recurrences * self._attentions):
            self.update_attention(number, *self._skipped_entry(number, skipped), past)
        for number in range(convolution, convolution + recurrences * self._convolutions):
            previous = self.histories[number - self._convolutions]
            self.update_convolution(number, previous[:, -1:], previous.shape[1])

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self.histories = []
        self.exit_counts.clear()

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
        """Takes the last tokens out."""
        if tokens_to_remove and self.histories:
            raise ConfigurationError(
                f"cannot take {-tokens_to_remove} tokens out of the cache: convolutions keep only the states that they "
                "read next; generate without an assistant model"
            )
        super().crop(tokens_to_remove)


def check_length(number: int, tokens: int, past: int) -> None:
    """Checks that a layer application has seen as many tokens as the others."""
    if tokens != past:
        raise ConfigurationError(
            f"layer application {number + 1} has {tokens} tokens in the cache, others {past}: the text was begun "
            "with another exit_after; go on with that one, or start anew"
        )
