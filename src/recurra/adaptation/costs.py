"""What the model of a plan costs: parameters that are stored, and the time of a text as it is estimated."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from recurra.models.accounting import count_parameters, forward_flops
from recurra.models.adaptation.convert import load_encoder
from recurra.models.adaptation.plan import SharingPlan
from recurra.models.adaptation.source import EncoderSource
from recurra.models.configuration import RecurraConfig
from recurra.models.rows.packed import PackedRows

# Keys that mean something where layers are shared, and nothing in a stack.
RELAXATIONS = ("recurrence_norms", "low_rank", "low_rank_where", "relaxation_start")
_ROUNDS = 15


class PlanCosts:
    """Costs of plans of one encoder.

    Args:
        source: The encoder.
        changes: Keys of the model's configuration in place of the encoder's; those of relaxations are left out of a
            stack, which shares nothing.
    """

    def __init__(self, source: EncoderSource, changes: Mapping[str, Any]) -> None:
        self._source, self._changes = source, changes

    def changes(self, plan: SharingPlan) -> dict[str, Any]:
        """Keys of the model of a plan."""
        stack = plan.recurrences == 1
        return {key: value for key, value in self._changes.items() if not (stack and key in RELAXATIONS)}

    def config(self, plan: SharingPlan) -> RecurraConfig:
        """Configuration of the model of a plan.

        Raises:
            ConfigurationError: If a key is wrong.
        """
        return RecurraConfig(**self._source.shape(str(plan), self.changes(plan)))

    def parameters(self, plan: SharingPlan) -> int:
        """Parameters that are stored, without a head."""
        counts = count_parameters(self.config(plan))
        return counts.total - counts.head

    def timer(self, tokens: int) -> Callable[[SharingPlan], float]:
        """Returns an estimate of the milliseconds that a text of some tokens takes by itself.

        The encoder and its embedding are timed here and now; a plan's layers take the encoder's time in proportion to
        their operations.
        """
        encoder = load_encoder(self._source.name)
        ids = torch.ones(1, tokens, dtype=torch.long)
        lengths = torch.tensor([tokens])
        layout = PackedRows.of(encoder.rotary, lengths, causal=False, device=ids.device)
        whole = _milliseconds(lambda: encoder(ids, row_lengths=lengths))
        embedding = min(whole, _milliseconds(lambda: encoder.embeddings(ids, None, layout)))
        per_flop = (whole - embedding) / forward_flops(encoder.config, tokens)
        return lambda plan: embedding + per_flop * forward_flops(self.config(plan), tokens)


@torch.inference_mode()
def _milliseconds(call: Callable[[], object]) -> float:
    """Median of some calls, after one that does not count."""
    call()
    times = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)
