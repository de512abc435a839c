"""Weights at the edge of what their types hold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from hypothesis import strategies as st

LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).smallest_subnormal)
# The largest of FP32 and FP16, where squares and products overflow; 0, and what is next to it in FP32 and FP16.
EDGES = (LARGEST, 1e30, 1e19, 65504.0, 65520.0, 1.0, 6e-8, 2e-8, 1e-38, SMALLEST, 0.0)

# Which tensor, its new size, and whether all of it or its first value alone is changed.
Edit = tuple[int, float, bool]
EDITS = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(EDGES), st.booleans()), min_size=1, max_size=3)


def edited(weights: Mapping[str, torch.Tensor], edits: list[Edit]) -> dict[str, torch.Tensor]:
    """Copies of tensors that have, or whose first values have, another size; they keep their signs."""
    changed = {name: tensor.clone() for name, tensor in weights.items()}
    names = sorted(changed)
    for number, size, whole in edits:
        values = changed[names[number % len(names)]].view(-1)
        part = values if whole else values[:1]
        part.copy_(torch.where(part >= 0, size, -size))
    return changed
