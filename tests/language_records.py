"""Records of language models made up for tests: no training, figures that can be computed in the head."""

from __future__ import annotations

import math
from typing import Any

from recurra.core.exits_record import EarlyExitRecord, ExitsRecord, TimedEarlyExit
from recurra.core.record import (
    AnyRecord,
    AuditResult,
    CodeRecord,
    EnvironmentRecord,
    HeadRecord,
    LanguageDataRecord,
    LanguageEpochRecord,
    LanguageMetricsRecord,
    LanguageRunRecord,
    LanguageSplitRecord,
    LanguageTrainingRecord,
    ModelRecord,
)

TOKENS, WORDS, BYTES = 1200, 1000, 5000
HEADS = ("exit-1", "exit-2", "final")


def head(loss: float) -> HeadRecord:
    """Figures that follow from nats a token."""
    nats = loss * TOKENS
    return HeadRecord(
        loss=loss,
        token_perplexity=math.exp(loss),
        word_perplexity=math.exp(nats / WORDS),
        bits_per_byte=nats / math.log(2) / BYTES,
    )


def language_record(
    *, preset: str = "crt-tiny", leaks: bool = False, loss: float = 4.0, seed: int = 0, epochs: int = 2, **config: Any
) -> LanguageRunRecord:
    """A record; the exits are a little worse than the final head, validation a little better than test."""
    losses = {name: loss + 0.1 * (len(HEADS) - 1 - place) for place, name in enumerate(HEADS)}
    found = {split: {name: head(value - less) for name, value in losses.items()} for split, less in SPLITS.items()}
    metrics = {
        split: LanguageMetricsRecord(tokens=TOKENS, words=WORDS, bytes=BYTES, context=128, stride=128, heads=heads)
        for split, heads in found.items()
    }
    history = [
        LanguageEpochRecord(
            epoch=epoch, train_loss=loss + 2 / epoch, validation_loss=loss + 1 / epoch,
            validation_heads={name: value + 1 / epoch for name, value in losses.items()},
            learning_rate=1e-3, wall_s=9.0,
        )
        for epoch in range(1, epochs + 1)
    ]  # fmt: skip
    text = LanguageSplitRecord(fingerprint="f" * 16, texts=10, words=WORDS, bytes=BYTES, tokens=TOKENS)
    settings = {"model": preset, "seed": seed, **config}
    return LanguageRunRecord(
        run_id=f"wikitext-2-v1-packed-128-{preset}-tuned-s{seed}-{len(str(settings)):08}",
        config=settings,
        config_hash=f"{preset}-{seed}",
        seed=seed,
        created="2026-11-20T12:00:00+00:00",
        wall_s=60.0,
        code=CodeRecord(version="0.1.0"),
        environment=EnvironmentRecord(python="3.11", packages={}, platform="", cpu="", cores=2, threads=1),
        data=LanguageDataRecord(
            name="wikitext-2-v1", unit="line", mode="packed", context=128, fingerprint="d" * 16,
            selection_split="validation", reported_splits=list(SPLITS), splits=dict.fromkeys(("train", *SPLITS), text),
            tokenizer={"kind": "byte-level BPE", "vocab_size": 8192, "lossless": True},
        ),
        model=ModelRecord(
            preset=preset, kind="transformer", parameters=1_200_000, embedding_parameters=600_000,
            non_embedding_parameters=600_000, flops_per_token=1e7, file_size_bytes=4_800_000,
        ),
        training=LanguageTrainingRecord(
            protocol="tuned", epochs=epochs, steps=100 * epochs, best_epoch=epochs, wall_s=50.0, tokens_per_s=2000.0,
            peak_memory_mib=900.0, history=history,
        ),
        metrics=metrics,
        audits=[causality(leaks=leaks), too_good(metrics["validation"].final.word_perplexity or 0.0, leaks=leaks)],
    )  # fmt: skip


SPLITS = {"validation": 0.05, "test": 0.0}


def causality(*, leaks: bool) -> AuditResult:
    """The verdict on the final head."""
    if not leaks:
        return AuditResult(name="causality.final", status="passed", summary="bit-equal", value=0.0, threshold=0.0)
    details = {"reach_tokens": 51, "theoretical_reach_tokens": 51}
    summary = "LEAKS: the prediction at position 12 reads token 63, 51 ahead"
    return AuditResult(
        name="causality.final", status="failed", summary=summary, value=51.0, threshold=0.0, details=details
    )


def too_good(perplexity: float, *, leaks: bool) -> AuditResult:
    """The alarm, or none."""
    status = "failed" if leaks else "passed"
    return AuditResult(name="perplexity.too-good", status=status, summary="", value=perplexity, threshold=15.0)


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
    return ExitsRecord(
        run_id=record.run_id,
        num_recurrences=3,
        split="test",
        chosen_on="validation",
        asked="what was asked",
        fixed=fixed,
        chosen=chosen,
        environment=record.environment,
        **full,
    )
