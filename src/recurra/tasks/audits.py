"""Findings of the audits of a table's runs: each finding once, with its meaning for a reader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import fmean

from recurra.core import terminal as form
from recurra.core.record import AuditResult
from recurra.evaluation.audits.grading import effect_of
from recurra.evaluation.audits.registry import Subject, looks_at, meaning
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.summary import AuditLine


@cache
def of_data(name: str) -> bool:
    """Whether an audit looks at the data alone, so that its result is the same for every model."""
    return looks_at(name, Subject.LABELLED_DATA, Subject.TOKENS)


def audit_sentences(lines: Sequence[AuditLine], split: str) -> list[str]:
    """Sentences on failed audits, in general terms, and on notes about a split or about the whole."""
    failed = [line for line in lines if line.status == "failed"]
    leaking = list(dict.fromkeys(line.split for line in failed if line.name.startswith("leakage")))
    sentences = []
    if split in leaking or "" in leaking:
        sentences.append(f"The leakage audit of {split} failed: these figures are too good for every model.")
    elif leaking:
        sentences.append(f"The leakage audit failed on {form.words(leaking)}, not on {split}.")
    shortcuts = [line.name for line in failed if line.name.startswith("shortcut") and line.split in ("", split)]
    if any("labels" not in name and "conflicts" not in name for name in shortcuts):
        sentences.append("The shortcut audit failed: part of the labels can be guessed without reading the texts.")
    elif shortcuts:
        sentences.append("The audit of labels failed: look at it before you rely on these figures.")
    if any(line.scope == "model" for line in failed):
        sentences.append("A model audit failed: do not use its figures before the cause is known.")
    notes = list(dict.fromkeys(line.group for line in lines if line.status == "note" and line.split in ("", split)))
    if notes:
        sentences.append(f"Notes of the audits, not failures: {form.words(notes)}.")
    return sentences


def group_of(name: str, splits: Iterable[str]) -> tuple[str, str]:
    """Family and split of an audit, for a reader: ``leakage.contained.test`` is ``("leakage on test", "test")``."""
    split = next((split for split in splits if name.endswith(f".{split}")), "")
    if not split:
        return name.replace(".", " "), ""
    return f"{name.partition('.')[0]} on {split}", split


def _example(audit: AuditResult) -> str:
    """The first example of a failure, if the audit kept one."""
    examples = audit.details.get("examples")
    if not isinstance(examples, list) or not examples or not isinstance(examples[0], dict) or "text" not in examples[0]:
        return ""
    text, source = examples[0]["text"], examples[0].get("train_text")
    return f"“{text}” is contained in the training row “{source}”" if source else f"“{text}”"


def audit_lines(groups: Mapping[str, Sequence[LoadedRun]]) -> list[AuditLine]:
    """Collects the audits of all runs of a table: failed first, then notes, measured, skipped, passed.

    The same finding of several runs is one line that names these runs. Passed audits of trained models differ in their
    figures from run to run: their line shows the run that came closest to the threshold. An audit graded by the figures
    of each run has one line a grade and shows the run with the largest effect. A measured audit has one line a model.
    """
    runs_of = {label: [run.record.seed for run in runs] for label, runs in groups.items()}
    findings: dict[tuple[str, str, str], list[tuple[str, int, AuditResult]]] = defaultdict(list)
    for label, runs in groups.items():
        for run in runs:
            for audit in run.record.audits:
                varies_by_run = (audit.status == "passed" and not of_data(audit.name)) or effect_of(audit)
                group_key = "" if varies_by_run else audit.summary
                if audit.status == "measured":
                    group_key = label
                findings[(audit.name, audit.status, group_key)].append((label, run.record.seed, audit))
    order = {"failed": 0, "note": 1, "measured": 2, "skipped": 3, "passed": 4}
    splits = list(dict.fromkeys(split for runs in groups.values() for run in runs for split in run.record.data.splits))
    lines = [_line(name, status, members, runs_of, splits) for (name, status, _), members in findings.items()]
    return sorted(lines, key=lambda line: (order[line.status], line.scope, line.name))


def _line(
    name: str,
    status: str,
    members: Sequence[tuple[str, int, AuditResult]],
    runs_of: Mapping[str, Sequence[int]],
    splits: Iterable[str],
) -> AuditLine:
    group, split = group_of(name, splits)
    audits = [audit for _, _, audit in members]
    worst = max(audits, key=_badness)
    summary, value = _over_seeds(audits) if status == "measured" else (worst.summary, worst.value)
    return AuditLine(
        name=name,
        group=group,
        status=status,
        summary=summary,
        meaning=meaning(name, status),
        example=_example(worst) if status in ("failed", "note") else "",
        value=value,
        threshold=worst.threshold,
        concerns=_concerns(members, runs_of),
        scope="data" if of_data(name) else "model",
        split=split,
    )


def _badness(audit: AuditResult) -> tuple[float, float]:
    difference = abs(float(effect_of(audit).get("difference", 0.0)))
    return -1.0 if audit.value is None else audit.value, difference


def _over_seeds(audits: Sequence[AuditResult]) -> tuple[str, float]:
    """Summary and value of a single run, or the mean and the extremes of the value over several runs."""
    values = [audit.value for audit in audits if audit.value is not None]
    mean = fmean(values or [0.0])
    if len(audits) == 1 or not values:
        return audits[0].summary, mean
    text = f"over {len(values)} runs: mean {mean:+.3f} ({min(values):+.3f} to {max(values):+.3f})"
    seen, unseen = ([audit.details.get(group, {}) for audit in audits] for group in ("seen", "unseen"))
    if all("accuracy" in group for group in [*seen, *unseen]):
        text = (
            f"accuracy {fmean(group['accuracy'] for group in seen):.3f} on the {seen[0]['rows']:,} rows contained "
            f"in a training row, {fmean(group['accuracy'] for group in unseen):.3f} on the "
            f"{unseen[0]['rows']:,} that are not; {text}"
        )
    if all(equal := [audit.details.get("at_equal_length") for audit in audits]):
        text += f"; at equal length {fmean(item['difference'] for item in equal if item):+.3f}"
    return text, mean


def _concerns(members: Sequence[tuple[str, int, AuditResult]], runs_of: Mapping[str, Sequence[int]]) -> str:
    seeds: dict[str, list[int]] = defaultdict(list)
    for label, seed, _ in members:
        if seed not in seeds[label]:
            seeds[label].append(seed)
    if all(len(seeds.get(label, ())) == len(model_seeds) for label, model_seeds in runs_of.items()):
        return "every run"
    parts = []
    for label, label_seeds in seeds.items():
        if len(label_seeds) == len(runs_of[label]):
            parts.append(label)
        else:
            word = "seed" if len(label_seeds) == 1 else "seeds"
            parts.append(f"{label} ({word} {', '.join(str(seed) for seed in label_seeds)})")
    return "; ".join(parts)
