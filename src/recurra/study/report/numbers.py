"""The numbers of a study as rows for other programs: plain columns, full precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from recurra.study.report.formatting import front_name
from recurra.study.report.summary import Estimate, Summary, TableSummary

Row = dict[str, Any]


def _interval(name: str, estimate: Estimate | None) -> Row:
    if estimate is None:
        return {name: None, f"{name}_sd": None, f"{name}_low": None, f"{name}_high": None, f"{name}_basis": None}
    return {
        name: estimate.mean,
        f"{name}_sd": estimate.sd,
        f"{name}_low": estimate.low,
        f"{name}_high": estimate.high,
        f"{name}_basis": estimate.basis,
    }


def results(table: TableSummary) -> Iterator[Row]:
    """One row a model and split."""
    for model in table.models:
        for split in table.reported_splits:
            score = model.scores.get(split)
            yield {
                "model": model.label,
                "kind": model.kind,
                "split": split,
                "rows": score.rows if score else None,
                "seeds": len(model.seeds),
                **_interval("accuracy", score.accuracy if score else None),
                **_interval("f1", score.f1 if score else None),
                "precision_of_positives": score.precision if score else None,
                "recall": score.recall if score else None,
                "loss_nats": score.loss if score else None,
                "parameters": model.parameters,
                "non_embedding_parameters": model.non_embedding_parameters,
                "file_size_mib": model.file_size_mib,
                "flops_per_token": model.flops_per_token,
                "accuracy_per_million_parameters": model.accuracy_per_million_parameters,
                "accuracy_per_gflop": model.accuracy_per_gflop,
                **{f"median_ms_batch_{name}": timing.median_ms for name, timing in model.latency.items()},
                **{f"p90_ms_batch_{name}": timing.p90_ms for name, timing in model.latency.items()},
                "pareto_fronts": "; ".join(front_name(front) for front in model.fronts),
                "training_wall_s": model.training_wall_s,
                "failed_audits": "; ".join(model.failed_groups),
            }


def tests(table: TableSummary) -> Iterator[Row]:
    """One row a pair of models."""
    for test in table.tests:
        yield {
            "first": test.first,
            "second": test.second,
            "split": test.split,
            "rows": test.rows,
            "gap": test.gap,
            "low": test.low,
            "high": test.high,
            "p": test.p,
            "p_holm": test.p_holm,
            "odds_ratio": test.odds_ratio,
            "only_first": sum(item.only_first for item in test.mcnemar) if test.mcnemar else None,
            "only_second": sum(item.only_second for item in test.mcnemar) if test.mcnemar else None,
            "seeds_apart": test.seeds_apart,
            "supported": test.supported,
        }


def contrasts(table: TableSummary) -> Iterator[Row]:
    """One row a contrast."""
    for line in table.contrasts:
        yield dict(vars(line))


def published(table: TableSummary) -> Iterator[Row]:
    """One row a published figure, with ours."""
    ours = {model.label: model.scores.get(table.headline_split) for model in table.models}
    for line in table.published:
        score = ours[line.model]
        yield {**vars(line), **_interval("our_accuracy", score.accuracy if score else None)}


def exports(table: TableSummary) -> Iterator[Row]:
    """One row an export of a model."""
    for line in table.exports:
        yield {
            "model": line.model,
            "format": line.format,
            "storage_precision": line.precision,
            "computed": line.computed,
            "exits": line.exits,
            "seeds": len(line.seeds),
            "weights_mib": line.weights_mib,
            "folder_mib": line.folder_mib,
            **_interval("accuracy", line.accuracy),
            "f1": line.f1,
            "gap_to_fp32": line.gap,
            "gap_half": line.gap_half,
            "largest_gap": line.largest_gap,
            "labels_changed": line.labels_changed,
            "only_export": line.only_export,
            "only_reference": line.only_reference,
            "rows": line.rows,
            "largest_logit_difference": line.largest_logit_difference,
            **{f"median_ms_batch_{batch}": value for batch, value in line.median_ms.items()},
            **{f"p90_ms_batch_{batch}": value for batch, value in line.p90_ms.items()},
            **{f"p99_ms_batch_{batch}": value for batch, value in line.p99_ms.items()},
            **{f"texts_per_s_batch_{batch}": value for batch, value in line.texts_per_s.items()},
            "peak_memory_mib": line.memory_mib,
            "published_accuracy": line.published[0].accuracy if line.published else None,
            "published_size_mib": line.published[0].size_mib if line.published else None,
            "published_ms": line.published[0].latency_ms if line.published else None,
        }


KINDS: dict[str, Callable[[TableSummary], Iterator[Row]]] = {
    "results": results,
    "tests": tests,
    "contrasts": contrasts,
    "published": published,
    "exports": exports,
}


def all_rows(summary: Summary, kind: str) -> list[Row]:
    """The rows of all tables, each with what identifies its table first."""
    return [
        {
            "table": table.title,
            "data": table.data,
            "split_protocol": table.protocol,
            "part": table.variant,
            "training": table.training,
            "precision": table.precision,
            **row,
        }
        for table in summary.tables
        for row in KINDS[kind](table)
    ]
