"""Records of language models made up for tests: no training, figures that can be computed in the head."""

from __future__ import annotations

import math
from typing import Any

from factories import CREATED, MACHINE, graded
from recurra.core.exits_record import EarlyExitRecord, ExitsRecord, TimedEarlyExit
from recurra.core.record import AnyRecord, AuditResult, HeadRecord, LanguageRunRecord

TOKENS, WORDS, BYTES = 1200, 1000, 5000
HEADS = ("exit-1", "exit-2", "final")
# By how much the loss on a split is below that on test.
SPLITS = {"validation": 0.05, "test": 0.0}


def head(loss: float) -> HeadRecord:
    """Figures that follow from nats a token."""
    nats = loss * TOKENS
    word_perplexity, bits_per_byte = math.exp(nats / WORDS), nats / math.log(2) / BYTES
    return HeadRecord(
        loss=loss, token_perplexity=math.exp(loss), word_perplexity=word_perplexity, bits_per_byte=bits_per_byte
    )


def language_record(
    *, preset: str = "crt-tiny", leaks: bool = False, loss: float = 4.0, seed: int = 0, epochs: int = 2, **config: Any
) -> LanguageRunRecord:
    """A record; the exits are a little worse than the final head, validation a little better than test."""
    losses = {name: loss + 0.1 * (len(HEADS) - 1 - place) for place, name in enumerate(HEADS)}
    sizes = {"tokens": TOKENS, "words": WORDS, "bytes": BYTES}
    found = {split: {name: head(value - less) for name, value in losses.items()} for split, less in SPLITS.items()}
    history = [
        {
            "epoch": epoch, "train_loss": loss + 2 / epoch, "validation_loss": loss + 1 / epoch, "learning_rate": 1e-3,
            "validation_heads": {name: value + 1 / epoch for name, value in losses.items()}, "wall_s": 9.0,
        }
        for epoch in range(1, epochs + 1)
    ]  # fmt: skip
    settings = {"model": preset, "seed": seed, **config}
    values = {
        "run_id": f"wikitext-2-v1-packed-128-{preset}-tuned-s{seed}-{len(str(settings)):08}",
        "config": settings, "config_hash": f"{preset}-{seed}", "seed": seed, "created": CREATED, "wall_s": 60.0,
        "code": {"version": "0.1.0"}, "environment": MACHINE,
        "data": {
            "name": "wikitext-2-v1", "unit": "line", "mode": "packed", "context": 128, "fingerprint": "d" * 16,
            "selection_split": "validation", "reported_splits": list(SPLITS),
            "splits": {name: {"fingerprint": "f" * 16, "texts": 10, **sizes} for name in ("train", *SPLITS)},
            "tokenizer": {"kind": "byte-level BPE", "vocab_size": 8192, "lossless": True},
        },
        "model": {
            "preset": preset, "kind": "transformer", "parameters": 1_200_000, "embedding_parameters": 600_000,
            "non_embedding_parameters": 600_000, "flops_per_token": 1e7, "file_size_bytes": 4_800_000,
        },
        "training": {
            "protocol": "tuned", "epochs": epochs, "steps": 100 * epochs, "best_epoch": epochs, "wall_s": 50.0,
            "tokens_per_s": 2000.0, "peak_memory_mib": 900.0, "history": history,
        },
        "metrics": {name: {**sizes, "context": 128, "stride": 128, "heads": heads} for name, heads in found.items()},
        "audits": [causality(leaks=leaks), too_good(found["validation"]["final"].word_perplexity or 0, leaks=leaks)],
    }  # fmt: skip
    return LanguageRunRecord.model_validate(values)


def causality(*, leaks: bool) -> AuditResult:
    """The verdict on the final head."""
    details = {"reach_tokens": 51, "theoretical_reach_tokens": 51} if leaks else {}
    summary = "LEAKS: the prediction at position 12 reads token 63, 51 ahead" if leaks else "bit-equal"
    return graded("causality.final", summary, 51.0 if leaks else 0.0, 0.0, failed=leaks, **details)


def too_good(perplexity: float, *, leaks: bool) -> AuditResult:
    """The alarm, or none."""
    return graded("perplexity.too-good", "", perplexity, 15.0, failed=leaks)


def exits_record(record: LanguageRunRecord, *, chosen: bool = True) -> ExitsRecord:
    """What `recurra exits --keep` might have kept of a run: the first exit twice as fast, the second half again."""
    full = record.metrics["test"].final.loss

    def leaving(label: str, loss: float, taken: dict[int, int], speed: float) -> EarlyExitRecord:
        timed = [TimedEarlyExit(batch_size=size, full_ms=speed * 10.0, exits_ms=10.0) for size in (1, 32)]
        return EarlyExitRecord(label=label, loss=loss, taken=taken, timed=timed)

    fixed = [leaving("after loop 1", full + 0.2, {1: 100}, 2.0), leaving("after loop 2", full + 0.1, {2: 100}, 1.5)]
    best = leaving("confidence 0.8", full + 0.15, {1: 60, 3: 40}, 1.75) if chosen else None
    return kept_exits(record, fixed, best, full_loss=full)


def kept_exits(
    record: AnyRecord, fixed: list[EarlyExitRecord], chosen: EarlyExitRecord | None = None, **full: float
) -> ExitsRecord:
    """The exits of a run of either task."""
    how = {"num_recurrences": 3, "split": "test", "chosen_on": "validation", "asked": "what was asked", **full}
    found = {"fixed": fixed, "chosen": chosen, "run_id": record.run_id, "environment": record.environment}
    return ExitsRecord.model_validate({**how, **found})
