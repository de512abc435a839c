"""Whether rows that also stand in the training rows decide a comparison: its verdict with and without them.

The verdict is which models are supported to be better than which. What scores highest among models without a supported
difference is chance and no part of it; if that changes, it is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from recurra.evaluation.audits.grading import kept_rows
from recurra.evaluation.audits.registry import meaning
from recurra.report.compare import ScoredModel, compare_models, value_of
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.measures import Measure
from recurra.tasks.summary import AuditLine, ModelSummary, PairTest

Mask = npt.NDArray[np.bool_]


def judge_leaks(
    lines: Sequence[AuditLine],
    runs: Sequence[LoadedRun],
    scored: Mapping[str, ScoredModel],
    tests: Sequence[PairTest],
    measure: Measure,
) -> list[AuditLine]:
    """Fails the notes on rows without which the verdict of a table is another one.

    Args:
        lines: What the audits found.
        runs: The runs of the table.
        scored: Its models on the split that they are compared on.
        tests: The tests between them, on all rows of it.
        measure: What they are compared by.

    Returns:
        The same lines; those on rows of that split say what the verdict is without them. Unchanged where the
        predictions are not on disk, or there is nothing to compare.
    """
    known = [item for model in scored.values() for item in model.correct]
    rows = next((len(item.correct) for item in known if item is not None), 0)
    split = next(iter(scored.values())).split if scored else ""
    if (
        not measure.paired_by_rows
        or len(scored) < 2
        or any(item is None or len(item.correct) != rows for item in known)
    ):
        return list(lines)
    found: dict[str, Mask] = {}
    for run in runs:
        for audit in run.record.audits:
            if audit.status in ("note", "failed") and (mask := kept_rows(audit, rows)) is not None:
                found.setdefault(audit.name, mask)
    return [
        _judge(line, scored, tests, measure, ~found[line.name])
        if line.status == "note" and line.split == split and line.name in found
        else line
        for line in lines
    ]


def mark_failed(
    models: Sequence[ModelSummary], before: Sequence[AuditLine], after: Sequence[AuditLine]
) -> list[ModelSummary]:
    """The models, which carry what failed in their names' rows, with the lines that `judge_leaks` made fail."""
    new = [line for old, line in zip(before, after, strict=True) if old.status != line.status]
    if not new:
        return list(models)
    names, groups = [line.name for line in new], [line.group for line in new]
    return [
        replace(
            model,
            failed_audits=list(dict.fromkeys([*model.failed_audits, *names])),
            failed_groups=list(dict.fromkeys([*model.failed_groups, *groups])),
        )
        for model in models
    ]


def _judge(
    line: AuditLine, scored: Mapping[str, ScoredModel], tests: Sequence[PairTest], measure: Measure, rest: Mask
) -> AuditLine:
    if not rest.any():
        return line
    without = {label: _only_rows(model, rest, measure) for label, model in scored.items()}
    before, after = (_supported(each, measure) for each in (tests, compare_models(without, measure)))
    said = [f"{ahead} is no longer supported to be better than {behind}" for ahead, behind in sorted(before - after)]
    said += [f"{ahead} is supported to be better than {behind}" for ahead, behind in sorted(after - before)]
    if said:
        summary = f"{line.summary}; without these rows the verdict changes: {'; '.join(said)}"
        return replace(line, status="failed", summary=summary, meaning=meaning(line.name))
    best = [
        max(models, key=lambda label: measure.merit(float(np.mean(models[label].values))))
        for models in (scored, without)
    ]
    other = (
        f" ({best[1]} instead of {best[0]} scores highest, by no supported difference)" if best[0] != best[1] else ""
    )
    return replace(line, summary=f"{line.summary}; without these rows the verdict is the same{other}")


def _only_rows(model: ScoredModel, rows: Mask, measure: Measure) -> ScoredModel:
    correct = [item.only(rows) for item in model.correct if item is not None]
    values = tuple(value_of(item, measure) for item in correct)
    return replace(model, correct=tuple(correct), values=values, every_value=values)


def _supported(tests: Sequence[PairTest], measure: Measure) -> set[tuple[str, str]]:
    """Pairs of a model and one that it is supported to be better than."""
    return {
        (test.first, test.second) if measure.merit(test.gap) > 0 else (test.second, test.first)
        for test in tests
        if test.supported
    }
