"""Padding audit of a language model: padding and neighbours change no logit of a real token, and no loss.

Rows of different lengths are compared alone and in one padded batch, padded on the right and on the left, with padding
tokens and with arbitrary tokens under the mask. Shapes differ, so kernels add in another order: differences are judged
against the largest logit, as in `recurra.evaluation.audits.invariance`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from recurra.core.record import AuditResult
from recurra.core.seeds import derive_seed
from recurra.evaluation.audits.invariance import TOLERANCE, exact_fp32
from recurra.evaluation.audits.language_probe import LanguageProbe

LENGTHS = (5, 24, 11, 17, 2)


def audit_language_padding(model: Any, *, tolerance: float = TOLERANCE, seed: int = 0) -> list[AuditResult]:
    """Compares rows alone with the same rows in padded batches.

    Args:
        model: A causal language model, ours or of transformers (`LanguageProbe`); left as it was found.
        tolerance: Largest allowed difference relative to the largest logit, or to the loss.
        seed: Chooses the tokens.

    Returns:
        ``padding.logits`` over all heads and both sides; ``padding.loss`` for a padded row. The loss of a model that is
        not ours is judged with padding on the right only, as in training: left of a row, transformers' own loss
        counts the first token as the prediction of a padded position.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "padding"))
    with exact_fp32(model) as exact:
        probe = LanguageProbe(exact)
        limit = probe.context_tokens
        longest = min(max(LENGTHS), limit or max(LENGTHS))
        lengths = [min(length, longest) for length in LENGTHS]
        rows = [torch.randint(0, probe.vocabulary, (length,), generator=generator) for length in lengths]
        fill = getattr(probe.model.config, "pad_token_id", None) or 0
        fillers = {
            "padding tokens": torch.full((longest,), fill),
            "masked tokens": torch.randint(0, probe.vocabulary, (longest,), generator=generator),
        }
        return [_logits(probe, rows, fillers, tolerance), _loss(probe, rows, fillers, tolerance)]


def _pad(rows: list[Tensor], filler: Tensor, *, left: bool) -> tuple[Tensor, Tensor]:
    """Ids and mask ``(rows, tokens)`` at the filler's length."""
    ids = filler.repeat(len(rows), 1)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        where = slice(len(filler) - len(row), None) if left else slice(None, len(row))
        ids[number, where], mask[number, where] = row, 1
    return ids, mask


def _logits(probe: LanguageProbe, rows: list[Tensor], fillers: dict[str, Tensor], tolerance: float) -> AuditResult:
    alone = [probe.logits(row[None]) for row in rows]
    scale = max(float(logits.abs().max()) for heads in alone for logits in heads.values())
    differences = {}
    for what, filler in fillers.items():
        for side in ("right", "left"):
            ids, mask = _pad(rows, filler, left=side == "left")
            batch = probe.logits(ids, mask)
            differences[f"{what}, {side}"] = max(
                _largest(batch[head][number][mask[number].bool()] - logits[0])
                for number, heads in enumerate(alone)
                for head, logits in heads.items()
            )
    what = "padding or neighbours change a logit"
    return _judge("logits", what, differences, scale, tolerance)


def _loss(probe: LanguageProbe, rows: list[Tensor], fillers: dict[str, Tensor], tolerance: float) -> AuditResult:
    differences = {}
    scale = 0.0
    for what, filler in fillers.items():
        for side in ("right", "left") if probe.ours else ("right",):
            found = 0.0
            for row in rows:
                alone = probe.loss(row[None], torch.ones(1, len(row), dtype=torch.long))
                ids, mask = _pad([row], filler, left=side == "left")
                found = max(found, _number(abs(probe.loss(ids, mask) - alone)))
                scale = max(scale, abs(alone))
            differences[f"{what}, {side}"] = found
    return _judge("loss", "padding changes a loss", differences, scale, tolerance)


def _largest(difference: Tensor) -> float:
    return _number(float(difference.abs().max()))


def _number(difference: float) -> float:
    """Infinity for what is no number, which `max` would pass over."""
    return math.inf if math.isnan(difference) else difference


def _judge(kind: str, what: str, differences: dict[str, float], scale: float, tolerance: float) -> AuditResult:
    name = f"padding.{kind}"
    worst, difference = max(differences.items(), key=lambda item: item[1])
    if not math.isfinite(difference) or not math.isfinite(scale):
        summary = f"a {kind.removesuffix('s')} is not finite ({worst})"
        return AuditResult(name=name, status="failed", summary=summary, threshold=tolerance)
    value = difference / scale if scale > 0 else difference
    return AuditResult(
        name=name,
        status="failed" if value > tolerance else "passed",
        summary=f"{what} by at most {value:.1e} of the largest ({worst}; FP32); allowed: {tolerance:.0e}",
        value=value,
        threshold=tolerance,
        details={"largest_difference": difference, "scale": scale, "by_case": differences, "precision": "fp32"},
    )
