"""The mistakes that a model is surest of: what a run records of them, and how a report shows them. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from recurra.core.record import LabelRunRecord, MistakeRecord
from recurra.core.terminal import one_line
from recurra.data.dataset import TextSplit
from recurra.deployment.decision import LabelDecision, Probabilities
from recurra.deployment.explanation import effects_of, spans_of, strongest, without
from recurra.tasks.labelling.reporting import LabellingTable, Mistake
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.summary import ModelSummary
from recurra.tasks.tables import NONE, Table

# Of a run: rows that are recorded, and words of each.
MOST_RECORDED, MOST_WORDS = 10, 3
# Parts that are left out of a text, and characters of all texts without them: seconds for a small encoder on a CPU.
MOST_PARTS, LEAST_PARTS, MOST_CHARACTERS = 60, 10, 50_000
# In characters: a longer text is not explained, and of a longer run of words the start is recorded.
LONGEST_EXPLAINED, LONGEST_WORD = 2_000, 120
LONGEST_TEXT = 300


def surest_mistakes(
    predict: Callable[[Sequence[str]], Probabilities], decision: LabelDecision, split: TextSplit, said: Probabilities
) -> list[MistakeRecord]:
    """The rows with the surest wrong label, the surest first, and the words that this label hangs on.

    Args:
        predict: Gives probabilities ``(texts, labels)`` of texts.
        decision: What makes labels of them.
        split: The rows.
        said: Their probabilities, ``(rows, labels)``.
    """
    names, given, truth = decision.label_names, decision.decide(said), split.labels
    if decision.exclusive:
        given, truth = (np.arange(len(names)) == labels[:, None] for labels in (given, truth))
    sure = np.where(given & (truth == 0), said, 0.0)
    surest, wrong = sure.max(axis=1), sure.argmax(axis=1)
    rows = [row for row in np.argsort(-surest, kind="stable")[:MOST_RECORDED].tolist() if surest[row] > 0]
    texts = {row: split.texts[row] for row in rows if len(split.texts[row]) <= LONGEST_EXPLAINED}
    spans = {row: spans_of(text, _parts(len(text), len(texts))) for row, text in texts.items()}
    changed = predict([without(texts[row], span) for row, own in spans.items() for span in own])
    words: dict[int, list[str]] = {}
    for row, own in spans.items():
        effects, changed = effects_of(texts[row], own, said[row], changed[: len(own)], wrong[row]), changed[len(own) :]
        words[row] = [one_line(word.text, LONGEST_WORD) for word in strongest(effects, MOST_WORDS)]
    return [
        MistakeRecord(
            id=split.ids[row],
            labels=[names[label] for label in np.flatnonzero(truth[row])],
            said=names[wrong[row]],
            probability=float(surest[row]),
            words=words.get(row),
        )
        for row in rows
    ]


def _parts(characters: int, texts: int) -> int:
    """Words of a text, or runs of words, that are left out: as many as its share of the characters allows."""
    return min(MOST_PARTS, max(LEAST_PARTS, MOST_CHARACTERS // (texts * max(1, characters))))


def recorded_mistakes(run: LoadedRun, split: str) -> list[MistakeRecord]:
    """What a run recorded of the mistakes on a split; nothing of another than it looked at, or in an older record."""
    record = run.record
    if not isinstance(record, LabelRunRecord) or record.data.reported_splits[-1] != split:
        return []
    return record.mistakes or []


def shown_model(table: LabellingTable) -> ModelSummary | None:
    """The model whose errors are looked at: the recommended one; none if there is none with a score."""
    choice = table.recommended
    wanted = [model for model in table.models if choice is not None and model.label == choice.choice]
    return next((model for model in wanted if table.headline_split in model.scores), None)


def shown_mistakes(
    table: LabellingTable, runs: Mapping[str, Sequence[LoadedRun]], texts: Mapping[str, str]
) -> list[Mistake]:
    """What the first run of the looked-at model recorded of its mistakes on the headline split."""
    model = shown_model(table)
    found = [] if model is None else recorded_mistakes(runs[model.label][0], table.headline_split)
    return [
        Mistake(
            one_line(texts[each.id], LONGEST_TEXT),
            ", ".join(each.labels) or "no label",
            each.said,
            each.probability,
            None,
            each.words,
        )
        for each in found
        if each.id in texts
    ]


_BY_MODEL = (
    "Where no model agrees with the label, look at the label first: recurra label-errors FILE ranks all rows by "
    "how likely theirs is wrong. Where others are right, the text is hard for this model alone."
)
_BY_LABEL = "Of each text the surest label that is given and not true; labels that are missing are not looked at."
_SPOKE = (
    f" For the wrong label spoke the words, or runs of words of a long text, without which its probability falls most; "
    f"they are known of the {MOST_RECORDED} mistakes that a run is surest of."
)


def mistakes_table(table: Any) -> Table:
    """The mistakes of a table that has them."""
    mistakes: list[Mistake] = table.mistakes
    model = shown_model(table)
    if model is None or not mistakes:
        return Table("mistakes", "Surest mistakes", [])
    rows = [
        {
            "Text": row.text,
            "Labelled": row.label,
            "It says": row.said,
            "Words for the wrong label": NONE if row.words is None else ", ".join(row.words) or "no word by itself",
            "How sure": f"{row.probability * 100:.1f} %",
            "Who is right": NONE if row.right is None else ", ".join(row.right) or "no model here",
        }
        for row in mistakes
    ]
    note = _BY_LABEL if all(row.right is None for row in mistakes) else _BY_MODEL
    note += _SPOKE if any(row.words is not None for row in mistakes) else ""
    return Table("mistakes", f"Surest mistakes: {model.label} on {table.headline_split}", rows, note)
