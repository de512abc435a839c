"""Seeds for independent purposes from one seed."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Returns a seed for one purpose (31 bits), independent of those for other purposes.

    Args:
        seed: The run's seed.
        purpose: What the seed is for, for example ``("split", "validation")``.
    """
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
