"""The registry of audits: when each runs, on what, what its findings mean for a reader, and where its code is.

A new audit is a module beside this one and an entry here; tasks run all audits of a subject, and reports take their
meanings from here. Reading the registry loads neither torch nor scikit-learn: an audit's module is imported when it
runs.
"""

from __future__ import annotations

import importlib
from enum import StrEnum
from typing import Any

from recurra.core.record import AuditResult

UNKNOWN_MEANING = "What this audit guards does not hold: do not rely on the figures before you know why."
_PACKAGE = __name__.rpartition(".")[0]


class Subject(StrEnum):
    """What an audit looks at; it says when the audit runs and what it is called with."""

    LABELLED_DATA = "labelled data"
    """Before any training: ``(dataset)``."""
    TOKENS = "tokens of labelled data"
    """``(dataset, tokenizer, max_length, longest input of the model)``."""
    PREDICTIONS = "predictions"
    """After a split was predicted: ``(train, split, correct)``."""
    TEACHER = "teacher"
    """Whom a student learned from: ``(dataset, name, rows that it was trained on)``."""
    ENCODER = "encoder"
    """What a model started from: ``(name, hashes of files that taught it, reported file, its hash)``."""
    CLASSIFIER = "classifier"
    """A model: ``(model, rows, pad_token_id=, seed=)``."""
    LANGUAGE_MODEL = "language model"
    """A model: ``(model, seed=)``."""
    OUR_LANGUAGE_MODEL = "language model of ours"
    """A `recurra.models.language_modeling.RecurraForCausalLM`: ``(model, seed=)``."""
    PERPLEXITY = "perplexity"
    """A figure: ``(word_perplexity, causality audits of its model)``."""


# Subject of each audit, and its module in this package and function, which returns one result or a list. Audits of one
# subject run in this order.
AUDITS: dict[str, tuple[Subject, str]] = {
    "leakage": (Subject.LABELLED_DATA, "leakage:audit_leakage"),
    "shortcuts": (Subject.LABELLED_DATA, "shortcuts:audit_shortcuts"),
    "long-texts": (Subject.TOKENS, "long_texts:audit_long_texts"),
    "seen": (Subject.PREDICTIONS, "leakage:audit_seen"),
    "teacher": (Subject.TEACHER, "leakage:audit_teacher"),
    "encoder": (Subject.ENCODER, "leakage:audit_encoder"),
    "invariance": (Subject.CLASSIFIER, "models:audit_invariance"),
    "causality": (Subject.LANGUAGE_MODEL, "models:audit_causality"),
    "padding": (Subject.LANGUAGE_MODEL, "models:audit_language_padding"),
    "cache": (Subject.OUR_LANGUAGE_MODEL, "models:audit_cache"),
    "perplexity": (Subject.PERPLEXITY, "leakage:audit_too_good"),
}
# What a failure means for a reader, by prefix of a result's name; the longest matching prefix counts.
MEANINGS = {
    "leakage": "Rows of this split are also training rows, so a model can score by remembering: every "
    "accuracy on the split is too high, for every model. Compare on a split without the overlap.",
    "shortcut": "Labels can be guessed from the form of the text (length, punctuation, spacing) without reading it: "
    "part of every accuracy here says nothing about language.",
    "shortcuts.labels": "The shares of labels in this split differ from training, and every figure depends on them. "
    "Test on rows as they come in use.",
    "shortcuts.conflicts": "Equal texts have different labels, and no model can be right on all of them. Look at "
    "these rows, and decide on one label a text.",
    "teacher": "The teacher was trained on rows of this split, and the student learned its answers: every figure of "
    "the student on the split is too high. Use a teacher that never saw them.",
    "invariance": "The model's answer for a text depends on more than the text: do not trust its figures.",
    "invariance.padding": "The model's answer for a text changes with the padding behind it: its figures depend on "
    "how texts were batched: do not trust them.",
    "invariance.neighbour": "The model's answer for a text changes with the other texts in the batch: its figures "
    "depend on how texts were batched: do not trust them.",
    "causality": "The model sees tokens that it must predict: do not trust its loss and perplexity.",
    "causality.training": "In training the model sees tokens that it must predict, through the means of its batch "
    "norms: it learns from what it will not have later. Its evaluated loss is honest.",
    "padding": "The model's output for a text changes with the padding beside it, or is not a number: do not trust "
    "figures of texts in batches, or text generated in batches.",
    "cache": "With its cache the model's output differs from that without, or is not a number: text that it generates "
    "does not come from the model whose loss was measured.",
    "perplexity": "The perplexity is better than honest models of this size reach: look for a leak before it is "
    "quoted.",
}
# What a note means for a reader, by prefix likewise.
NOTES = {
    "leakage": "Rows of this split are also training rows, and the figures are much the same without them. "
    "To remove the overlap, take them out of one side; --group-column keeps rows that belong together on one side.",
    "shortcuts.format": "The form of a text (length, punctuation, case, spacing) reveals much of its label. If the "
    "form is part of the signal, as exclamation marks are in spam, nothing is wrong. If the label must not depend "
    "on it, say so with --form-must-not-predict (form_must_not_predict: true in a study file's data): then this "
    "fails.",
    "shortcuts.words": "One word nearly gives a label away. A signature, a name or a marker that the source left is a "
    "shortcut: take it out. A word that is part of the task, as 'who' in questions about persons, is not.",
    "long-texts": "Models read only the first max_length tokens of a text, or as many in each window; the rest is "
    "ignored. Read more with --max-length N or --windows N (max_length, windows in a study file's data); this takes "
    "more time.",
    "teacher": "The teacher was trained on rows of this split, and the student's figures are much the same without "
    "them. Use a teacher that never saw them to be certain.",
    "encoder": "The encoder has read the reported texts, though not their labels, and knows them a little better than "
    "new texts. Train one without them (recurra adapt ENCODER --apart FILE), or report on a file of its own "
    "(--test).",
}


def run_audits(subject: Subject, *arguments: Any, **keywords: Any) -> list[AuditResult]:
    """Runs every audit of a subject."""
    results: list[AuditResult] = []
    for audit_subject, location in AUDITS.values():
        if audit_subject is subject:
            module, _, function = location.partition(":")
            outcome = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), function)(*arguments, **keywords)
            results += [outcome] if isinstance(outcome, AuditResult) else outcome
    return results


def looks_at(name: str, *subjects: Subject) -> bool:
    """Whether the audit of this result's name has one of these subjects."""
    entry = AUDITS.get(name.partition(".")[0])
    return entry is not None and entry[0] in subjects


def meaning(name: str, status: str = "failed") -> str:
    """What the failure or note of the audit of this name means for a reader; empty if nothing needs saying."""
    texts = {"failed": MEANINGS, "note": NOTES}.get(status, {})
    known = [prefix for prefix in texts if name.startswith(prefix)]
    return texts[max(known, key=len)] if known else UNKNOWN_MEANING if status == "failed" else ""
