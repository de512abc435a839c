"""Activation checkpointing: the same loss and gradients bit for bit, layers computed twice, less kept between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recurra import RecurraForCausalLM, preset
from recurra.core.errors import ConfigurationError
from recurra.models.cache import CACHE
from relaxed import RELAXED
from tiny import language_model, tiny_model

MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "crt": (language_model, {"num_recurrences": 3, "exits": [1, 2]}),
    "pre-norm, rotary, attention dropout": (language_model, {
        "norm_placement": "pre", "position": "rotary", "attention_dropout": 0.1, "num_core_layers": 2,
    }),
    "prelude, coda, injection": (language_model, {
        "exits": [], "num_prelude_layers": 1, "num_coda_layers": 1, "input_injection": "concat",
        "learned_residual_scale": True,
    }),
    "relaxed classifier": (tiny_model, {"exits": [1], **RELAXED}),
    "conv classifier": (tiny_model, {"feed_forward": "conv+linear", "num_cycles": 2, "causal_convolution": False}),
}  # fmt: skip


@pytest.mark.parametrize("variant", MODELS)
def test_gradients_are_the_same_bit_for_bit(variant: str) -> None:
    made, shape = MODELS[variant]
    model = made(**{"hidden_dropout": 0.2, **shape}).train()
    ids = torch.randint(1, 11, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    labels = ids if made is language_model else torch.tensor([0, 1, 1])
    calls: list[int] = []
    core = model.model.core
    for stack in (model.model.prelude, *(core.recurrences or [core.block]), model.model.coda):
        for layer in stack.layers:
            layer.register_forward_pre_hook(lambda *_: calls.append(1))

    def step(seed: int = 5) -> tuple[int, Tensor, dict[str, Tensor]]:
        calls.clear()
        model.zero_grad()
        torch.manual_seed(seed)
        loss = model(ids, mask, labels=labels).loss
        loss.backward()
        gradients = {name: part.grad for name, part in model.named_parameters() if part.grad is not None}
        return len(calls), loss.detach(), gradients

    once, loss, wanted = step()
    for keywords in (None, {"use_reentrant": True}):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=keywords)
        twice, again, found = step()
        assert torch.equal(again, loss) and twice == 2 * once
        # A graph within the graph adds up what a tensor's readers say in another order.
        near = {"rtol": 0.0, "atol": 0.0} if keywords is None else {}
        torch.testing.assert_close(found, wanted, **near)
    # Dropout was on: another seed gives another loss.
    assert not torch.equal(step(6)[1], loss)
    model.activation_checkpointing_disable()
    assert step()[0] == once


def kept_bytes(model: RecurraForCausalLM, ids: Tensor) -> int:
    """Bytes that the graph keeps from the forward to the backward pass, parameters aside."""
    own = {part.data_ptr() for part in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.model(ids)
    return sum(kept.values())


def test_a_loop_keeps_its_input_and_little_else_and_takes_no_cache() -> None:
    model = RecurraForCausalLM(preset("crt-tiny", vocab_size=64)).train()
    ids = torch.randint(0, 64, (2, 64))
    without = kept_bytes(model, ids)
    model.activation_checkpointing_enable()
    assert kept_bytes(model, ids) < without / 3
    with pytest.raises(ConfigurationError, match="activation checkpointing computes layers twice"):
        model(ids, use_cache=True)
    with torch.no_grad():
        assert model(ids, use_cache=True)[CACHE] is not None
