"""What is shown of a language model: a row a head, a cache policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recurra.core.language_record import LanguageMetricsRecord
from recurra.evaluation.cache_policies import PolicyCost
from recurra.evaluation.positions import PositionLoss
from recurra.tasks.presentation import ShownTable

CACHE_HEADINGS = ["Cache", "Serves", "KiB a token", "Loss", "Above exact"]
POSITION_HEADINGS = ["Head", "First", "Middle", "Last", "All but the last"]
HEADINGS = ["Text", "Head", "Loss", "Perplexity a token", "a word", "Bits a byte"]


def head_table(title: str, metrics: Mapping[str, LanguageMetricsRecord]) -> ShownTable:
    """A row for each head on each text."""
    rows = [row for source, measured in metrics.items() for row in head_rows(source, measured)]
    return ShownTable(title, HEADINGS, rows, left=("Head",))


def position_table(title: str, positions: Mapping[str, PositionLoss]) -> ShownTable:
    """A row a head."""
    return ShownTable(title, POSITION_HEADINGS, position_rows(positions), left=("Head",))


def cache_table(title: str, caches: Sequence[PolicyCost]) -> ShownTable:
    """A row a cache policy."""
    return ShownTable(title, CACHE_HEADINGS, cache_rows(caches), left=("Cache", "Serves"))


def position_rows(positions: Mapping[str, PositionLoss]) -> list[list[str]]:
    """A row a head: nats a token at the first, the middle and the last position, and at all but the last."""
    rows = []
    for name, found in positions.items():
        last = len(found.loss) - 1
        places = [found.loss[0], found.loss[last // 2], found.loss[last], found.mean(slice(0, last))]
        rows.append([name, *("–" if loss is None else f"{loss:.4f}" for loss in places)])
    return rows


def cache_rows(caches: Sequence[PolicyCost]) -> list[list[str]]:
    """A row a cache policy: memory a token, loss, and what that is above the exact one."""
    exact = caches[0]
    return [
        [
            cost.policy,
            "each its own" if cost.serving is None else f"loop {cost.serving} the later ones",
            f"{cost.bytes_per_token / 1024:.2f}",
            f"{cost.loss:.4f}",
            f"{100 * (cost.loss / exact.loss - 1):+.2f} %",
        ]
        for cost in caches
    ]


def head_rows(source: str, metrics: LanguageMetricsRecord) -> list[list[str]]:
    """A row a head: loss in nats a token, perplexities, bits a byte."""
    return [
        [
            source,
            name,
            f"{head.loss:.4f}",
            _perplexity(head.token_perplexity),
            _perplexity(head.word_perplexity),
            "–" if head.bits_per_byte is None else f"{head.bits_per_byte:.3f}",
        ]
        for name, head in metrics.heads.items()
    ]


def _perplexity(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if value >= 1e5 else f"{value:.2f}"
