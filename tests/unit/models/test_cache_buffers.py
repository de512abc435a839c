"""Keys and values with room to grow hold what transformers' own layer holds, whatever is done to them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from recurra.models.cache import GrowingLayer

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40)),
        st.tuples(st.just("reorder"), st.just(0)),
        st.tuples(st.just("repeat"), st.just(2)),
        st.tuples(st.just("select"), st.just(0)),
        st.tuples(st.just("crop"), st.integers(1, 5)),
        st.tuples(st.just("copy"), st.just(0)),
        st.tuples(st.just("reset"), st.just(0)),
        st.tuples(st.just("inference"), st.integers(1, 3)),
    ),
    max_size=8,
)


def states(layer: Any, tokens: int) -> tuple[Tensor, Tensor]:
    batch = len(layer.keys) if layer.get_seq_length() else 2
    return torch.randn(batch, 3, tokens, 4), torch.randn(batch, 3, tokens, 5)


@given(STEPS)
def test_it_holds_what_the_stock_layer_holds(steps: list[tuple[str, int]]) -> None:
    torch.manual_seed(0)
    ours, stock = GrowingLayer(), DynamicLayer()
    for step, number in [("add", 3), *steps]:
        if step in ("add", "inference"):
            new = states(stock, number)
            with torch.inference_mode(step == "inference"):
                got, wanted = ours.update(*new), stock.update(*new)
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, wanted, strict=True))
        elif step == "copy":
            ours = copy.deepcopy(ours)
        elif step == "reset":
            ours.reset()
            stock.reset()
        elif stock.get_seq_length() > number:
            for layer in (ours, stock):
                _change(layer, step, number)
        assert ours.get_seq_length() == stock.get_seq_length()
        if stock.get_seq_length():
            assert torch.equal(ours.keys, stock.keys) and torch.equal(ours.values, stock.values)


def _change(layer: Any, step: str, number: int) -> None:
    if step == "reorder":
        layer.reorder_cache(torch.arange(len(layer.keys)).flip(0))
    elif step == "repeat":
        layer.batch_repeat_interleave(number)
    elif step == "select":
        layer.batch_select_indices(torch.tensor([len(layer.keys) - 1, 0]))
    else:
        layer.crop(-number)


def test_a_token_is_written_behind_the_others_without_moving_them() -> None:
    layer = GrowingLayer()
    layer.update(*states(layer, 3))
    place = layer.keys.data_ptr()
    for _ in range(29):
        layer.update(*states(layer, 1))
        assert layer.keys.data_ptr() == place
    layer.update(*states(layer, 1))
    assert layer.keys.data_ptr() != place and layer.get_seq_length() == 33


def test_what_a_graph_remembers_is_not_written_into() -> None:
    layer = GrowingLayer()
    first, second = states(layer, 2)
    keys, _ = layer.update(first.requires_grad_(), second)
    product = (keys * keys).sum()
    layer.update(torch.ones(2, 3, 1, 4), torch.ones(2, 3, 1, 5))
    product.backward()
    assert torch.equal(first.grad, 2 * first)
