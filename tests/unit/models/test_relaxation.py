"""What recurrences have of their own: zeros change nothing, matrices stand once, updates are the best there are."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recurra import RecurraForSequenceClassification
from relaxed import RELAXED
from tiny import IDS, MASK, PACKED, stir, stirred, tiny_model

SHAPES: dict[str, dict[str, Any]] = {
    "as in BERT": {"feed_forward": "gelu", "norm": "layer", "norm_placement": "post", "pooling": "mean"},
    "SwiGLU": {},
    "cycles": {"feed_forward": "conv+linear", "num_cycles": 2},
}


def logits(model: nn.Module) -> list[Tensor]:
    """With gradients: without, a SwiGLU of plain linear maps computes its two halves apart, to other last digits."""
    return [model(IDS, attention_mask=MASK).logits, model(**PACKED).logits]


def relaxed_like(plain: RecurraForSequenceClassification, **keys: Any) -> RecurraForSequenceClassification:
    """The same model with recurrences' own weights: norms and biases as the shared ones, updates fresh."""
    model = RecurraForSequenceClassification(type(plain.config)(**{**plain.config.to_diff_dict(), **keys})).eval()
    state, given_state = model.state_dict(), plain.state_dict()
    for name in state:
        shared = ".".join(["model.core.block", *name.split(".")[4:]]) if "core.recurrences." in name else name
        if shared in given_state:
            state[name] = given_state[shared]
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("keys", [{"low_rank": 2}, {"recurrence_norms": True}, RELAXED], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_fresh_updates_and_equal_norms_change_no_bit(shape: str, keys: dict[str, Any]) -> None:
    plain = stirred(num_recurrences=3, **SHAPES[shape])
    relaxed = relaxed_like(plain, **keys)
    for found, wanted in zip(logits(relaxed), logits(plain), strict=True):
        assert torch.equal(found, wanted)


def test_a_matrix_stands_once_and_belongs_to_its_own_model(tmp_path: Path) -> None:
    model = stirred(**RELAXED)
    state = model.state_dict()
    assert sum(values.numel() for values in state.values()) == sum(part.numel() for part in model.parameters())
    assert len({values.data_ptr() for values in state.values()}) == len(state)
    other = copy.deepcopy(model)
    wanted = logits(model)
    with torch.no_grad():
        other.model.core.block.layers[0].attention.qkv_proj.weight.mul_(-1)
    assert torch.equal(logits(model)[0], wanted[0]) and not torch.equal(logits(other)[0], wanted[0])
    model.save_pretrained(tmp_path)
    loaded = RecurraForSequenceClassification.from_pretrained(tmp_path).eval()
    assert all(torch.equal(found, each) for found, each in zip(logits(loaded), wanted, strict=True))


def test_half_precision_trains_every_weight() -> None:
    model = tiny_model(**RELAXED).train()
    stir(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(IDS, attention_mask=MASK, labels=torch.tensor([0, 1])).loss.backward()
    for name, part in model.named_parameters():
        assert part.grad is not None and part.grad.isfinite().all(), name
        assert part.grad.any() or "token_type" in name, name
