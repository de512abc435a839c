"""Cache audit: going on behind a cache says what starting anew says, for every policy that claims to be exact."""

from __future__ import annotations

import math

import torch

from recurra.core.record import AuditResult
from recurra.core.seeds import derive_seed
from recurra.evaluation.audits.exact import exact_fp32
from recurra.evaluation.audits.invariance import TOLERANCE
from recurra.models.language_modeling import RecurraForCausalLM

TOKENS = 64
NAME = "cache.logits"


def audit_cache(
    model: RecurraForCausalLM, *, tokens: int = TOKENS, tolerance: float = TOLERANCE, seed: int = 0
) -> AuditResult:
    """Compares the logits of rows that are read token by token, with a cache, with those of whole rows without one.

    Looped models are known to go wrong after a few tokens, when recurrences share what each must keep for itself, and
    in batches that are padded on the left.

    Args:
        model: Ours; left as it was found.
        tokens: Length of the longest row; two shorter ones are padded on the left.
        tolerance: Largest allowed difference relative to the largest logit.
        seed: Chooses the tokens.
    """
    config = model.config
    if config.leaks:
        summary = "skipped: a leaking model has no cache, because it reads tokens that are not there yet"
        return AuditResult(name=NAME, status="skipped", summary=summary)
    length = min(tokens, config.max_position_embeddings)
    generator = torch.Generator().manual_seed(derive_seed(seed, "cache"))
    lengths = torch.tensor([length, max(1, length // 2), max(1, length // 10)])
    device = next(model.parameters()).device
    ids = torch.randint(0, config.vocab_size, (len(lengths), length), generator=generator).to(device)
    mask = (torch.arange(length) >= length - lengths[:, None]).long().to(device)
    with exact_fp32(model) as exact:
        whole = exact(ids, mask).logits
        cache = None
        largest = 0.0
        for place in range(length):
            output = exact(ids[:, place : place + 1], mask[:, : place + 1], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            real = mask[:, place].bool()
            largest = max(largest, float((output.logits[real, 0] - whole[real, place]).abs().max()))
        scale = float(whole[mask.bool()].abs().max())
    value = largest / scale if scale > 0 else largest
    finite = math.isfinite(value)
    return AuditResult(
        name=NAME,
        status="passed" if finite and value <= tolerance else "failed",
        summary=f"{length} tokens one by one with a cache: a logit differs by at most {value:.1e} of the largest; "
        f"allowed: {tolerance:.0e}",
        value=value if finite else None,
        threshold=tolerance,
        details={"tokens": length, "largest_difference": largest if finite else None, "precision": "fp32"},
    )
