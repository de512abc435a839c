"""Grades findings of the data audits by their effect on a model's figures: ``passed``, ``note`` or ``failed``.

**Leakage**, and rows that only a teacher learned: the audits store which rows of a split they found. A model's share of
right rows on the split is compared with its share without those rows. The finding fails if the share without them lies
outside the 95 % interval (Wilson) of the share on all rows, and is a note otherwise. If fewer than 20 rows, or less
than a tenth of the split, are left without them, the shares cannot be compared: then the finding fails if the rows are
more than a tenth of the split. A finding whose effect was not measured stays failed. `recurra.report.statistics` says
whether a comparison's verdict changes without the rows.

**Form**: the accuracy of a classifier that only sees the form is compared with the accuracy of a model. The finding is
a note, and fails if the label must not depend on the form (``form_must_not_predict``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset
from recurra.evaluation.significance import wilson_interval

LEAST_ROWS = 20
LEAST_SHARE = 0.1
# If too few rows are left without the found ones, more than this share of found rows fails the audit.
HARD_SHARE = 0.1
# Rows on which the linear control is fitted in seconds.
MOST_CONTROL_ROWS = 50_000

_FORM = "shortcuts.format."
# Keys of an audit's details: the rows that were found, and their effect on a model's figures.
ROWS, _EFFECT = "row_bits", "effect"

Mask = npt.NDArray[np.bool_]


def keep_rows(rows: Mask) -> dict[str, str]:
    """The rows that were found as `AuditResult.details` hold them: one bit for each row of the split, as hex."""
    return {ROWS: np.packbits(rows).tobytes().hex()}


def kept_rows(audit: AuditResult, count: int) -> Mask | None:
    """Mask of the rows that an audit found in a split of ``count`` rows; none if it has none for this many rows."""
    bits = audit.details.get(ROWS)
    try:
        packed = bytes.fromhex(bits) if isinstance(bits, str) else b""
    except ValueError:
        return None
    if not packed or len(packed) != (count + 7) // 8:
        return None
    return np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=count).astype(bool)


def effect_of(audit: AuditResult) -> dict[str, Any]:
    """The effect of a finding on a model's figures; empty if it was not measured, or concerns the data alone."""
    effect = audit.details.get(_EFFECT)
    return effect if isinstance(effect, dict) else {}


def grade(
    audits: Sequence[AuditResult], right: Mapping[str, Mask], who: str, *, form_must_not_predict: bool = False
) -> list[AuditResult]:
    """Grades findings by a model's predictions."""
    graded = []
    for audit in audits:
        split = next((name for name in right if audit.name.endswith(f".{name}")), None)
        if split is not None and audit.status == "failed" and (rows := kept_rows(audit, len(right[split]))) is not None:
            graded.append(_leak(audit, right[split], rows, who))
        elif audit.name.startswith(_FORM) and audit.status == "note":
            judged = audit if split is None else _form(audit, float(right[split].mean()), who)
            graded.append(judged.model_copy(update={"status": "failed"}) if form_must_not_predict else judged)
        else:
            graded.append(audit)
    return graded


def needs_predictions(audits: Sequence[AuditResult]) -> bool:
    """Whether a model's predictions can grade any of these findings."""
    return any(
        (audit.status == "failed" and ROWS in audit.details)
        or (audit.status == "note" and audit.name.startswith(_FORM) and "folds" not in audit.details)
        for audit in audits
    )


def control_right(dataset: TextDataset) -> dict[str, Mask]:
    """Whether the linear control, fitted on the training rows, is right on each row of the reported splits."""
    from recurra.models.controls.fitting import fit_linear

    train = dataset.splits["train"]
    if len(train) > MOST_CONTROL_ROWS:
        return {}
    control = fit_linear(train.texts, train.labels, num_labels=len(dataset.label_names))
    right = {}
    for name in dataset.reported_splits:
        split = dataset.splits[name]
        logits = control.logits(split.texts)
        multi_label = split.labels.ndim == 2
        is_right = (logits > 0) == split.labels if multi_label else logits.argmax(axis=1) == split.labels
        right[name] = np.asarray(is_right.all(axis=1) if multi_label else is_right, dtype=bool)
    return right


def _leak(audit: AuditResult, right: Mask, rows: Mask, who: str) -> AuditResult:
    total, without = len(rows), int((~rows).sum())
    share = float(right.mean())
    low, high = wilson_interval(int(right.sum()), total)
    effect: dict[str, Any] = {"who": who, "share_right": share, "interval": [low, high], "rows_without": without}
    if without < max(LEAST_ROWS, LEAST_SHARE * total):
        failed = rows.mean() > HARD_SHARE
        sentence = f"only {without:,} of {total:,} rows have no such copy, too few to judge by"
    else:
        rest = float(right[~rows].mean())
        failed = not low <= rest <= high
        effect |= {"share_right_without": rest, "difference": rest - share}
        sentence = (
            f"without them {who} is right on {rest:.3f} of {without:,} rows, with them on {share:.3f} of {total:,} "
            f"(95 % interval {low:.3f} to {high:.3f}): {'outside' if failed else 'inside'} the interval"
        )
    return _with_effect(audit, effect, sentence).model_copy(update={"status": "failed" if failed else "note"})


def _form(audit: AuditResult, share: float, who: str) -> AuditResult:
    if "label" in audit.details or "folds" in audit.details:
        # The finding is about one label of several, while the model's figure is about all, or about other rows.
        return audit
    form_accuracy, majority_accuracy = float(audit.details["accuracy"]), float(audit.details["majority_accuracy"])
    effect: dict[str, Any] = {"who": who, "share_right": share}
    sentence = f"{who} is right on {share:.3f}"
    if share > majority_accuracy:
        effect["share_of_gain"] = (form_accuracy - majority_accuracy) / (share - majority_accuracy)
        sentence += (
            f", so the form alone gives {max(0.0, effect['share_of_gain']):.0%} of what it gains over that label"
        )
    return _with_effect(audit, effect, sentence)


def _with_effect(audit: AuditResult, effect: dict[str, Any], sentence: str) -> AuditResult:
    details = {**audit.details, _EFFECT: effect}
    return audit.model_copy(update={"summary": f"{audit.summary}; {sentence}", "details": details})
