"""Invariance audit of a trained model: a text's logits must not depend on padding or on the rest of its batch.

A model that fails here has other figures at another batch size, and its speed (measured batched and padded) belongs to
other predictions than its quality. Known causes: a mask that is ignored, the first row's mask applied to the whole
batch, statistics computed over the batch, positions counted from the padded end.

Both audits run in FP32, in evaluation mode, without autocast and without reduced-precision matrix products. They judge
the largest absolute difference of a logit, divided by the largest absolute logit of the reference. Kernels add in
another order for another shape, which gives about 1e-6; the tolerance is 1e-4; a real defect gives 1e-2 and more.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recurra.core.configuration import derive_seed
from recurra.core.record import AuditResult
from recurra.models.cache import CACHE
from recurra.models.language_modeling import RecurraForCausalLM


@contextlib.contextmanager
def exact_fp32(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The model in FP32 and evaluation mode, with exact matrix products; all settings are restored afterwards."""
    floating = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    exact = model if floating <= {torch.float32} else copy.deepcopy(model).float()
    device_type = next((parameter.device.type for parameter in model.parameters()), "cpu")
    precision = torch.get_float32_matmul_precision()
    modes = [(module, module.training) for module in exact.modules()]
    torch.set_float32_matmul_precision("highest")
    exact.eval()
    try:
        with torch.no_grad(), torch.autocast(device_type, enabled=False):
            yield exact
    finally:
        torch.set_float32_matmul_precision(precision)
        for module, training in modes:
            module.training = training


TOLERANCE = 1e-4
MIN_ROWS = 2

Floats = npt.NDArray[np.float64]
Logits = Callable[[Sequence[Tensor], Tensor], Floats]


def audit_invariance(
    model: torch.nn.Module,
    encoded: Any,
    *,
    pad_token_id: int = 0,
    rows: int = 12,
    seed: int = 0,
) -> list[AuditResult]:
    """Compares logits of the same tokenised rows, each a mapping with ``input_ids``, alone, padded, among neighbours.

    The model is called with int64 tensors ``(batch, tokens)`` and is not changed; in another precision than FP32 a copy
    is audited.
    """
    chosen = _choose_rows(encoded, rows, seed)
    if len(chosen) < MIN_ROWS or min(map(len, chosen)) == 0:
        why = f"{len(chosen)} tokenised rows; {MIN_ROWS} that are not empty are needed"
        return [AuditResult.skipped(f"invariance.{kind}", why) for kind in ("padding", "neighbours")]
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    rng = np.random.default_rng(derive_seed(seed, "invariance", "content"))
    with exact_fp32(model) as exact:
        device = next((parameter.device for parameter in exact.parameters()), torch.device("cpu"))

        def logits(rows: Sequence[Tensor], filler: Tensor) -> Floats:
            """Logits ``(rows, labels)`` of rows padded to the length of the filler."""
            ids, mask = padded(rows, filler)
            output = exact(input_ids=ids.to(device), attention_mask=mask.to(device))
            return np.asarray(output.logits.detach().to("cpu", torch.float64).numpy())

        return [
            _audit_padding(logits, chosen, pad_token_id, rng, limit),
            _audit_neighbours(logits, chosen, pad_token_id, rng),
        ]


def padded(rows: Sequence[Tensor], filler: Tensor, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """Ids and mask ``(rows, tokens)`` of rows padded with the masked tokens of ``filler`` to its length."""
    ids = filler.repeat(len(rows), 1)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        where = slice(len(filler) - len(row), None) if left else slice(None, len(row))
        ids[number, where], mask[number, where] = row, 1
    return ids, mask


def _audit_padding(
    logits: Logits, rows: Sequence[Tensor], pad: int, rng: np.random.Generator, limit: int | None
) -> AuditResult:
    differences: dict[str, list[float]] = {"padding tokens": [], "masked tokens": []}
    scales = []
    longest = max(map(len, rows))
    all_tokens = torch.cat(list(rows)).numpy()
    for row in rows:
        alone = logits([row], row)
        scales.append(largest(alone))
        lengths = {min(length, limit or length) for length in (len(row) + 1, longest + 16)}
        for length in sorted(length for length in lengths if length > len(row)):
            fillers = torch.full((length,), pad), torch.from_numpy(rng.choice(all_tokens, size=length))
            for case_differences, filler in zip(differences.values(), fillers, strict=True):
                case_differences.append(largest(logits([row], filler) - alone))
    what = "padding changes a logit"
    return judge_difference("invariance.padding", what, differences, largest(scales), rows=len(rows))


def _audit_neighbours(logits: Logits, rows: Sequence[Tensor], pad: int, rng: np.random.Generator) -> AuditResult:
    # All batches have the same padded length, so that only the neighbours differ; padding is the other audit's matter.
    filler = torch.full((max(map(len, rows)),), pad)
    alone = np.concatenate([logits([row], filler) for row in rows])
    all_rows = np.arange(len(rows))
    together = {"all together": [all_rows], "reversed": [all_rows[::-1]], "shuffled": [rng.permutation(len(rows))]}
    together["pairs"] = [np.asarray(pair) for pair in itertools.pairwise(rng.permutation(len(rows)).tolist())]
    differences = {
        name: [largest(logits([rows[row] for row in order], filler) - alone[order]) for order in orders]
        for name, orders in together.items()
    }
    what = "neighbours in the batch change a logit"
    return judge_difference("invariance.neighbours", what, differences, largest(alone), rows=len(rows))


def largest(values: npt.ArrayLike) -> float:
    """Largest absolute value, 0 without values; NaN if any is NaN, which Python's `max` might ignore."""
    return float(np.max(np.abs(values), initial=0.0))


def judge_difference(
    name: str, what: str, differences: Mapping[str, Sequence[float]], scale: float, **details: Any
) -> AuditResult:
    """Judges the largest difference relative to the largest logit or loss; values that are not finite fail."""
    by_case = {case: largest(values) for case, values in differences.items()}
    worst, difference = max(by_case.items(), key=lambda case: math.inf if math.isnan(case[1]) else case[1])
    # Without a scale, because all values are 0, the difference itself is judged.
    value = difference / scale if scale > 0 else difference
    if not math.isfinite(difference) or not math.isfinite(scale):
        summary = f"what is compared is not finite ({worst})"
        return AuditResult(name=name, status="failed", summary=summary, threshold=TOLERANCE, details=details)
    return AuditResult(
        name=name,
        status="failed" if value > TOLERANCE else "passed",
        summary=f"{what} by at most {value:.1e} of the largest ({worst}; FP32); allowed: {TOLERANCE:.0e}",
        value=value,
        threshold=TOLERANCE,
        details={**details, "largest_difference": difference, "scale": scale, "by_case": by_case, "precision": "fp32"},
    )


def _choose_rows(encoded: Any, rows: int, seed: int) -> list[Tensor]:
    """A random choice of distinct rows, including the shortest and the longest of a larger random choice."""
    rng = np.random.default_rng(derive_seed(seed, "invariance", "rows"))
    positions = rng.permutation(len(encoded))[: max(rows * 20, 200)].tolist()
    distinct = dict.fromkeys(tuple(map(int, encoded[position]["input_ids"])) for position in positions)
    pool = [torch.tensor(tokens, dtype=torch.long) for tokens in distinct]
    if len(pool) <= rows:
        return pool
    by_length = sorted(range(len(pool)), key=lambda index: len(pool[index]))
    extremes = [by_length[0], by_length[-1]]
    others = [index for index in range(len(pool)) if index not in extremes]
    return [pool[index] for index in (extremes + others)[: max(rows, MIN_ROWS)]]


TOKENS = 64
NAME = "cache.logits"


def audit_cache(model: RecurraForCausalLM, *, tokens: int = TOKENS, seed: int = 0) -> AuditResult:
    """Compares logits of rows read token by token with a cache with those of whole rows read without one.

    Looped models are known to fail after a few tokens, when recurrences share a cache that each must have of its own,
    and in batches padded on the left.
    """
    config = model.config
    if config.leaks:
        return AuditResult.skipped(NAME, "a leaking model has no cache: it reads tokens that do not exist yet")
    length = min(tokens, config.max_position_embeddings)
    generator = torch.Generator().manual_seed(derive_seed(seed, "cache"))
    lengths = torch.tensor([length, max(1, length // 2), max(1, length // 10)])
    device = next(model.parameters()).device
    ids = torch.randint(0, config.vocab_size, (len(lengths), length), generator=generator).to(device)
    mask = (torch.arange(length) >= length - lengths[:, None]).long().to(device)
    with exact_fp32(model) as exact:
        reference = exact(ids, mask).logits
        cache = None
        differences = []
        for index in range(length):
            output = exact(ids[:, index : index + 1], mask[:, : index + 1], use_cache=True, **{CACHE: cache})
            cache = output[CACHE]
            real = mask[:, index].bool()
            differences.append(float((output.logits[real, 0] - reference[real, index]).abs().max()))
        scale = float(reference[mask.bool()].abs().max())
    what = f"reading {length} tokens one by one with a cache changes a logit"
    return judge_difference(NAME, what, {"one by one": differences}, scale, tokens=length)
