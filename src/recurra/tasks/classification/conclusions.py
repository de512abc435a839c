"""The conclusion of a table: sentences that the numbers support, and no more."""

from __future__ import annotations

from collections.abc import Sequence

from recurra.core.formatting import point_range, points, seeds, words
from recurra.tasks.audits import noted
from recurra.tasks.classification.summary import ClassifierSummary
from recurra.tasks.summary import AuditLine, PairTest


def conclude(
    models: Sequence[ClassifierSummary], tests: Sequence[PairTest], audits: Sequence[AuditLine], split: str
) -> str:
    """The conclusion of a table, in a line or two.

    Args:
        models: The models of the table.
        tests: The paired tests between them.
        audits: What the audits found.
        split: The split that is judged.
    """
    scored = [model for model in models if split in model.scores]
    if not scored:
        return "No model was evaluated on a common split: nothing can be concluded."
    sentences = [_one(scored[0], split)] if len(scored) == 1 else _several(scored, tests, split)
    if any(len(model.seeds) == 1 and model.kind != "linear" for model in scored):
        sentences.append("With one seed, another training could turn out differently.")
    sentences.extend(_audit_sentences(audits, split))
    return " ".join(sentences)


def _one(model: ClassifierSummary, split: str) -> str:
    score = model.scores[split]
    return (
        f"{model.label} is right on {_percent(score.accuracy.mean)} of the {score.rows:,} {split} rows "
        f"({seeds(model.seeds)}). There is no other model to compare it with."
    )


def _several(models: Sequence[ClassifierSummary], tests: Sequence[PairTest], split: str) -> list[str]:
    best = best_model(models, split)
    rows = best.scores[split].rows
    sentences = [
        f"{best.label} scores highest: {_percent(best.scores[split].accuracy.mean)} of the {rows:,} {split} rows."
    ]
    behind, level, unknown = [], [], []
    for model in models:
        if model is best:
            continue
        test = find_test(tests, best, model)
        gap = model.scores[split].accuracy.mean - best.scores[split].accuracy.mean
        if test is None or test.p_holm is None or test.low is None or test.high is None:
            unknown.append(f"{model.label} ({points(gap)})")
        elif test.supported:
            low, high = (-test.high, -test.low) if test.first == best.label else (test.low, test.high)
            behind.append(f"{model.label} ({points(gap)}, 95 % {point_range(low, high)})")
        else:
            level.append(f"{model.label} ({points(gap)})")
    if behind:
        sentences.append(f"Behind it, beyond chance: {words(behind)}.")
    if level:
        sentences.append(f"No difference from it is supported for {words(level)}.")
    if unknown:
        sentences.append(f"Not tested against it: {words(unknown)}.")
    return sentences


def _audit_sentences(audits: Sequence[AuditLine], split: str) -> list[str]:
    failed = [line for line in audits if line.status == "failed"]
    leaking = list(dict.fromkeys(line.split for line in failed if line.name.startswith("leakage")))
    sentences = []
    if split in leaking or "" in leaking:
        sentences.append(f"The leakage audit of {split} failed: these figures flatter every model.")
    elif leaking:
        sentences.append(f"The leakage audit failed on {words(leaking)}, not on {split}.")
    if any(line.name.startswith("shortcut") and line.split in ("", split) for line in failed):
        sentences.append("The shortcut audit failed: part of the labels can be guessed without reading.")
    if any(line.scope == "model" for line in failed):
        sentences.append("A model audit failed: do not use its figures before the cause is known.")
    return [*sentences, *noted(audits, split)]


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def best_model(models: Sequence[ClassifierSummary], split: str) -> ClassifierSummary:
    """The model with the highest mean accuracy; of equals the one with fewer parameters."""
    return max(models, key=lambda model: (model.scores[split].accuracy.mean, -model.parameters))


def find_test(tests: Sequence[PairTest], first: ClassifierSummary, second: ClassifierSummary) -> PairTest | None:
    """The test between two models, in whichever order it was made."""
    wanted = {first.label, second.label}
    return next((test for test in tests if {test.first, test.second} == wanted), None)
