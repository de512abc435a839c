"""Causality audit: does a language model read tokens that it is to predict?

A token is exchanged, and every logit at an earlier position must stay bit for bit the same: in FP32 and evaluation mode
a causal model computes it from the same numbers in the same order. The published CRT-Deep pads its convolutions on both
sides and fails here; that is how it reaches a perplexity of 1.08.

Base and changed rows run in batches of the same shape and at the same index, because kernels may add in another order
for another shape.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from recurra.core.configuration import derive_seed
from recurra.core.errors import ConfigurationError
from recurra.core.record import FINAL_HEAD, IN_TRAINING, AuditResult
from recurra.evaluation.audits.invariance import exact_fp32, judge_difference, largest, padded
from recurra.evaluation.perplexity import head_names
from recurra.models.configuration import RecurraConfig
from recurra.models.heads import IGNORED
from recurra.models.language_modeling import RecurraForCausalLM


def _call(model: Any, ids: Tensor, attention_mask: Tensor | None, labels: Tensor | None = None, **keywords: Any) -> Any:
    """The output of a model, ours or another, for tokens ``(batch, tokens)``."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
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


LENGTHS = (5, 24, 11, 17, 2)


def audit_language_padding(model: Any, *, seed: int = 0) -> list[AuditResult]:
    """Compares rows alone with the same rows in padded batches.

    The loss of a model that is not ours is only judged with padding on the right, as in training: with padding on the
    left, transformers' own loss counts the first token as the prediction of a padded position.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "padding"))
    longest = min(max(LENGTHS), _context_of(model) or max(LENGTHS))
    vocabulary = int(model.config.vocab_size)
    rows = [torch.randint(0, vocabulary, (min(length, longest),), generator=generator) for length in LENGTHS]
    fillers = {
        "padding tokens": torch.full((longest,), getattr(model.config, "pad_token_id", None) or 0),
        "masked tokens": torch.randint(0, vocabulary, (longest,), generator=generator),
    }
    with exact_fp32(model) as exact:
        return [_compare_logits(exact, rows, fillers), _compare_losses(exact, rows, fillers)]


def _context_of(model: Any) -> int | None:
    """The longest input of a model; None if it has no limit."""
    return getattr(model.config, "max_position_embeddings", None) or None


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
    with exact_fp32(model) as exact:
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
