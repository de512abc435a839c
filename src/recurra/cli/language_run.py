"""What `recurra train` and `evaluate` print of a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recurra.cli.audit import present_failed
from recurra.cli.output import print_json, print_lines, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recurra.core.language_record import LanguageMetricsRecord, LanguageRunRecord
    from recurra.evaluation.cache_policies import PolicyCost
    from recurra.evaluation.positions import PositionLoss
    from recurra.study.language_evaluate import LanguageEvaluation

CACHE_HEADINGS = ["Cache", "Serves", "KiB a token", "Loss", "Above exact"]
POSITION_HEADINGS = ["Head", "First", "Middle", "Last", "All but the last"]
HEADINGS = ["Text", "Head", "Loss", "Perplexity a token", "a word", "Bits a byte"]


def present_training(record: LanguageRunRecord, output: str, *, as_json: bool) -> None:
    """Prints what a training gave; exits with 3 if an audit failed.

    Raises:
        typer.Exit: If one failed.
    """
    if as_json:
        print_json({"output": output, **record.model_dump(mode="json")})
    else:
        rows = [row for split, metrics in record.metrics.items() for row in head_rows(split, metrics)]
        print_table(f"{record.label}: {record.run_id}", HEADINGS, rows, left=("Head",))
        audits = [[audit.name, audit.status, audit.summary] for audit in record.audits]
        print_table("audits", ["Audit", "State", "Finding"], audits, left=("State", "Finding"))
        print_lines([f"run: {output}", f"measure it: recurra evaluate {output} --stride {record.data.context // 2}"])
    present_failed([audit.name for audit in record.failed_audits()])


def present_evaluation(found: LanguageEvaluation, *, as_json: bool) -> None:
    """Prints what an evaluation measured."""
    if as_json:
        print_json(found.plain())
        return
    metrics = found.metrics
    print_table(f"{found.label}: {found.run_id}", HEADINGS, head_rows(found.source, metrics), left=("Head",))
    cut = "blocks" if metrics.stride == metrics.context else f"windows with stride {metrics.stride}"
    lines = [
        f"{metrics.tokens:,} tokens, {metrics.words:,} words, {metrics.bytes:,} bytes; {cut} of {metrics.context} "
        f"tokens, computed in {found.precision}"
    ]
    if not found.lossless:
        lines.append("the tokenizer loses part of a text: there is no figure by word or byte")
    if found.recorded is not None:
        lines.append(f"loss of the final head in the record: {found.recorded.final.loss:.4f}")
    if found.positions is not None:
        print_table(
            f"{found.label}: loss by position", POSITION_HEADINGS, position_rows(found.positions), left=("Head",)
        )
        lines.append("every position: --json")
    if found.caches is not None:
        print_table(
            "caches in decoding, FP32, blocks", CACHE_HEADINGS, cache_rows(found.caches), left=("Cache", "Serves")
        )
    print_lines(lines)


def position_rows(positions: Mapping[str, PositionLoss]) -> list[list[str]]:
    """A row a head: nats a token at the first, the middle and the last position, and at all but the last."""
    rows = []
    for name, found in positions.items():
        last = len(found.loss) - 1
        places = [found.loss[0], found.loss[last // 2], found.loss[last], found.mean(slice(0, last))]
        rows.append([name, *("–" if loss is None else f"{loss:.4f}" for loss in places)])
    return rows


def cache_rows(caches: Sequence[PolicyCost]) -> list[list[str]]:
    """A row a cache policy: memory a token, loss, and what that is above the exact one."""
    exact = caches[0]
    return [
        [
            cost.policy,
            "each its own" if cost.serving is None else f"loop {cost.serving} the later ones",
            f"{cost.bytes_per_token / 1024:.2f}",
            f"{cost.loss:.4f}",
            f"{100 * (cost.loss / exact.loss - 1):+.2f} %",
        ]
        for cost in caches
    ]


def head_rows(source: str, metrics: LanguageMetricsRecord) -> list[list[str]]:
    """A row a head: loss in nats a token, perplexities, bits a byte."""
    return [
        [
            source,
            name,
            f"{head.loss:.4f}",
            _perplexity(head.token_perplexity),
            _perplexity(head.word_perplexity),
            "–" if head.bits_per_byte is None else f"{head.bits_per_byte:.3f}",
        ]
        for name, head in metrics.heads.items()
    ]


def _perplexity(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if value >= 1e5 else f"{value:.2f}"
