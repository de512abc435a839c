"""What a shared cache saves and what it costs, side by side with the exact one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.evaluation.scoring import BATCH_POSITIONS
from recurra.evaluation.token_exits import score_token_exits
from recurra.models.cache import PER_LOOP, SHARED, growth_bytes_per_token
from recurra.models.language_modeling import RecurraForCausalLM


@dataclass(frozen=True)
class PolicyCost:
    """A cache policy of a model on a text.

    Attributes:
        policy: ``per-loop`` or ``shared``.
        serving: Recurrence whose keys and values serve the later ones; none for ``per-loop``.
        bytes_per_token: What the cache of one row grows by with a token.
        loss: Nats a token, as decoding with this cache has them.
    """

    policy: str
    serving: int | None
    bytes_per_token: int
    loss: float

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def compare_cache_policies(
    model: RecurraForCausalLM,
    texts: Sequence[npt.NDArray[np.integer[Any]]],
    *,
    first_read: int,
    context: int,
    dtype: torch.dtype = torch.float32,
    batch_positions: int = BATCH_POSITIONS,
) -> list[PolicyCost]:
    """Scores texts under every policy that the model allows, the exact one first.

    Args:
        model: Ours; not one that leaks.
        texts: See `recurra.evaluation.scoring.score_texts`, and so the next two.
        first_read: See there.
        context: See there.
        dtype: Type of the keys and values whose bytes are counted.
        batch_positions: See there.

    Raises:
        ConfigurationError: If the model leaks.
    """
    found = []
    for serving in (None, *range(1, model.config.num_recurrences)):
        scores = score_token_exits(
            model, texts, None, first_read=first_read, context=context, serving=serving, batch_positions=batch_positions
        )
        memory = growth_bytes_per_token(model.config, dtype, serving=serving)
        found.append(PolicyCost(PER_LOOP if serving is None else SHARED, serving, memory, scores.loss))
    return found
