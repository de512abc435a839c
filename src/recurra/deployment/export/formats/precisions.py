"""The precisions that weights are stored in, and what each may change. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StoredPrecision:
    """A precision of stored weights. Below these bounds an export is broken rather than rounded.

    Attributes:
        name: As it is asked for, for example ``fp16``.
        bits: Of a weight.
        least_agreement: Share of labels that must be those of the run's model.
        logit_tolerance: How far a logit may lie from the run's, as a share of the largest; none if that says nothing.
        most_lost_points: Points of accuracy that may be lost where labels are known; none if labels say enough.
    """

    name: str
    bits: int
    least_agreement: float
    logit_tolerance: float | None = None
    most_lost_points: float | None = None


# FP32 may differ in the order of sums alone.
FP32 = StoredPrecision("fp32", 32, least_agreement=0.999, logit_tolerance=1e-3)
BF16 = StoredPrecision("bf16", 16, least_agreement=0.95)
FP16 = StoredPrecision("fp16", 16, least_agreement=0.98)
INT8 = StoredPrecision("int8", 8, least_agreement=0.95, most_lost_points=0.5)
