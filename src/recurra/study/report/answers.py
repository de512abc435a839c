"""How the records answer what a study asked: contrasts, and figures beside the published ones, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["distinguishable", "by rows only", "not distinguishable", "untested"]


@dataclass(frozen=True)
class ContrastLine:
    """One contrast of the study file in one table.

    Attributes:
        name: As the study file has it.
        a: The model that is asked about.
        b: What it is held against.
        split: The split that is judged.
        seeds: Pairs of runs compared, one a seed; a model that knows no seed meets every seed of the other.
        gap: Mean accuracy of ``a`` less that of ``b`` over those pairs.
        half: Half the width of the 95 % interval of the gap over seeds (Student's t on the pairs); none with one pair.
        low: Lower end of the 95 % paired bootstrap interval of the gap over rows; none if it could not be tested.
        high: Upper end of it.
        p: Bootstrap p-value.
        p_holm: The same, corrected by Holm over the contrasts of the table.
        odds_ratio: Rows that only ``a`` gets right for each that only ``b`` does, over all pairs.
        spread: The most that the seed alone moves either model: its best less its worst seed; none with one seed.
        inside_spread: Whether the gap is smaller than that; none with one seed.
        verdict: Whether a difference is supported by rows and seeds alike; with one seed, at most by rows.
        statement: The finding in one sentence, and no more than the figures support.
    """

    name: str
    a: str
    b: str
    split: str
    seeds: int
    gap: float
    half: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    odds_ratio: float | None
    spread: float | None
    inside_spread: bool | None
    verdict: Verdict
    statement: str = ""


@dataclass(frozen=True)
class PublishedLine:
    """Published figures beside those of one model of ours.

    Attributes:
        model: Label of our model.
        source: Which table of the papers.
        what: The experiment, in words.
        protocol: The split that was published on.
        accuracy: The published figure; so are the next four.
        f1: See ``accuracy``.
        precision: See ``accuracy``.
        recall: See ``accuracy``.
        latency_ms: Milliseconds a text, on a machine that is not named.
        difference: Our mean accuracy less the published one; none if ours has no score.
        inside: Whether the published accuracy lies in our 95 % interval; none if we have none.
        basis: What our interval is over: ``seeds`` or ``examples``.
        differs: What is not the same between the two; empty if they are like for like.
    """

    model: str
    source: str
    what: str
    protocol: str
    accuracy: float
    f1: float
    precision: float
    recall: float
    latency_ms: float
    difference: float | None
    inside: bool | None
    basis: str
    differs: str
