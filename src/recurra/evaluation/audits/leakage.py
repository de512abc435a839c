"""Leakage audit: how much of a reported split a model has already seen in training.

Five measures for each reported split, each against ``train``:

``exact``       the text itself is a training text;
``normalised``  the same after dropping case, punctuation and spacing;
``contained``   the row's word sequence, of 3 words or more, occurs verbatim inside a training text (or is one), as when
                the phrases of one sentence are split at random (`recurra.data.words.words_of`);
``ngram``       at least 70 % of the row's 8-grams of words occur in training texts (the criterion of Chowdhery et al.,
                "PaLM", 2022, section 8), which finds copies with small edits;
``source``      the row shares a source (a sentence, or a group that the user named) with a training row.

Each measure is the share of all rows of the split; for ``ngram``, of rows with at least 8 words. A few equal short
texts are natural ("no . ."), so the thresholds are 1 % for ``exact`` and ``normalised`` and 5 % for ``contained`` and
``ngram``. A shared source is never natural where sources are known, so its threshold is 0. Auxiliary rows with labels
of another task, and texts without labels, are searched in the same way, except for the source.

Above a threshold the finding is ``failed`` and stores the rows it concerns; `recurra.evaluation.audits.grading` turns
it into a note if a model's figures are much the same without them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from scipy import stats

from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.words import Words, runs, text_identity, texts_inside, words_of
from recurra.evaluation.audits.grading import keep_rows
from recurra.evaluation.significance import wilson_interval

Indices = npt.NDArray[np.int64]


class Overlap(NamedTuple):
    """For each text: its words; the row of a training text that contains it, or -1; its n-grams; those in training."""

    words: Indices
    container: Indices
    ngrams: Indices
    ngrams_found: Indices


def find_overlap(train_texts: Sequence[str], texts: Sequence[str], *, ngram: int, min_words: int) -> Overlap:
    """Searches training texts for texts of ``min_words`` or more, and for the n-grams of all texts."""
    # 40,000 long reviews have ten million words, few of them different, so equal words share memory.
    queries = [tuple(map(sys.intern, words_of(text))) for text in texts]
    container: dict[Words, int] = {}
    # Hashes of n-grams take a quarter of the memory of the n-grams.
    query_hashes = {hash(gram) for query in queries for gram in runs(query, ngram)}
    seen_hashes: set[int] = set()

    def train_words() -> Iterator[Words]:
        for text in train_texts:
            words = words_of(text)
            seen_hashes.update(query_hashes.intersection(map(hash, runs(words, ngram))))
            yield words

    for row, query in texts_inside(set(queries), train_words(), min_words):
        container.setdefault(query, row)
    in_training = [[hash(gram) in seen_hashes for gram in runs(query, ngram)] for query in queries]
    containers = [container.get(query, -1) for query in queries]
    columns = (map(len, queries), containers, map(len, in_training), map(sum, in_training))
    return Overlap(*(np.asarray(list(column), dtype=np.int64) for column in columns))


# Largest share of a split's rows that each measure allows.
THRESHOLDS = {"exact": 0.01, "normalised": 0.01, "contained": 0.05, "ngram": 0.05, "source": 0.0}

MIN_CONTAINED_WORDS = 3
NGRAM_WORDS = 8
NGRAM_SHARE = 0.7
# With fewer rows of 8 words or more the measure is skipped.
MIN_NGRAM_ROWS = 20

_EXAMPLES = 5
_EXAMPLE_CHARACTERS = 200

Mask = npt.NDArray[np.bool_]


def audit_leakage(dataset: TextDataset) -> list[AuditResult]:
    """Audits every reported split against ``train``, auxiliary rows of another task, and texts without labels.

    The details of a failure hold the rows it concerns (`recurra.evaluation.audits.grading`).
    """
    sources = {"": dataset.splits["train"], "auxiliary-": dataset.auxiliary, "unlabelled-": dataset.unlabelled}
    audits = []
    for prefix, rows in sources.items():
        if rows is None:
            continue
        for name in dataset.reported_splits:
            split_audits = _audit_split(rows, dataset.splits[name], prefix, name)
            # Auxiliary and unlabelled rows have no sources, so their last audit is dropped.
            audits += split_audits[:-1] if prefix else split_audits
    return audits


def overlap_of(train: TextSplit, split: TextSplit) -> Overlap:
    """The overlap of a split with training rows, cached as long as both are in memory."""
    by_train = _OVERLAPS.setdefault(split, WeakKeyDictionary())
    if train not in by_train:
        by_train[train] = find_overlap(train.texts, split.texts, ngram=NGRAM_WORDS, min_words=MIN_CONTAINED_WORDS)
    return by_train[train]


_OVERLAPS: WeakKeyDictionary[TextSplit, WeakKeyDictionary[TextSplit, Overlap]] = WeakKeyDictionary()


def _audit_split(train: TextSplit, split: TextSplit, prefix: str, name: str) -> list[AuditResult]:
    def skipped(kind: str, reason: str) -> AuditResult:
        return AuditResult.skipped(f"leakage.{prefix}{kind}.{name}", reason)

    def judge(
        kind: str, hits: Mask, criterion: str, more: Sequence[dict[str, Any]], judged: int = len(split)
    ) -> AuditResult:
        count, threshold = int(hits.sum()), THRESHOLDS[kind]
        failed = count / judged > threshold
        examples = [
            {"id": split.ids[row], "text": _cut(split.texts[row]), **details}
            for row, details in zip(np.flatnonzero(hits).tolist(), more, strict=False)
        ]
        rows = keep_rows(hits) if failed else {}
        return AuditResult(
            name=f"leakage.{prefix}{kind}.{name}",
            status="failed" if failed else "passed",
            summary=f"{count / judged:.2%} of rows ({count:,} of {judged:,}): {criterion}; allowed: {threshold:.0%}",
            value=count / judged,
            threshold=threshold,
            details={"rows": count, "rows_judged": judged, "criterion": criterion, "examples": examples, **rows},
        )

    if not len(split) or not len(train):
        reason = f"{len(split)} rows in {name}, {len(train)} in {train.name}; both need at least one"
        return [skipped(kind, reason) for kind in THRESHOLDS]
    overlap = overlap_of(train, split)
    copies = {
        "exact": (_first_rows(train.texts, split.texts), "the text is a training text"),
        "normalised": (
            _first_rows(map(text_identity, train.texts), map(text_identity, split.texts)),
            "the text is a training text apart from case, punctuation and spacing",
        ),
        "contained": (
            overlap.container,
            f"the text's {MIN_CONTAINED_WORDS} words or more are verbatim in a training text",
        ),
    }
    results = []
    for kind, (source, criterion) in copies.items():
        if kind == "contained" and not (overlap.words >= MIN_CONTAINED_WORDS).any():
            results.append(skipped(kind, f"0 rows of {MIN_CONTAINED_WORDS} words or more"))
            continue
        texts = [train.texts[row] for row in source[source >= 0][:_EXAMPLES].tolist()]
        results.append(judge(kind, source >= 0, criterion, [{"train_text": _cut(text)} for text in texts]))

    share, long_enough = overlap.ngrams_found / np.maximum(overlap.ngrams, 1), overlap.ngrams > 0
    if (count := int(long_enough.sum())) < MIN_NGRAM_ROWS:
        results.append(skipped("ngram", f"{count} rows of {NGRAM_WORDS} words or more; {MIN_NGRAM_ROWS} are needed"))
    else:
        criterion = f"at least {NGRAM_SHARE:.0%} of the text's {NGRAM_WORDS}-grams are in training texts"
        hits = long_enough & (share >= NGRAM_SHARE)
        shares = [{"share_found": round(float(value), 3)} for value in share[hits][:_EXAMPLES]]
        results.append(judge("ngram", hits, criterion, shares, judged=count))

    if split.groups is None or train.groups is None:
        return [*results, skipped("source", "the sources (or groups) of the rows are unknown")]
    known = {source for group in train.groups for source in group}
    shared = [[source for source in group if source in known] for group in split.groups]
    criterion = "the row shares a source sentence or group with a training row"
    hits = np.asarray([bool(sources) for sources in shared])
    sources = [{"sources": row_sources[:3]} for row_sources in shared if row_sources][:_EXAMPLES]
    return [*results, judge("source", hits, criterion, sources)]


def _first_rows(train_texts: Iterable[str], texts: Iterable[str]) -> Indices:
    """Row of the first equal training text for each text, -1 without one."""
    rows: dict[str, int] = {}
    for row, text in enumerate(train_texts):
        rows.setdefault(text, row)
    return np.asarray([rows.get(text, -1) for text in texts], dtype=np.int64)


def _cut(text: str) -> str:
    return text if len(text) <= _EXAMPLE_CHARACTERS else text[: _EXAMPLE_CHARACTERS - 1] + "…"


# Honest models of about 100 million parameters on WikiText-103: GPT-2 without training on it 37.5, a weight-tied
# DEQ-Transformer 23.2, Transformer-XL 23.6. The published 1.08 of CRT-Deep leaks.
ALARM_WORD_PERPLEXITY = 15.0


def audit_too_good(word_perplexity: float, causality: Sequence[AuditResult]) -> AuditResult:
    """Raises an alarm below a word perplexity of 15.

    It has failed if the causality audit of the model has, because the figure must not be quoted then; otherwise it is
    ``measured``.
    """
    status, leaking = "passed", [audit.name for audit in causality if audit.status == "failed"]
    summary = f"word perplexity {word_perplexity:.1f}; below {ALARM_WORD_PERPLEXITY:.0f} there would be an alarm"
    if word_perplexity < ALARM_WORD_PERPLEXITY:
        status, outcome = "measured", "the causality audit passed: look for test text in training"
        if leaking:
            status, outcome = "failed", f"the model leaks ({', '.join(leaking)}): do not quote it without that word"
        summary = f"ALARM: word perplexity {word_perplexity:.2f} is below {ALARM_WORD_PERPLEXITY:.0f}; {outcome}"
    return AuditResult(
        name="perplexity.too-good",
        status=status,
        summary=summary,
        value=word_perplexity,
        threshold=ALARM_WORD_PERPLEXITY,
    )


def audit_teacher(dataset: TextDataset, name: str, trained_on: TextSplit | None) -> list[AuditResult]:
    """Finds reported rows that only the teacher was trained on, not the student; what both saw is leakage."""
    reason = f"the training rows of the teacher {name} are unknown: rows of this split may be among them"
    student_texts = set(dataset.splits["train"].texts)
    teacher_only = set() if trained_on is None else set(trained_on.texts) - student_texts
    audits = []
    for split in dataset.reported_splits:
        if trained_on is None:
            audits.append(AuditResult.skipped(f"teacher.{split}", reason))
            continue
        texts = dataset.splits[split].texts
        rows = np.asarray([text in teacher_only for text in texts], dtype=bool)
        count = int(rows.sum())
        audits.append(
            AuditResult(
                name=f"teacher.{split}",
                status="failed" if count else "passed",
                summary=f"{count:,} of {len(texts):,} {split} rows are training rows of the teacher {name} only",
                value=count / max(len(texts), 1),
                details=keep_rows(rows) if count else {},
            )
        )
    return audits


def audit_encoder(name: str, taught: Collection[str], reported: str, sha256: str) -> list[AuditResult]:
    """Checks whether an encoder was taught on the file whose rows a model is reported on."""
    if not taught:
        return []
    seen = sha256 in taught
    relation = "has read the texts, not the labels, of" if seen else "was trained on other files than"
    summary = f"the encoder {name} {relation} '{reported}', whose rows are reported"
    return [AuditResult(name="encoder.texts", status="note" if seen else "passed", summary=summary)]


# With fewer rows in either group `audit_seen` is skipped.
MIN_ROWS = 20


def audit_seen(train: TextSplit, split: TextSplit, correct: npt.ArrayLike) -> AuditResult:
    """Compares the accuracy on seen and on unseen rows of a split, seen minus unseen, also at equal length."""
    is_right = np.asarray(correct)
    name = f"seen.{split.name}"
    long_enough: Mask = split.word_counts >= MIN_CONTAINED_WORDS
    seen: Mask = (overlap_of(train, split).container >= 0) & long_enough
    unseen: Mask = long_enough & ~seen
    if min(seen.sum(), unseen.sum()) < MIN_ROWS:
        return AuditResult.skipped(
            name,
            f"{seen.sum():,} rows of {MIN_CONTAINED_WORDS} words or more are contained in a training row, "
            f"{unseen.sum():,} are not; {MIN_ROWS} of both are needed",
        )
    groups = {"seen": _group(split, is_right, seen), "unseen": _group(split, is_right, unseen)}
    difference = groups["seen"]["accuracy"] - groups["unseen"]["accuracy"]
    low, high = difference_interval(
        int(is_right[seen].sum()), int(seen.sum()), int(is_right[unseen].sum()), int(unseen.sum())
    )
    equal = difference_at_equal_length(is_right, seen, unseen, split.word_counts)
    at_equal_length = ""
    if equal is not None:
        at_equal_length = f"; at equal length {_signed(equal[0])} ({_signed(equal[1])} to {_signed(equal[2])})"
    return AuditResult(
        name=name,
        status="measured",
        summary=(
            f"accuracy {groups['seen']['accuracy']:.3f} on the {seen.sum():,} rows contained in a training row, "
            f"{groups['unseen']['accuracy']:.3f} on the {unseen.sum():,} that are not: {_signed(difference)} "
            f"(95 % {_signed(low)} to {_signed(high)}){at_equal_length}"
        ),
        value=difference,
        details={
            **groups,
            "interval": [low, high],
            "at_equal_length": None if equal is None else {"difference": equal[0], "interval": list(equal[1:])},
            "rows_too_short": int((~long_enough).sum()),
            "least_words": MIN_CONTAINED_WORDS,
        },
    )


def _group(split: TextSplit, right: Mask, rows: Mask) -> dict[str, Any]:
    count, successes = int(rows.sum()), int(right[rows].sum())
    return {
        "rows": count,
        "accuracy": successes / count,
        "interval": list(wilson_interval(successes, count)),
        "words_mean": float(split.word_counts[rows].mean()),
    }


def _signed(value: float) -> str:
    return f"{value:+.3f}"


def difference_interval(successes_a: int, total_a: int, successes_b: int, total_b: int) -> tuple[float, float]:
    """95 % interval of the difference of two independent shares, A minus B (Newcombe 1998, method 10)."""
    share_a, share_b = successes_a / total_a, successes_b / total_b
    (low_a, high_a), (low_b, high_b) = wilson_interval(successes_a, total_a), wilson_interval(successes_b, total_b)
    difference = share_a - share_b
    return (
        difference - math.hypot(share_a - low_a, high_b - share_b),
        difference + math.hypot(high_a - share_a, share_b - low_b),
    )


def difference_at_equal_length(
    right: Mask, seen: Mask, unseen: Mask, words: npt.NDArray[np.int64]
) -> tuple[float, float, float] | None:
    """Mantel-Haenszel difference in accuracy over strata of equal numbers of words, and its 95 % interval."""
    size = int(words.max()) + 1 if len(words) else 1

    def per_length(rows: Mask) -> npt.NDArray[np.float64]:
        return np.bincount(words[rows], minlength=size).astype(np.float64)

    n1, n0 = per_length(seen), per_length(unseen)
    both = (n1 > 0) & (n0 > 0)
    if not both.any():
        return None
    a, c = per_length(seen & right)[both], per_length(unseen & right)[both]
    n1, n0 = n1[both], n0[both]
    total = n1 + n0
    weight = float((n1 * n0 / total).sum())
    difference = float(((a * n0 - c * n1) / total).sum()) / weight
    p = float(((n1**2 * c - n0**2 * a + n1 * n0 * (n0 - n1) / 2) / total**2).sum())
    q = float(((a * (n0 - c) + c * (n1 - a)) / (2 * total)).sum())
    half = float(stats.norm.ppf(0.975)) * math.sqrt(max(difference * p + q, 0.0)) / weight
    return difference, difference - half, difference + half
