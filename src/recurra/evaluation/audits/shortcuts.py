"""Shortcut audit: can the label be guessed without reading? And are the labels themselves in order?

Three measures:

``shortcuts.format.<split>``  A classifier that sees the format alone (length, punctuation, digits, spacing, case) is
    trained on ``train`` and measured on the split. Real sentiment or topic leaves weak traces in format; a strong one
    means that positives and negatives came by different ways (another source, another cut), and a model may have
    learned that; or the form is part of the signal, as exclamation marks are in spam. Judged by balanced accuracy,
    which label proportions cannot flatter: a note if it exceeds chance (1 / classes present) by more than 0.15 even at
    the lower end of its 95 % interval, a failure where the label must not depend on the form
    (`recurra.evaluation.audits.grading`). What length alone reaches stands beside it: where it is most of it,
    rewriting the texts cannot help.
``shortcuts.labels.<split>``  Label proportions of the split against those of ``train``: total variation distance, the
    share of rows that would need another label. Fails above 0.20, beyond what chance explains (chi-squared, p < 0.001).
``shortcuts.conflicts``  Rows of ``train`` and the reported splits whose text stands there with another label too: no
    model can be right on both. Fails above 1 % of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from recurra.core.configuration import derive_seed
from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset, TextSplit

TRAIN_ROWS_CAP = 20_000
MIN_TRAIN_ROWS = 100
MIN_ROWS_A_CLASS = 20

_PUNCTUATION = ".,!?;:'\"`()[]-/&$%*#@"
FEATURE_NAMES = (
    "characters",
    "words",
    "characters_a_word",
    "longest_word",
    "digits",
    "upper_case_share",
    "non_ascii",
    "double_spaces",
    "line_breaks",
    "leading_space",
    "trailing_space",
    "ends_with_letter_or_digit",
    *(f"count_{mark}" for mark in _PUNCTUATION),
)
LENGTH_FEATURES = ("characters", "words")


@dataclass(frozen=True, eq=False)
class FormatProbe:
    """The classifier, and one like it that knows the length alone: the one trait that no rewriting removes."""

    whole: HistGradientBoostingClassifier
    length: HistGradientBoostingClassifier


_LENGTH_COLUMNS = [FEATURE_NAMES.index(name) for name in LENGTH_FEATURES]


def fit_probe(train: TextSplit, seed: int) -> tuple[FormatProbe | None, str]:
    """Fits the probe on training rows, at most 20,000."""
    counts = np.unique(train.labels, return_counts=True)[1]
    if len(train) < MIN_TRAIN_ROWS or len(counts) < 2 or counts.min() < MIN_ROWS_A_CLASS:
        smallest = int(counts.min()) if len(counts) else 0
        return None, (
            f"train has {len(train)} rows, {len(counts)} labels, the rarest {smallest} times; "
            f"needed are {MIN_TRAIN_ROWS} rows, 2 labels, each {MIN_ROWS_A_CLASS} times"
        )
    rng = np.random.default_rng(derive_seed(seed, "shortcuts"))
    rows = np.sort(rng.permutation(len(train))[:TRAIN_ROWS_CAP])
    features, labels = format_features([train.texts[row] for row in rows.tolist()]), train.labels[rows]
    with _one_thread():
        whole = _classifier(seed).fit(features, labels)
        # Two features are learned in a few steps.
        length = _classifier(seed, steps=20, learning_rate=0.3).fit(features[:, _LENGTH_COLUMNS], labels)
    return FormatProbe(whole, length), ""


def _one_thread() -> threadpool_limits:
    """On so few features several threads gain little, and where other work has the cores they wait by spinning."""
    return threadpool_limits(1, user_api="openmp")


def _classifier(seed: int, *, steps: int = 100, learning_rate: float = 0.1) -> HistGradientBoostingClassifier:
    # Balanced weights, because balanced accuracy is what is judged; small trees, because the features are few.
    return HistGradientBoostingClassifier(
        max_iter=steps,
        max_leaf_nodes=15,
        learning_rate=learning_rate,
        min_samples_leaf=20,
        class_weight="balanced",
        early_stopping=False,
        random_state=derive_seed(seed, "shortcuts", "probe"),
    )


def format_features(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Measures the format of texts, as the model sees them, and none of their words."""
    rows = [_format_of(text) for text in texts]
    return np.asarray(rows, dtype=np.float64).reshape(len(texts), len(FEATURE_NAMES))


def _format_of(text: str) -> list[float]:
    words = text.split()
    characters = len(text)
    return [
        characters,
        len(words),
        characters / max(len(words), 1),
        max(map(len, words), default=0),
        sum(map(str.isdigit, text)),
        sum(map(str.isupper, text)) / max(characters, 1),
        0 if text.isascii() else sum(character > "\x7f" for character in text),
        text.count("  "),
        text.count("\n"),
        text[:1].isspace(),
        text[-1:].isspace(),
        text[-1:].isalnum(),
        *(text.count(mark) for mark in _PUNCTUATION),
    ]


def mean_recall(
    labels: npt.NDArray[Any], predicted: npt.NDArray[Any], present: npt.NDArray[Any], counts: npt.NDArray[Any]
) -> tuple[float, float]:
    """Mean recall over classes, and half the width of its 95 % interval (recalls are independent binomials)."""
    right = np.asarray([(predicted[labels == label] == label).sum() for label in present])
    # Agresti and Coull's two added successes and failures keep the width honest for recalls near 0 and 1.
    smoothed = (right + 2) / (counts + 4)
    variance = (smoothed * (1 - smoothed) / (counts + 4)).sum() / len(present) ** 2
    return float((right / counts).mean()), float(stats.norm.ppf(0.975) * np.sqrt(variance))


FORMAT_MARGIN = 0.15
LABEL_DISTANCE_THRESHOLD = 0.20
LABEL_P_VALUE = 0.001
LEAST_EXPECTED = 5
CONFLICT_THRESHOLD = 0.01

_EXAMPLES = 5
_EXAMPLE_CHARACTERS = 200


def audit_shortcuts(dataset: TextDataset, *, seed: int = 0) -> list[AuditResult]:
    """Audits format shortcuts and labels of every reported split."""
    train = dataset.splits["train"]
    probe, reason = fit_probe(train, seed)
    results = []
    for name in dataset.reported_splits:
        split = dataset.splits[name]
        results.append(_audit_format(probe, reason, train, split, name))
        results.append(_audit_labels(train, split, name, dataset.label_names))
    results.append(_audit_conflicts(dataset))
    return results


def _audit_format(probe: FormatProbe | None, reason: str, train: TextSplit, split: TextSplit, name: str) -> AuditResult:
    audit = f"shortcuts.format.{name}"
    if probe is None:
        return AuditResult.skipped(audit, reason)
    present, counts = np.unique(split.labels, return_counts=True)
    if len(present) < 2 or counts.min() < MIN_ROWS_A_CLASS:
        smallest = int(counts.min()) if len(counts) else 0
        needed = f"needed are 2 labels, each {MIN_ROWS_A_CLASS} times"
        return AuditResult.skipped(audit, f"{name} has {len(present)} labels, the rarest {smallest} times; {needed}")
    features = format_features(split.texts)
    with _one_thread():
        predicted, by_length = probe.whole.predict(features), probe.length.predict(features[:, _LENGTH_COLUMNS])
    balanced, half = mean_recall(split.labels, predicted, present, counts)
    length_alone, _ = mean_recall(split.labels, by_length, present, counts)
    majority = np.bincount(train.labels).argmax()
    chance = 1 / len(present)
    threshold = chance + FORMAT_MARGIN
    accuracy = float((predicted == split.labels).mean())
    majority_accuracy = float((split.labels == majority).mean())
    return AuditResult(
        name=audit,
        status="note" if balanced - half > threshold else "passed",
        summary=(
            f"the form alone reaches balanced accuracy {balanced:.3f} ± {half:.3f} (chance {chance:.3f}, a note above "
            f"{threshold:.3f}), length alone {length_alone:.3f}; it is right on {accuracy:.3f} of the rows, always the "
            f"most frequent label on {majority_accuracy:.3f}"
        ),
        value=balanced,
        threshold=threshold,
        details={
            "rows": len(split),
            "interval": [max(0.0, balanced - half), min(1.0, balanced + half)],
            "chance": chance,
            "length_alone": length_alone,
            "accuracy": accuracy,
            "majority_accuracy": majority_accuracy,
            "train_rows": min(len(train), TRAIN_ROWS_CAP),
            "features": list(FEATURE_NAMES),
        },
    )


def _audit_labels(train: TextSplit, split: TextSplit, name: str, label_names: Sequence[str]) -> AuditResult:
    audit = f"shortcuts.labels.{name}"
    if min(len(train), len(split)) < MIN_ROWS_A_CLASS:
        why = f"{len(train)} rows in train, {len(split)} in {name}; {MIN_ROWS_A_CLASS} are needed"
        return AuditResult.skipped(audit, why)
    counts = np.stack([np.bincount(part.labels, minlength=len(label_names)) for part in (train, split)])
    shares = counts / counts.sum(axis=1, keepdims=True)
    # The test holds where five rows of a label are expected (Cochran 1954): rarer ones are judged as one.
    rare = counts.sum(axis=0) * counts.sum(axis=1).min() / counts.sum() < LEAST_EXPECTED
    if rare.sum() > 1:
        counts = np.column_stack([counts[:, ~rare], counts[:, rare].sum(axis=1)])
    judged = counts / counts.sum(axis=1, keepdims=True)
    distance = float(np.abs(judged[0] - judged[1]).sum() / 2)
    occurring = counts[:, counts.sum(axis=0) > 0]
    p_value = float(stats.chi2_contingency(occurring).pvalue) if occurring.shape[1] > 1 else 1.0
    failed = distance > LABEL_DISTANCE_THRESHOLD and p_value < LABEL_P_VALUE
    named = [
        {str(label): round(float(share), 4) for label, share in zip(label_names, row, strict=True)} for row in shares
    ]
    return AuditResult(
        name=audit,
        status="failed" if failed else "passed",
        summary=(
            f"label proportions differ from train's by {distance:.3f} (total variation, p = {p_value:.2g}); "
            f"allowed: {LABEL_DISTANCE_THRESHOLD:.2f}"
        ),
        value=distance,
        threshold=LABEL_DISTANCE_THRESHOLD,
        details={"train": named[0], name: named[1], "p_value": p_value},
    )


def _audit_conflicts(dataset: TextDataset) -> AuditResult:
    labels_of: dict[str, set[int]] = {}
    rows = 0
    names = ["train", *(name for name in dataset.reported_splits if name != "train")]
    for name in names:
        split = dataset.splits[name]
        rows += len(split)
        for text, label in zip(split.texts, split.labels.tolist(), strict=True):
            labels_of.setdefault(text, set()).add(label)
    if rows == 0:
        return AuditResult.skipped("shortcuts.conflicts", "there are no rows")
    by_split = {name: sum(len(labels_of[text]) > 1 for text in dataset.splits[name].texts) for name in names}
    conflicting = sum(by_split.values())
    texts = [text for text, labels in labels_of.items() if len(labels) > 1]
    value = conflicting / rows
    return AuditResult(
        name="shortcuts.conflicts",
        status="failed" if value > CONFLICT_THRESHOLD else "passed",
        summary=(
            f"{value:.2%} of rows ({conflicting:,} of {rows:,}) have a text that also stands with another label; "
            f"allowed: {CONFLICT_THRESHOLD:.0%}"
        ),
        value=value,
        threshold=CONFLICT_THRESHOLD,
        details={
            "rows": conflicting,
            "rows_judged": rows,
            "texts": len(texts),
            "rows_by_split": by_split,
            "examples": [
                {
                    "text": text[:_EXAMPLE_CHARACTERS],
                    "labels": [dataset.label_names[i] for i in sorted(labels_of[text])],
                }
                for text in texts[:_EXAMPLES]
            ],
        },
    )
