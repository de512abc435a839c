"""How much of an encoder's function a plan keeps before any training, and which plans are worth a training.

What recurrences have of their own changes nothing before training, so it is left out here.

What a plan keeps is the mean cosine of what it makes of a text and what the whole encoder makes of it, both read as the
mean over tokens and centred over the texts: without centring, what all texts have in common would count as kept.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from recurra.core.errors import ConfigurationError
from recurra.models.adaptation.plan import SharingPlan
from recurra.models.feed_forward import Embeddings
from recurra.models.heads import mean_of_packed
from recurra.models.modeling import RecurraModel
from recurra.models.rows.packed import PackedRows

# Up to so many layers every choice of layers is tried; deeper encoders lose layers one by one, the cheapest first.
_MOST_TRIED_LAYERS = 8
_MOST_APPLICATIONS = 4
# Choices of layers that are tried with loops.
_BEST_CHOICES = 6


@dataclass(frozen=True)
class ScoredPlan:
    """A plan and what it keeps: 1 is all of the encoder's function, 0 nothing."""

    plan: SharingPlan
    kept: float


class KeptFunction:
    """Scores plans of one encoder on some texts.

    Args:
        encoder: All its layers as a stack, as `recurra.models.adaptation.convert.load_encoder` gives it.
        input_ids: ``(tokens,)``, rows end to end.
        row_lengths: ``(rows,)``; two rows at least.
        embeddings: What plans begin with; none means what the encoder begins with.
    """

    def __init__(
        self,
        encoder: RecurraModel,
        input_ids: Tensor,
        row_lengths: Tensor,
        embeddings: Embeddings | None = None,
    ) -> None:
        if len(row_lengths) < 2:
            raise ConfigurationError(f"plans are compared on {len(row_lengths)} texts; give two at least, better 200")
        self._layers = encoder.core.block.layers
        self._lengths = row_lengths
        self._layout = PackedRows.of(encoder.rotary, row_lengths, causal=False, device=input_ids.device)
        self._begin(encoder.embeddings, input_ids)
        self._whole = self._read(range(len(self._layers)))
        if embeddings is not None:
            self._begin(embeddings, input_ids)

    @torch.inference_mode()
    def _begin(self, embeddings: Embeddings, input_ids: Tensor) -> None:
        # Layers of the plan before, and the states after each: plans in order share much of their way.
        self._way: list[int] = []
        self._states = [embeddings(input_ids[None], None, self._layout)]

    @property
    def num_layers(self) -> int:
        """Layers of the encoder."""
        return len(self._layers)

    def score(self, plan: SharingPlan) -> ScoredPlan:
        """What a plan keeps."""
        found = self._read(plan.order)
        return ScoredPlan(plan, functional.cosine_similarity(found, self._whole).mean().item())

    @torch.inference_mode()
    def _read(self, wanted: Sequence[int]) -> Tensor:
        pairs = zip(wanted, self._way, strict=False)
        shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        del self._states[shared + 1 :]
        for number in wanted[shared:]:
            self._states.append(self._layers[number](self._states[-1], self._layout))
        self._way = list(wanted)
        found = mean_of_packed(self._states[-1], self._lengths)
        return found - found.mean(dim=0)


class PlanScorer(Protocol):
    """What scores plans: `KeptFunction`, or who remembers what it said."""

    @property
    def num_layers(self) -> int:
        """Layers of the encoder."""

    def score(self, plan: SharingPlan, /) -> ScoredPlan:
        """What a plan keeps."""


def candidate_plans(
    function: PlanScorer, stored: int, applied: int, *, fits: Callable[[SharingPlan], bool] = lambda _: True
) -> list[SharingPlan]:
    """Plans that store so many layers and apply at most so many; the stack of them is among them.

    Args:
        function: What scores the stacks that lead to a deep encoder's choices of layers; others are not scored.
        stored: Layers with weights of their own.
        applied: Layer applications at most.
        fits: Whether a plan may be chosen; others are left out.

    Returns:
        In the order of their layers: neighbours share much of their way, so scored so they cost least.

    Raises:
        ConfigurationError: If there can be no such plan.
    """
    layers = function.num_layers
    if not 1 <= stored <= layers:
        raise ConfigurationError(f"{stored} of {layers} layers are to be stored; allowed: 1 to {layers}")
    if applied < stored:
        raise ConfigurationError(f"{stored} layers are stored and {applied} applied; each is applied at least once")
    choices = _choices(layers, stored, lambda chosen: function.score(SharingPlan((), chosen, (), 1)).kept)
    candidates = [plan for chosen in choices for plan in loops(chosen, applied) if fits(plan)]
    return sorted(candidates, key=lambda plan: plan.order)


def _choices(layers: int, stored: int, kept: Callable[[tuple[int, ...]], float]) -> list[tuple[int, ...]]:
    """Layers to store: all choices, or of a deep encoder those that are left when the cheapest layers went."""
    if layers <= _MOST_TRIED_LAYERS:
        return list(itertools.combinations(range(layers), stored))
    ranked = [tuple(range(layers))]
    kept = functools.cache(kept)
    while len(ranked[0]) > stored:
        smaller = {chosen[:index] + chosen[index + 1 :] for chosen in ranked for index in range(len(chosen))}
        ranked = sorted(smaller, key=lambda chosen: (-kept(chosen), chosen))[:_BEST_CHOICES]
    return ranked


def loops(chosen: Sequence[int], applied: int) -> Iterator[SharingPlan]:
    """Every way to apply a run of some layers again, and the stack of them."""
    yield SharingPlan((), tuple(chosen), (), 1)
    for start, end in itertools.combinations(range(len(chosen) + 1), 2):
        for times in range(2, _MOST_APPLICATIONS + 1):
            plan = SharingPlan(tuple(chosen[:start]), tuple(chosen[start:end]), tuple(chosen[end:]), times)
            if plan.applied <= applied:
                yield plan
