"""Shortcut audit: can the label be guessed without reading? And are the labels themselves in order?

Four measures; where a split has too few rows for the first two, they are made in five folds of a small ``train``:

``shortcuts.format.<split>``  A classifier that sees the format alone (length, punctuation, digits, spacing, case) is
    trained on ``train`` and measured on the split. Real sentiment or topic leaves weak traces in format; a strong one
    means that positives and negatives came by different ways (another source, another cut), and a model may have
    learned that; or the form is part of the signal, as exclamation marks are in spam. Judged by balanced accuracy,
    which label proportions cannot flatter: a note if it exceeds chance (1 / classes present) by more than 0.15 even at
    the lower end of its 95 % interval, a failure where the label must not depend on the form
    (`recurra.evaluation.audits.grading`). What length alone reaches stands beside it: where it is most of it,
    rewriting the texts cannot help.
``shortcuts.words.<split>``  The word that alone tells a label best, by what is sure of its precision, is chosen on
    ``train`` among those of at least 20 rows and a third of the label's, and measured on the split. A note, never a
    failure, if of the rows with it surely more than 0.9 have the label (lower end of the 95 % interval), it stands in a
    third of the label's rows and is nine times as common there as in others, and no more than three quarters of the
    rows have the label: a signature or a marker of the source, or a word that is part of the task.
``shortcuts.labels.<split>``  Label proportions of the split against those of ``train``: total variation distance, the
    share of rows that would need another label. Fails above 0.20, beyond what chance explains (chi-squared, p < 0.001).
``shortcuts.conflicts``  Rows of ``train`` and the reported splits whose text stands there with another label too: no
    model can be right on both. Fails above 1 % of rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
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
# A split with too few rows is judged within train, of so many rows at most: there every part of it by the others.
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
LENGTH_FEATURES = ("characters", "words")


@dataclass(frozen=True, eq=False)
class FormatProbe:
    """The classifier, and one like it that knows the length alone: the one trait that no rewriting removes."""

    whole: HistGradientBoostingClassifier
    length: HistGradientBoostingClassifier


_LENGTH_COLUMNS = [FEATURE_NAMES.index(name) for name in LENGTH_FEATURES]


# Enough for two features, and in folds for all.
_FEW_STEPS: dict[str, Any] = {"steps": 20, "learning_rate": 0.3}


def fit_probe(train: TextSplit, seed: int, *, in_folds: bool = False) -> FormatProbe:
    """Fits the probe on training rows."""
    features = format_features(train.texts)
    with _one_thread():
        whole = _classifier(seed, **(_FEW_STEPS if in_folds else {})).fit(features, train.labels)
        length = _classifier(seed, **_FEW_STEPS).fit(features[:, _LENGTH_COLUMNS], train.labels)
    return FormatProbe(whole, length)


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
MIN_ROWS_A_WORD = 20
WORD_PRECISION, WORD_RECALL = 0.9, 1 / 3
# How many times as common a word must be in texts with the label as in others.
WORD_RATIO = 9
# A label that nearly all rows have is told by any word.
MOST_LABEL_SHARE = 0.75
LABEL_DISTANCE_THRESHOLD = 0.20
LABEL_P_VALUE = 0.001
LEAST_EXPECTED = 5
CONFLICT_THRESHOLD = 0.01

_EXAMPLES = 5
_EXAMPLE_CHARACTERS = 200


def audit_shortcuts(dataset: TextDataset, *, seed: int = 0, in_folds: bool = True) -> list[AuditResult]:
    """Audits format, words and labels of every reported split.

    Args:
        in_folds: Whether the first two are judged within train where a split is too small.
    """
    train = dataset.splits["train"]
    sample = _sample(train, seed, TRAIN_ROWS_CAP)
    fitted = cache(lambda: _Fitted.on(sample, seed))
    folded = cache(lambda: _judge_in_folds(train, seed))
    results = []
    for name in dataset.reported_splits:
        split = dataset.splits[name]
        lacking, few = _lacking("train", train, MIN_TRAIN_ROWS), _lacking(name, split)
        why = lacking or ("" if in_folds and len(train) <= MOST_FOLDED_ROWS else few)
        if why:
            results += [AuditResult.skipped(f"shortcuts.{kind}.{name}", why) for kind in ("format", "words")]
        else:
            judged = folded() if few else fitted().judge(split)
            rows = len(train) * (FOLDS - 1) // FOLDS if few else len(sample)
            majority = int(np.bincount(train.labels).argmax())
            results.append(_audit_format(judged, f"shortcuts.format.{name}", majority, rows))
            results.append(
                _audit_words(judged, f"shortcuts.words.{name}", dataset.label_names, min(rows, WORD_ROWS_CAP))
            )
        results.append(_audit_labels(train, split, name, dataset.label_names))
    results.append(_audit_conflicts(dataset))
    return results


def _lacking(name: str, split: TextSplit, least: int = 0) -> str:
    """What a split lacks to be judged; empty if it lacks nothing."""
    present, counts = np.unique(split.labels, return_counts=True)
    smallest = int(counts.min()) if len(counts) else 0
    if len(split) >= least and len(present) >= 2 and smallest >= MIN_ROWS_A_CLASS:
        return ""
    has, needed = (f"{len(split)} rows, ", f"{least} rows, ") if least else ("", "")
    return (
        f"{name} has {has}{len(present)} labels, the rarest {smallest} times; needed are {needed}2 labels, each "
        f"{MIN_ROWS_A_CLASS} times"
    )


def _sample(train: TextSplit, seed: int, most: int) -> TextSplit:
    rng = np.random.default_rng(derive_seed(seed, "shortcuts"))
    rows = np.sort(rng.permutation(len(train))[:most])
    return train if len(rows) == len(train) else train.select(rows)


@dataclass(frozen=True, eq=False)
class _Judged:
    """What the form and one word say of rows that they were not chosen on.

    Attributes:
        predicted: The label by the form, ``(rows,)``; ``by_length`` the one by length alone.
        word: The word and the label that it tells; none if no word stands in a third of the rows of any, or each fold
            chose another than the whole.
        has: Rows with the word, ``(rows,)``; in folds of those alone in which this word was chosen.
        wanted: Of the same rows those with its label.
        folds: How many parts of train were judged, each by the others; 1 if it is another split.
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
        """Where it was judged, if not on the split, for a summary."""
        return f"in {self.folds} folds of train, for the split has few rows: " if self.folds > 1 else ""


@dataclass(frozen=True, eq=False)
class _Fitted:
    probe: FormatProbe
    word: tuple[str, int] | None

    @classmethod
    def on(cls, train: TextSplit, seed: int, *, in_folds: bool = False) -> _Fitted:
        return cls(fit_probe(train, seed, in_folds=in_folds), telling_word(_sample(train, seed, WORD_ROWS_CAP)))

    def judge(self, split: TextSplit) -> _Judged:
        features = format_features(split.texts)
        with _one_thread():
            predicted = self.probe.whole.predict(features)
            by_length = self.probe.length.predict(features[:, _LENGTH_COLUMNS])
        has = wanted = np.zeros(len(split), dtype=bool)
        if self.word is not None:
            word, label = self.word
            has, wanted = rows_with(word, split.texts), split.labels == label
        return _Judged(split.labels, predicted, by_length, self.word, has, wanted)


def _judge_in_folds(train: TextSplit, seed: int) -> _Judged:
    """Every part of train by what was fitted on the others; the word of the whole where these chose it too."""
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=derive_seed(seed, "shortcuts", "folds"))
    parts = [
        _Fitted.on(train.select(learned), seed, in_folds=True).judge(train.select(judged))
        for learned, judged in folds.split(train.labels, train.labels)
    ]
    word = telling_word(train)
    chose_it = np.concatenate([np.full(len(part.labels), part.word == word) for part in parts])
    return _Judged(
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.predicted for part in parts]),
        np.concatenate([part.by_length for part in parts]),
        word if chose_it.any() else None,
        np.concatenate([part.has for part in parts])[chose_it],
        np.concatenate([part.wanted for part in parts])[chose_it],
        FOLDS,
    )


def telling_word(train: TextSplit) -> tuple[str, int] | None:
    """The word that alone tells a label best, and the label; none if no word stands in enough rows of a label."""
    numbers: dict[str, int] = {}
    sizes: list[int] = []

    def each() -> Iterator[int]:
        for text in train.texts:
            found = dict.fromkeys(_WORD.findall(text.lower()))
            sizes.append(len(found))
            for word in found:
                yield numbers.setdefault(word, len(numbers))

    columns = np.fromiter(each(), dtype=np.int64)
    labels, own, counts = np.unique(train.labels, return_inverse=True, return_counts=True)
    common = np.flatnonzero(np.bincount(columns) >= MIN_ROWS_A_WORD)
    place = np.full(len(numbers), -1)
    place[common] = np.arange(len(common))
    known = place[columns] >= 0
    cells = place[columns[known]] * len(labels) + np.repeat(own, sizes)[known]
    # Words by labels.
    hits = np.bincount(cells, minlength=len(common) * len(labels)).reshape(len(common), len(labels))
    shares = counts / len(train)
    often = (hits >= WORD_RECALL * counts) & (shares <= MOST_LABEL_SHARE)
    if not often.any():
        return None
    words, told = np.nonzero(often)
    lowest = _least_precision(hits[words, told], hits[words].sum(axis=1))
    best = (lowest - _needed_precision(shares[told])).argmax()
    return list(numbers)[common[words[best]]], int(labels[told[best]])


def rows_with(word: str, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which texts have a word, in any case, ``(texts,)``."""
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    return np.fromiter((pattern.search(text.lower()) is not None for text in texts), dtype=bool, count=len(texts))


def _least_precision(hits: npt.NDArray[Any], rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The lower end of the 95 % interval (Clopper-Pearson) of shares."""
    lowest = stats.beta.ppf(0.025, hits, rows - hits + 1)
    return np.where(hits > 0, lowest, 0.0)


def _needed_precision(share: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """What a word's precision must exceed: 0.9, and that of one that is as much commoner in texts with the label."""
    return np.maximum(WORD_PRECISION, WORD_RATIO * share / (1 + (WORD_RATIO - 1) * share))


def _audit_format(judged: _Judged, audit: str, majority: int, train_rows: int) -> AuditResult:
    present, counts = np.unique(judged.labels, return_counts=True)
    balanced, half = mean_recall(judged.labels, judged.predicted, present, counts)
    length_alone, _ = mean_recall(judged.labels, judged.by_length, present, counts)
    chance = 1 / len(present)
    threshold = chance + FORMAT_MARGIN
    accuracy = float((judged.predicted == judged.labels).mean())
    majority_accuracy = float((judged.labels == majority).mean())
    return AuditResult(
        name=audit,
        status="note" if balanced - half > threshold else "passed",
        summary=(
            f"{judged.where}the form alone reaches balanced accuracy {balanced:.3f} ± {half:.3f} (chance {chance:.3f}; "
            f"a note if surely above {threshold:.3f}), length alone {length_alone:.3f}; it is right on {accuracy:.3f} "
            f"of the rows, always the most frequent label on {majority_accuracy:.3f}"
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
            summary="no one word stands in a third of the training rows of a label that at most three quarters have",
        )
    word, label = judged.word
    hits, rows, wanted = (int(each.sum()) for each in (judged.has & judged.wanted, judged.has, judged.wanted))
    lowest = float(_least_precision(np.array([hits]), np.array([rows]))[0])
    judged_rows = len(judged.has)
    share = wanted / judged_rows
    threshold = float(_needed_precision(np.array([share]))[0])
    precision, recall = hits / max(rows, 1), hits / max(wanted, 1)
    return AuditResult(
        name=audit,
        status="note" if lowest > threshold and recall >= WORD_RECALL else "passed",
        summary=(
            f"{judged.where}of {rows:,} rows with the word '{word}' {precision:.1%} are '{label_names[label]}', "
            f"surely at least {lowest:.1%} (a note above {threshold:.1%}), of all {judged_rows:,} rows "
            f"{share:.1%}; it stands in {recall:.1%} of the rows of that label (a note from a third)"
        ),
        value=lowest,
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
