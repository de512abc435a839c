"""Audits of models: their outputs must depend on the text alone, and a language model must not read ahead.

Models run in FP32, in evaluation mode, without autocast and without reduced-precision matrix products.

**Invariance**: a text's logits must not depend on padding, on the rest of its batch, or on whether it is read with a
cache. A model that fails here has other figures at another batch size, and its speed (measured batched and padded)
belongs to other predictions than its quality. Known causes: a mask that is ignored, the first row's mask applied to the
whole batch, statistics computed over the batch, positions counted from the padded end. Judged is the largest absolute
difference of a logit, divided by the largest absolute logit of the reference. Kernels add in another order for another
shape, which gives about 1e-6; the tolerance is 1e-4; a real defect gives 1e-2 and more.

**Causality**: a token is exchanged, and every logit at an earlier position must stay bit for bit the same, because a
causal model computes it from the same numbers in the same order. The published CRT-Deep pads its convolutions on both
sides and fails here; that is how it reaches a perplexity of 1.08. Base and changed rows run in batches of the same
shape and at the same index, because kernels may add in another order for another shape.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from recurra.core.configuration import derive_seed
from recurra.core.errors import ConfigurationError
from recurra.core.record import FINAL_HEAD, IN_TRAINING, AuditResult
from recurra.evaluation.perplexity import head_names
from recurra.models.cache import CACHE
from recurra.models.configuration import RecurraConfig
from recurra.models.heads import IGNORED
from recurra.models.language_modeling import RecurraForCausalLM


def _device_of(model: torch.nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _context_of(model: Any) -> int | None:
    """The longest input of a model; None if it has no limit."""
    return getattr(getattr(model, "config", None), "max_position_embeddings", None) or None


@contextlib.contextmanager
def _exact_fp32(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The model in FP32 and evaluation mode, with exact matrix products; all settings are restored afterwards."""
    floating = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    exact = model if floating <= {torch.float32} else copy.deepcopy(model).float()
    device = _device_of(model)
    precision = torch.get_float32_matmul_precision()
    modes = [(module, module.training) for module in exact.modules()]
    torch.set_float32_matmul_precision("highest")
    exact.eval()
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
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
    limit = _context_of(model)
    rng = np.random.default_rng(derive_seed(seed, "invariance", "content"))
    with _exact_fp32(model) as exact:
        device = _device_of(exact)

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


CACHE_TOKENS = 64


def audit_cache(model: RecurraForCausalLM, *, tokens: int = CACHE_TOKENS, seed: int = 0) -> AuditResult:
    """Compares logits of rows read token by token with a cache with those of whole rows read without one.

    Looped models are known to fail after a few tokens, when recurrences share a cache that each must have of its own,
    and in batches padded on the left.
    """
    config, name = model.config, "cache.logits"
    if config.leaks:
        return AuditResult.skipped(name, "a leaking model has no cache: it reads tokens that do not exist yet")
    length = min(tokens, config.max_position_embeddings)
    generator = torch.Generator().manual_seed(derive_seed(seed, "cache"))
    lengths = torch.tensor([length, max(1, length // 2), max(1, length // 10)])
    device = _device_of(model)
    ids = torch.randint(0, config.vocab_size, (len(lengths), length), generator=generator).to(device)
    mask = (torch.arange(length) >= length - lengths[:, None]).long().to(device)
    with _exact_fp32(model) as exact:
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
    return judge_difference(name, what, {"one by one": differences}, scale, tokens=length)


def _call(model: Any, ids: Tensor, attention_mask: Tensor | None, labels: Tensor | None = None, **keywords: Any) -> Any:
    """The output of a model, ours or another, for tokens ``(batch, tokens)``."""
    device = _device_of(model)
    accepted = inspect.signature(model.forward).parameters
    if "use_cache" in accepted:
        # A cache would be useless, and some models lay out their states differently with one.
        keywords["use_cache"] = False
    if labels is not None:
        keywords["labels"] = labels.to(device)
    if attention_mask is not None:
        keywords["attention_mask"] = mask = attention_mask.to(device)
        if "position_ids" in accepted:
            # Only real tokens count, as in transformers' own generation.
            keywords["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    return model(ids.to(device), **keywords)


def _logits_by_head(model: Any, ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
    """Logits ``(batch, tokens, vocabulary)`` of each head by its name, the final one last."""
    if isinstance(model, RecurraForCausalLM):
        output = _call(model, ids, attention_mask, output_exits=True)
        return dict(zip(head_names(model.config), [*(output.exit_logits or ()), output.logits], strict=True))
    logits = _call(model, ids, attention_mask).logits
    if logits.shape[:2] != ids.shape:
        raise ConfigurationError(
            f"the model gives logits of shape {tuple(logits.shape)} for {tuple(ids.shape)} tokens; "
            "a causal language model gives one row of logits a token"
        )
    return {FINAL_HEAD: logits}


PADDED_LENGTHS = (5, 24, 11, 17, 2)


def audit_language_padding(model: Any, *, seed: int = 0) -> list[AuditResult]:
    """Compares rows alone with the same rows in padded batches.

    The loss of a model that is not ours is only judged with padding on the right, as in training: with padding on the
    left, transformers' own loss counts the first token as the prediction of a padded position.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "padding"))
    longest = min(max(PADDED_LENGTHS), _context_of(model) or max(PADDED_LENGTHS))
    vocabulary = int(model.config.vocab_size)
    rows = [torch.randint(0, vocabulary, (min(length, longest),), generator=generator) for length in PADDED_LENGTHS]
    fillers = {
        "padding tokens": torch.full((longest,), getattr(model.config, "pad_token_id", None) or 0),
        "masked tokens": torch.randint(0, vocabulary, (longest,), generator=generator),
    }
    with _exact_fp32(model) as exact:
        return [_compare_logits(exact, rows, fillers), _compare_losses(exact, rows, fillers)]


def _compare_logits(model: Any, rows: list[Tensor], fillers: dict[str, Tensor]) -> AuditResult:
    alone = [_logits_by_head(model, row[None]) for row in rows]
    scale = max(float(logits.abs().max()) for heads in alone for logits in heads.values())
    differences = {}
    for case, filler in fillers.items():
        for side in ("right", "left"):
            ids, mask = padded(rows, filler, left=side == "left")
            batch = _logits_by_head(model, ids, mask)
            differences[f"{case}, {side}"] = [
                float((batch[head][index][mask[index].bool()] - logits[0]).abs().max())
                for index, heads in enumerate(alone)
                for head, logits in heads.items()
            ]
    return judge_difference("padding.logits", "padding or neighbours change a logit", differences, scale)


def _compare_losses(model: Any, rows: list[Tensor], fillers: dict[str, Tensor]) -> AuditResult:
    ours = isinstance(model, RecurraForCausalLM)

    def loss(ids: Tensor, mask: Tensor) -> float:
        """The model's own loss; other models' labels mark padding by -100."""
        labels = ids if ours else ids.masked_fill(~mask.bool(), IGNORED)
        return float(_call(model, ids, mask, labels).loss)

    alone = [loss(row[None], torch.ones(1, len(row), dtype=torch.long)) for row in rows]
    differences = {
        f"{case}, {side}": [
            loss(*padded([row], filler, left=side == "left")) - expected
            for row, expected in zip(rows, alone, strict=True)
        ]
        for case, filler in fillers.items()
        for side in (("right", "left") if ours else ("right",))
    }
    return judge_difference("padding.loss", "padding changes a loss", differences, largest(alone))


# In short rows every token but the first is exchanged; a longer row measures convolutions that read far ahead.
SHORT_TOKENS = 24
LONG_TOKENS = 128
# The long row is this much longer than a leaking model can read ahead, so that it does not cut off the reach.
MARGIN_TOKENS = 8
# Limits the memory for logits of a large vocabulary.
ROWS_AT_ONCE = 8


@dataclass
class _Finding:
    """Results of one head so far."""

    exchanged: int = 0
    reacts: bool = False
    finite: bool = True
    reach: int = 0
    position: int | None = None
    reads: int | None = None
    largest_difference: float = 0.0

    def add(self, base_logits: Tensor, changed_logits: Tensor, positions: list[int]) -> None:
        """Adds logits ``(rows, tokens, vocabulary)`` before and after the tokens at ``positions`` were exchanged."""
        self.finite = self.finite and bool(base_logits.isfinite().all()) and bool(changed_logits.isfinite().all())
        changed = (base_logits != changed_logits).any(dim=-1)
        for row, position in enumerate(positions):
            self.exchanged += 1
            self.reacts = self.reacts or bool(changed[row, position:].any())
            earlier = changed[row, :position].nonzero()[:, 0].tolist()
            if not earlier:
                continue
            difference = float((base_logits[row, :position] - changed_logits[row, :position]).abs().max())
            self.largest_difference = max(self.largest_difference, difference)
            if position - earlier[0] > self.reach:
                self.reach, self.position, self.reads = position - earlier[0], earlier[0], position


def audit_causality(
    model: Any, *, rows: int = 2, tokens: int = SHORT_TOKENS, long_tokens: int | None = None, seed: int = 0
) -> list[AuditResult]:
    """Exchanges tokens and looks, head by head, for changed logits at earlier positions.

    The model, ours or of transformers, is not changed; in another precision than FP32 a copy is audited. A model with
    batch norms is also audited with the means of the batch, as in training (``causality.training.final``).
    """
    with _exact_fp32(model) as exact:
        theory = _theory(model)
        limit = _context_of(model)
        long_wanted = long_tokens or max(LONG_TOKENS, *(reach + MARGIN_TOKENS for reach in theory.values()), tokens)
        short, long = min(tokens, limit or tokens), min(long_wanted, limit or long_wanted)
        short_positions, long_positions = list(range(1, short)), sorted({long // 2, long - 1} - {0})
        exchanges = [(short, short_positions)] * rows + [(long, long_positions)]
        heads = _exchange_tokens(exact, exchanges, seed)
        audits = [_judge_causality(f"causality.{head}", finding, theory.get(head)) for head, finding in heads.items()]
        norms = [module for module in exact.modules() if isinstance(module, _BatchNorm)]
        if norms:
            with _of_the_batch(norms):
                heads = _exchange_tokens(exact, exchanges, seed, rows_at_once=1)
            audits += [_judge_causality(f"{IN_TRAINING}{head}", finding, None) for head, finding in heads.items()]
    return audits


@contextlib.contextmanager
def _of_the_batch(norms: list[_BatchNorm]) -> Iterator[None]:
    """Norms use the mean and variance of their batch, as in training, without updating running statistics."""
    tracking = [norm.track_running_stats for norm in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for norm, tracked in zip(norms, tracking, strict=True):
            norm.training, norm.track_running_stats = False, tracked


def _exchange_tokens(
    model: Any, rows: list[tuple[int, list[int]]], seed: int, *, rows_at_once: int = ROWS_AT_ONCE
) -> dict[str, _Finding]:
    """Exchanges one token at a time, in rows given as length and positions; ``rows_at_once`` share a batch."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "causality"))
    vocabulary = int(model.config.vocab_size)
    findings: dict[str, _Finding] = defaultdict(_Finding)
    for length, positions in rows:
        row = torch.randint(0, vocabulary, (length,), generator=generator)
        for start in range(0, len(positions), rows_at_once):
            batch = positions[start : start + rows_at_once]
            base = row.repeat(len(batch), 1)
            exchanged = base.clone()
            for row_index, position in enumerate(batch):
                offset = torch.randint(1, max(vocabulary, 2), (1,), generator=generator)
                exchanged[row_index, position] = (exchanged[row_index, position] + offset) % vocabulary
            before, after = _logits_by_head(model, base), _logits_by_head(model, exchanged)
            for head, logits in before.items():
                findings[head].add(logits, after[head], batch)
    return findings


def _theory(model: Any) -> dict[str, int]:
    """How far ahead each head could read by its configuration; empty for models that are not ours."""
    if not isinstance(model, RecurraForCausalLM):
        return {}
    config = model.config
    recurrences = zip(head_names(config), [*config.exits, config.num_recurrences], strict=True)
    return {head: reach_ahead(config, number) or 0 for head, number in recurrences}


def reach_ahead(config: RecurraConfig, recurrences: int | None = None) -> int | None:
    """Number of later tokens that a state can depend on, by the configuration; none for an encoder, which reads all.

    A convolution with ``kernel_size`` k and dilation s reads ``(k // 2) * s`` positions ahead. The reach of successive
    convolutions adds up: of cycles of the embedding, of every layer, and of every recurrence.
    """
    if not config.causal:
        return None
    if not config.leaks:
        return 0
    steps = [(config.kernel_size // 2) * dilation for dilation in config.dilations]

    def of_cycles(count: int) -> int:
        return sum(steps[number % len(steps)] for number in range(count))

    applied = config.num_recurrences if recurrences is None else recurrences
    layers = config.num_prelude_layers + config.num_core_layers * applied + config.num_coda_layers
    return of_cycles(config.embedding_cycles) + layers * of_cycles(config.num_cycles)


def _judge_causality(name: str, finding: _Finding, theory: int | None) -> AuditResult:
    details: dict[str, Any] = {
        "exchanged_tokens": finding.exchanged,
        "reach_tokens": finding.reach,
        "theoretical_reach_tokens": theory,
        "position": finding.position,
        "reads": finding.reads,
        "largest_difference": finding.largest_difference,
        "precision": "fp32",
    }
    status, value = "failed", None
    if not finding.finite:
        summary = "logits are not finite; nothing can be compared"
    elif not finding.reacts:
        summary = f"no logit changes when a token does ({finding.exchanged} exchanged): the model reads nothing"
    elif not finding.reach:
        summary = f"{finding.exchanged} tokens exchanged one at a time: every logit before them stayed bit-equal (FP32)"
        status, value = "passed", 0.0
    else:
        of_theory = "" if theory is None else f" (its shape can read {theory} ahead)"
        summary = (
            f"LEAKS: the prediction at position {finding.position} reads token {finding.reads}, "
            f"{finding.reach} ahead{of_theory}; logits change by up to {finding.largest_difference:.1e}"
        )
        value = float(finding.reach)
    return AuditResult(name=name, status=status, summary=summary, value=value, threshold=0.0, details=details)
