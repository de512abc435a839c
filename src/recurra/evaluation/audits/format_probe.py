"""A classifier that sees the format of a text alone: how far it gets is what a model may gain without reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from recurra.core.seeds import derive_seed
from recurra.data.dataset import TextSplit

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

    def predict(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Predicted labels from all of the format, and from length alone, each of shape ``(texts,)``."""
        features = format_features(texts)
        with _one_thread():
            return self.whole.predict(features), self.length.predict(features[:, _LENGTH_COLUMNS])


_LENGTH_COLUMNS = [FEATURE_NAMES.index(name) for name in LENGTH_FEATURES]


def fit_probe(train: TextSplit, seed: int) -> tuple[FormatProbe | None, str]:
    """Fits the probe on training rows, at most 20,000.

    Args:
        train: The training split.
        seed: Chooses the rows.

    Returns:
        The probe, or None and the reason why the rows are too few.
    """
    counts = np.unique(train.labels, return_counts=True)[1]
    if len(train) < MIN_TRAIN_ROWS or len(counts) < 2 or counts.min() < MIN_ROWS_A_CLASS:
        smallest = int(counts.min()) if len(counts) else 0
        return None, (
            f"skipped: train has {len(train)} rows, {len(counts)} labels, the rarest {smallest} times; "
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
    """Measures the format of texts, as the model sees them, and none of their words.

    Args:
        texts: Texts after cleaning.

    Returns:
        Shape ``(texts, features)``, columns as in `FEATURE_NAMES`.
    """
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
