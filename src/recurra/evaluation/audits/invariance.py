"""Invariance audit of a trained model: a text's logits must not depend on padding or on the batch it came in.

A model that fails here has other figures at another batch size, and its measured speed (batched, padded) belongs to
other predictions than its measured quality. Known causes: a mask that is ignored, the first row's mask applied to the
whole batch, statistics taken over the batch, positions counted from the padded end.

Both audits run in FP32, in evaluation mode, without autocast and without reduced-precision matrix products, and judge
the largest absolute difference of a logit, divided by the largest absolute logit of the reference. Kernels add in
another order for another shape, which gives about 1e-6; the tolerance is 1e-4; a real defect gives 1e-2 and more.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.configuration import derive_seed
from recurra.core.record import AuditResult
from recurra.models.language_modeling import RecurraForCausalLM


@contextlib.contextmanager
def exact_fp32(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The model in FP32 and evaluation mode, with exact matrix products; everything is put back afterwards."""
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

Tokens = npt.NDArray[np.int64]


def audit_invariance(
    model: torch.nn.Module,
    encoded: Any,
    *,
    pad_token_id: int = 0,
    rows: int = 12,
    max_length: int | None = None,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> list[AuditResult]:
    """Compares logits of the same tokenised rows, each a mapping with ``input_ids``, alone, padded, among neighbours.

    The model is called with int64 tensors ``(batch, tokens)`` and left as it was found; one of another precision is
    judged on a copy in FP32.
    """
    chosen = _choose_rows(encoded, rows, seed)
    if len(chosen) < MIN_ROWS or min(map(len, chosen)) == 0:
        why = f"{len(chosen)} tokenised rows; {MIN_ROWS} that are not empty are needed"
        return [AuditResult.skipped(f"invariance.{kind}", why) for kind in ("padding", "neighbours")]
    limit = max_length or getattr(getattr(model, "config", None), "max_position_embeddings", None)
    rng = np.random.default_rng(derive_seed(seed, "invariance", "content"))
    with exact_fp32(model) as exact:
        probe = _Probe(exact, pad_token_id)
        return [_audit_padding(probe, chosen, limit, tolerance, rng), _audit_neighbours(probe, chosen, tolerance, rng)]


class _Probe:
    """Runs the model on padded batches."""

    def __init__(self, model: torch.nn.Module, pad_token_id: int) -> None:
        self.model = model
        self.pad_token_id = pad_token_id
        parameter = next(model.parameters(), None)
        self.device = torch.device("cpu") if parameter is None else parameter.device

    def logits(self, rows: Sequence[Tokens], length: int, filler: Tokens | None = None) -> npt.NDArray[np.float64]:
        """Logits of rows padded to ``length``, shape ``(rows, labels)``; ``filler`` stands under the mask if given."""
        tokens = np.full((len(rows), length), self.pad_token_id, dtype=np.int64)
        if filler is not None:
            tokens[:] = filler[:length]
        mask = np.zeros((len(rows), length), dtype=np.int64)
        for position, row in enumerate(rows):
            tokens[position, : len(row)] = row
            mask[position, : len(row)] = 1
        output = self.model(
            input_ids=torch.from_numpy(tokens).to(self.device), attention_mask=torch.from_numpy(mask).to(self.device)
        )
        return output.logits.detach().to("cpu", torch.float64).numpy()


def _audit_padding(
    probe: _Probe, rows: Sequence[Tokens], limit: int | None, tolerance: float, rng: np.random.Generator
) -> AuditResult:
    differences = {"padding tokens": 0.0, "masked tokens": 0.0}
    scale = 0.0
    longest = max(map(len, rows))
    everything = np.concatenate(rows)
    for row in rows:
        alone = probe.logits([row], len(row))
        scale = _largest(scale, alone)
        targets = {len(row) + 1, longest + 16}
        for length in sorted({min(target, limit or target) for target in targets} - {len(row)}):
            if length < len(row):
                continue
            filler = rng.choice(everything, size=length)
            for kind, what in (("padding tokens", None), ("masked tokens", filler)):
                difference = probe.logits([row], length, what) - alone
                differences[kind] = _largest(differences[kind], difference)
    name, changes = "invariance.padding", "padding changes a logit"
    return judge_difference(name, changes, differences, scale, tolerance, rows=len(rows))


def _audit_neighbours(probe: _Probe, rows: Sequence[Tokens], tolerance: float, rng: np.random.Generator) -> AuditResult:
    # One padded length for all, so that only the company differs; what padding does is the other audit's question.
    length = max(map(len, rows))
    alone = np.concatenate([probe.logits([row], length) for row in rows])
    scale = _largest(0.0, alone)
    differences = {}
    orders = {
        "all together": np.arange(len(rows)),
        "reversed": np.arange(len(rows))[::-1],
        "shuffled": rng.permutation(len(rows)),
    }
    for name, order in orders.items():
        differences[name] = _largest(0.0, probe.logits([rows[row] for row in order], length) - alone[order])
    differences["pairs"] = 0.0
    for pair in itertools.pairwise(rng.permutation(len(rows)).tolist()):
        together = probe.logits([rows[row] for row in pair], length)
        differences["pairs"] = _largest(differences["pairs"], together - alone[list(pair)])
    what = "neighbours in the batch change a logit"
    return judge_difference("invariance.neighbours", what, differences, scale, tolerance, rows=len(rows))


def judge_difference(
    name: str, what: str, differences: Mapping[str, float], scale: float, tolerance: float, **details: Any
) -> AuditResult:
    """Judges the largest of some differences relative to the largest logit or loss; what is no number fails."""
    worst, difference = max(differences.items(), key=lambda case: math.inf if math.isnan(case[1]) else case[1])
    # Where all is zero there is no scale; then the difference itself is judged.
    value = difference / scale if scale > 0 else difference
    if not math.isfinite(difference) or not math.isfinite(scale):
        summary = f"what is compared is not finite ({worst})"
        return AuditResult(name=name, status="failed", summary=summary, threshold=tolerance, details=details)
    return AuditResult(
        name=name,
        status="failed" if value > tolerance else "passed",
        summary=f"{what} by at most {value:.1e} of the largest ({worst}; FP32); allowed: {tolerance:.0e}",
        value=value,
        threshold=tolerance,
        details={
            **details,
            "largest_difference": difference,
            "scale": scale,
            "by_case": dict(differences),
            "precision": "fp32",
        },
    )


def _choose_rows(encoded: Any, rows: int, seed: int) -> list[Tokens]:
    """A random choice of distinct rows with the shortest and the longest of a larger choice among them."""
    rng = np.random.default_rng(derive_seed(seed, "invariance", "rows"))
    positions = rng.permutation(len(encoded))[: max(rows * 20, 200)].tolist()
    distinct = {
        tuple(tokens.tolist()): tokens
        for tokens in (np.asarray(encoded[position]["input_ids"], dtype=np.int64) for position in positions)
    }
    pool = list(distinct.values())
    if len(pool) <= rows:
        return pool
    by_length = sorted(range(len(pool)), key=lambda index: len(pool[index]))
    ends = [by_length[0], by_length[-1]]
    rest = [index for index in range(len(pool)) if index not in ends]
    return [pool[index] for index in (ends + rest)[: max(rows, MIN_ROWS)]]


def _largest(so_far: float, values: npt.NDArray[np.float64]) -> float:
    """Largest absolute value seen; a value that is not finite stays."""
    return float(np.max(np.abs(np.append(values, so_far))))


TOKENS = 64
NAME = "cache.logits"


def audit_cache(
    model: RecurraForCausalLM, *, tokens: int = TOKENS, tolerance: float = TOLERANCE, seed: int = 0
) -> AuditResult:
    """Compares the logits of rows that are read token by token, with a cache, with those of whole rows without one.

    Looped models are known to go wrong after a few tokens, when recurrences share what each must keep for itself, and
    in batches that are padded on the left.
    """
    config = model.config
    if config.leaks:
        return AuditResult.skipped(NAME, "a leaking model has no cache: it reads tokens that are not there yet")
    length = min(tokens, config.max_position_embeddings)
    generator = torch.Generator().manual_seed(derive_seed(seed, "cache"))
    lengths = torch.tensor([length, max(1, length // 2), max(1, length // 10)])
    device = next(model.parameters()).device
    ids = torch.randint(0, config.vocab_size, (len(lengths), length), generator=generator).to(device)
    mask = (torch.arange(length) >= length - lengths[:, None]).long().to(device)
    with exact_fp32(model) as exact:
        whole = exact(ids, mask).logits
        cache = None
        differences = []
        for place in range(length):
            output = exact(ids[:, place : place + 1], mask[:, : place + 1], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            real = mask[:, place].bool()
            differences.append((output.logits[real, 0] - whole[real, place]).abs().max())
        # Unlike Python's `max`, it keeps what is no number.
        largest = float(torch.stack(differences).max())
        scale = float(whole[mask.bool()].abs().max())
    what = f"reading {length} tokens one by one with a cache changes a logit"
    return judge_difference(NAME, what, {"one by one": largest}, scale, tolerance, tokens=length)
