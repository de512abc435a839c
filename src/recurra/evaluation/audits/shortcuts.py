"""Shortcut audit: can the label be guessed without reading? And are the labels themselves in order?

There are four measures. If a split has too few rows for the first two, they use five folds of a small ``train``:

``shortcuts.format.<split>``  A classifier that only sees the format (length, punctuation, digits, spacing, case) is
    trained on ``train`` and measured on the split. Real sentiment or topic leaves weak traces in the format. A strong
    trace means that positives and negatives were collected differently (another source, another cut), which a model
    may have learned; or the form is part of the signal, as exclamation marks are in spam. Balanced accuracy is judged,
    which label proportions cannot flatter: a note if it exceeds chance (1 / classes present) by more than 0.15 even at
    the lower end of its 95 % interval, a failure where the label must not depend on the form
    (`recurra.evaluation.audits.grading`). The accuracy by length alone is reported beside it: where that is most of
    it, rewriting the texts cannot help.
``shortcuts.words.<split>``  The word that alone predicts a label best, by the lower bound of its precision, is chosen
    on ``train`` among words in at least 20 rows and in a third of the label's rows, and measured on the split. A note,
    never a failure, if more than 0.9 of the rows with the word have the label (lower end of the 95 % interval), the
    word is in a third of the label's rows and nine times as common there as in others, and no more than three quarters
    of the rows have the label: a signature or a marker of the source, or a word that is part of the task.
``shortcuts.labels.<split>``  Label proportions of the split against those of ``train``: total variation distance, the
    share of rows that would need another label. Fails above 0.20, beyond what chance explains (chi-squared, p < 0.001).
``shortcuts.conflicts``  Rows of ``train`` and the reported splits whose text also occurs with another label: no model
    can be right on both. Fails above 1 % of rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from recurra.core.configuration import derive_seed
from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset, TextSplit

TRAIN_ROWS_CAP, WORD_ROWS_CAP = 20_000, 5_000
MIN_TRAIN_ROWS = 100
MIN_ROWS_A_CLASS = 20
# For a split with too few rows, a train of at most this many rows is judged instead: each fold by the other folds.
MOST_FOLDED_ROWS, FOLDS = 2_000, 5

_WORD = re.compile(r"\w+")
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
# The first columns of them, which are the length alone.
_LENGTH = slice(2)
# A step fits a tree for each label; hundreds of labels get fewer steps.
MOST_TREES = 10_000
# Boosting steps that are enough for two features, and in folds for all features.
_FEW_STEPS: dict[str, Any] = {"steps": 20, "learning_rate": 0.3}
# With few features more threads gain little, and they spin where other work has the cores.
_one_thread = partial(threadpool_limits, 1, user_api="openmp")


@dataclass(frozen=True, eq=False)
class Probe:
    """What predicts labels without reading: the format, the length alone, and the word that predicts a label best.

    The length is apart because rewriting the texts cannot remove it. There is no word if none is in a third of a
    label's rows.
    """

    form: HistGradientBoostingClassifier
    length: HistGradientBoostingClassifier
    word: tuple[str, int] | None

    @classmethod
    def fit(cls, train: TextSplit, *, in_folds: bool = False) -> Probe:
        """Fits the probe on training rows."""
        features, labels = format_features(train.texts), len(np.unique(train.labels))
        with _one_thread():
            form = _classifier(labels, **(_FEW_STEPS if in_folds else {})).fit(features, train.labels)
            length = _classifier(labels, **_FEW_STEPS).fit(features[:, _LENGTH], train.labels)
        return cls(form, length, telling_word(_sample(train, WORD_ROWS_CAP)))

    def judge(self, split: TextSplit) -> _Judged:
        """Predicts rows that it was not fitted on."""
        features = format_features(split.texts)
        with _one_thread():
            predicted, by_length = self.form.predict(features), self.length.predict(features[:, _LENGTH])
        has = wanted = np.zeros(len(split), dtype=bool)
        if self.word is not None:
            word, label = self.word
            pattern = re.compile(rf"\b{re.escape(word)}\b")
            has = np.array([pattern.search(text.lower()) is not None for text in split.texts], dtype=bool)
            wanted = split.labels == label
        return _Judged(split.labels, predicted, by_length, self.word, has, wanted)


def _classifier(labels: int, *, steps: int = 100, learning_rate: float = 0.1) -> HistGradientBoostingClassifier:
    # Balanced weights, because balanced accuracy is judged; small trees, because there are few features.
    return HistGradientBoostingClassifier(
        max_iter=min(steps, max(1, MOST_TREES // labels)),
        max_leaf_nodes=15,
        learning_rate=learning_rate,
        min_samples_leaf=20,
        class_weight="balanced",
        early_stopping=False,
        random_state=derive_seed(0, "shortcuts", "probe"),
    )


def format_features(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Format features of texts as the model reads them, without their words, ``(texts, features)``."""
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


def mean_recall(labels: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> tuple[float, float]:
    """Mean recall over classes, and half the width of its 95 % interval (recalls are independent binomials)."""
    present, counts = np.unique(labels, return_counts=True)
    right = np.bincount(labels[labels == predicted], minlength=present[-1] + 1)[present]
    # Agresti and Coull's two added successes and failures keep the width honest for recalls near 0 and 1.
    smoothed = (right + 2) / (counts + 4)
    variance = (smoothed * (1 - smoothed) / (counts + 4)).sum() / len(present) ** 2
    return float((right / counts).mean()), float(stats.norm.ppf(0.975) * np.sqrt(variance))


FORMAT_MARGIN = 0.15
MIN_ROWS_A_WORD = 20
WORD_PRECISION, WORD_RECALL = 0.9, 1 / 3
# A word must be this many times as common in texts with the label as in others.
WORD_RATIO = 9
# Labels with a larger share of the rows are left out: almost any word predicts them.
MOST_LABEL_SHARE = 0.75
LABEL_DISTANCE_THRESHOLD = 0.20
LABEL_P_VALUE = 0.001
LEAST_EXPECTED = 5
CONFLICT_THRESHOLD = 0.01

_EXAMPLES = 5
_EXAMPLE_CHARACTERS = 200


def audit_shortcuts(dataset: TextDataset, *, in_folds: bool = True) -> list[AuditResult]:
    """Audits every reported split; with ``in_folds`` format and words of a small one in folds of train instead."""
    train = dataset.splits["train"]
    sample = _sample(train, TRAIN_ROWS_CAP)
    probe = cache(lambda: Probe.fit(sample))
    folded = cache(lambda: _judge_in_folds(train))
    results = []
    for name in dataset.reported_splits:
        split = dataset.splits[name]
        train_reason, split_reason = _lacking("train", train, MIN_TRAIN_ROWS), _lacking(name, split)
        reason = train_reason or ("" if in_folds and len(train) <= MOST_FOLDED_ROWS else split_reason)
        if reason:
            results += [AuditResult.skipped(f"shortcuts.{kind}.{name}", reason) for kind in ("format", "words")]
        else:
            judged = folded() if split_reason else probe().judge(split)
            rows = len(train) * (FOLDS - 1) // FOLDS if split_reason else len(sample)
            majority = int(np.bincount(train.labels).argmax())
            results.append(_audit_format(judged, f"shortcuts.format.{name}", majority, rows))
            results.append(
                _audit_words(judged, f"shortcuts.words.{name}", dataset.label_names, min(rows, WORD_ROWS_CAP))
            )
        results.append(_audit_labels(train, split, name, dataset.label_names))
    results.append(_audit_conflicts(dataset))
    return results


def _lacking(name: str, split: TextSplit, least: int = 0) -> str:
    """Why a split cannot be judged; empty if it can."""
    present, counts = np.unique(split.labels, return_counts=True)
    rarest = int(counts.min()) if len(counts) else 0
    if len(split) >= least and len(present) >= 2 and rarest >= MIN_ROWS_A_CLASS:
        return ""
    has, needed = (f"{len(split)} rows, ", f"{least} rows, ") if least else ("", "")
    return (
        f"{name} has {has}{len(present)} labels, the rarest {rarest} times; needed: {needed}2 labels, each "
        f"{MIN_ROWS_A_CLASS} times"
    )


def _sample(train: TextSplit, most: int) -> TextSplit:
    rng = np.random.default_rng(derive_seed(0, "shortcuts"))
    rows = np.sort(rng.permutation(len(train))[:most])
    return train if len(rows) == len(train) else train.select(rows)


@dataclass(frozen=True, eq=False)
class _Judged:
    """Predictions by the form and by one word for rows that they were not fitted on.

    Attributes:
        predicted: The label predicted by the form, ``(rows,)``; ``by_length`` by the length alone.
        word: The word and the label that it predicts; none if no word is in a third of any label's rows, or if every
            fold chose another word than the whole.
        has: Whether rows have the word, ``(rows,)``; in folds only rows of folds that chose this word.
        wanted: Whether the same rows have its label.
        folds: Number of folds of train that were judged, each by the others; 1 for another split.
    """

    labels: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    by_length: npt.NDArray[np.int64]
    word: tuple[str, int] | None
    has: npt.NDArray[np.bool_]
    wanted: npt.NDArray[np.bool_]
    folds: int = 1

    @property
    def where(self) -> str:
        """Says in a summary that folds were judged instead of the split; empty if not."""
        return f"in {self.folds} folds of train, for the split has few rows: " if self.folds > 1 else ""


def _judge_in_folds(train: TextSplit) -> _Judged:
    """Judges each fold of train by the others; the word is that of the whole, on folds whose training chose it too."""
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=derive_seed(0, "shortcuts", "folds"))
    parts = [
        Probe.fit(train.select(learned), in_folds=True).judge(train.select(judged))
        for learned, judged in folds.split(train.labels, train.labels)
    ]
    word = telling_word(train)
    chose_word = np.concatenate([np.full(len(part.labels), part.word == word) for part in parts])
    labels, predicted, by_length, has, wanted = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("labels", "predicted", "by_length", "has", "wanted")
    )
    chosen = word if chose_word.any() else None
    return _Judged(labels, predicted, by_length, chosen, has[chose_word], wanted[chose_word], FOLDS)


def telling_word(train: TextSplit) -> tuple[str, int] | None:
    """The word that alone predicts a label best, and the label; none if no word is in enough rows of a label."""
    number_of: dict[str, int] = {}
    sizes: list[int] = []

    def word_numbers() -> Iterator[int]:
        for text in train.texts:
            text_words = dict.fromkeys(_WORD.findall(text.lower()))
            sizes.append(len(text_words))
            for word in text_words:
                yield number_of.setdefault(word, len(number_of))

    columns = np.fromiter(word_numbers(), dtype=np.int64)
    labels, label_indices, counts = np.unique(train.labels, return_inverse=True, return_counts=True)
    common = np.flatnonzero(np.bincount(columns) >= MIN_ROWS_A_WORD)
    row_of = np.full(len(number_of), -1)
    row_of[common] = np.arange(len(common))
    is_common = row_of[columns] >= 0
    cell_indices = row_of[columns[is_common]] * len(labels) + np.repeat(label_indices, sizes)[is_common]
    # Rows with each word and label, ``(words, labels)``.
    hits = np.bincount(cell_indices, minlength=len(common) * len(labels)).reshape(len(common), len(labels))
    shares = counts / len(train)
    candidates = (hits >= WORD_RECALL * counts) & (shares <= MOST_LABEL_SHARE)
    if not candidates.any():
        return None
    words, telling_labels = np.nonzero(candidates)
    precisions = _least_precision(hits[words, telling_labels], hits[words].sum(axis=1))
    best = (precisions - _needed_precision(shares[telling_labels])).argmax()
    return list(number_of)[common[words[best]]], int(labels[telling_labels[best]])


def _least_precision(hits: npt.NDArray[Any], rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The lower end of the 95 % interval (Clopper-Pearson) of shares."""
    lowest = stats.beta.ppf(0.025, hits, rows - hits + 1)
    return np.where(hits > 0, lowest, 0.0)


def _needed_precision(share: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Precision that a word must exceed: 0.9, and that of a word `WORD_RATIO` times as common with the label."""
    return np.maximum(WORD_PRECISION, WORD_RATIO * share / (1 + (WORD_RATIO - 1) * share))


def _audit_format(judged: _Judged, audit: str, majority: int, train_rows: int) -> AuditResult:
    balanced, half = mean_recall(judged.labels, judged.predicted)
    length_alone, _ = mean_recall(judged.labels, judged.by_length)
    chance = 1 / len(np.unique(judged.labels))
    threshold = chance + FORMAT_MARGIN
    accuracy = float((judged.predicted == judged.labels).mean())
    majority_accuracy = float((judged.labels == majority).mean())
    return AuditResult(
        name=audit,
        status="note" if balanced - half > threshold else "passed",
        summary=(
            f"{judged.where}the form alone reaches balanced accuracy {balanced:.3f} ± {half:.3f} (chance {chance:.3f}; "
            f"noted if surely above {threshold:.3f}), length alone {length_alone:.3f}; it is right on {accuracy:.3f} "
            f"of the rows, always giving the most frequent label on {majority_accuracy:.3f}"
        ),
        value=balanced,
        threshold=threshold,
        details={
            "rows": len(judged.labels),
            "interval": [max(0.0, balanced - half), min(1.0, balanced + half)],
            "chance": chance,
            "length_alone": length_alone,
            "accuracy": accuracy,
            "majority_accuracy": majority_accuracy,
            "train_rows": train_rows,
            "features": list(FEATURE_NAMES),
            **({"folds": judged.folds} if judged.folds > 1 else {}),
        },
    )


def _audit_words(judged: _Judged, audit: str, label_names: Sequence[str], train_rows: int) -> AuditResult:
    if judged.word is None:
        return AuditResult(
            name=audit,
            status="passed",
            summary="no word is in a third of the training rows of a label that has at most three quarters of all rows",
        )
    word, label = judged.word
    hits, rows, label_rows = (int(mask.sum()) for mask in (judged.has & judged.wanted, judged.has, judged.wanted))
    least_precision = float(_least_precision(np.array([hits]), np.array([rows]))[0])
    judged_rows = len(judged.has)
    share = label_rows / judged_rows
    threshold = float(_needed_precision(np.array([share]))[0])
    precision, recall = hits / max(rows, 1), hits / max(label_rows, 1)
    return AuditResult(
        name=audit,
        status="note" if least_precision > threshold and recall >= WORD_RECALL else "passed",
        summary=(
            f"{judged.where}of {rows:,} rows with the word '{word}', {precision:.1%} are '{label_names[label]}', "
            f"surely at least {least_precision:.1%} (noted above {threshold:.1%}); of all {judged_rows:,} rows, "
            f"{share:.1%} are; the word is in {recall:.1%} of the rows of that label (noted from a third)"
        ),
        value=least_precision,
        threshold=threshold,
        details={
            "word": word,
            "told": label_names[label],
            "precision": precision,
            "recall": recall,
            "share": share,
            "rows_with": rows,
            "rows": judged_rows,
            "train_rows": train_rows,
            **({"folds": judged.folds} if judged.folds > 1 else {}),
        },
    )


def _audit_labels(train: TextSplit, split: TextSplit, name: str, label_names: Sequence[str]) -> AuditResult:
    audit = f"shortcuts.labels.{name}"
    if min(len(train), len(split)) < MIN_ROWS_A_CLASS:
        reason = f"{len(train)} rows in train, {len(split)} in {name}; {MIN_ROWS_A_CLASS} are needed"
        return AuditResult.skipped(audit, reason)
    counts = np.stack([np.bincount(part.labels, minlength=len(label_names)) for part in (train, split)])
    shares = counts / counts.sum(axis=1, keepdims=True)
    # The test needs five expected rows of each label (Cochran 1954), so rarer labels are merged into one.
    is_rare = counts.sum(axis=0) * counts.sum(axis=1).min() / counts.sum() < LEAST_EXPECTED
    if is_rare.sum() > 1:
        counts = np.column_stack([counts[:, ~is_rare], counts[:, is_rare].sum(axis=1)])
    merged_shares = counts / counts.sum(axis=1, keepdims=True)
    distance = float(np.abs(merged_shares[0] - merged_shares[1]).sum() / 2)
    occurring = counts[:, counts.sum(axis=0) > 0]
    p_value = float(stats.chi2_contingency(occurring).pvalue) if occurring.shape[1] > 1 else 1.0
    failed = distance > LABEL_DISTANCE_THRESHOLD and p_value < LABEL_P_VALUE
    shares_by_label = [
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
        details={"train": shares_by_label[0], name: shares_by_label[1], "p_value": p_value},
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
                    "labels": [dataset.label_names[index] for index in sorted(labels_of[text])],
                }
                for text in texts[:_EXAMPLES]
            ],
        },
    )
