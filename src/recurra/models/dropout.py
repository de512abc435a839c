"""Dropout with cheap random bits: torch's draws a number of 32 bits or more for every element, one after the other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_BITS = 16


class Dropout(nn.Dropout):
    """Zeroes each element with probability ``p`` while training, and scales the others to keep the mean.

    On a CPU, one element takes 16 random bits of torch's default generator, so ``p`` is rounded to a multiple of 2^-16
    and the scale is that of the rounded ``p``. Elsewhere it is torch's own fused kernel.
    """

    def forward(self, states: Tensor) -> Tensor:
        """Maps any shape to the same shape and type."""
        if not self.training or self.p == 0 or states.device.type != "cpu":
            return super().forward(states)
        return states * keep_mask(states, self.p)


def keep_mask(like: Tensor, p: float) -> Tensor:
    """Returns a random mask of the shape and type of ``like``: 0 with probability ``p``, else ``1 / (1 - p)``."""
    dropped = round(p * 2**_BITS)
    count = like.numel()
    words = torch.empty(-(-count * _BITS // 64), dtype=torch.int64).random_(-(2**63), None)
    # Comparing in place leaves 0 or 1 as int16, several times as fast as a comparison that makes booleans.
    kept = words.view(torch.int16)[:count].ge_(dropped - 2 ** (_BITS - 1)).view(like.shape)
    return kept.to(like.dtype).mul_(2**_BITS / (2**_BITS - dropped))
