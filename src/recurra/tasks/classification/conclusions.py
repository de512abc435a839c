"""Sentences on a table: the conclusion that its numbers support, and which model to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recurra.core.record import are_unequal
from recurra.core.record_parts import ANSWERS
from recurra.core.terminal import duration, seeds, significant, times, words
from recurra.tasks.audits import audit_sentences
from recurra.tasks.classification.measures import ACCURACY, MACRO_F1, cheapest_answer, label_of, margin
from recurra.tasks.labelling.reporting import LabellingTable
from recurra.tasks.measures import Measure
from recurra.tasks.questions import Limits
from recurra.tasks.reporting import beside_best, best_model, find_test, nearest
from recurra.tasks.summary import RECOMMENDED, Advice, ModelSummary, unspoiled

# Rows that a class needs, at least, before a model that never predicts it counts as ignoring it.
FEWEST = 5
# With more labels, a few that a model never predicts do not prove that it ignores classes.
MANY_LABELS, MOST_IGNORED = 10, 0.1
# With fewer rows the intervals of two models nearly always overlap, and a reader should hear that first.
FEW_ROWS = 50
# Labels without a test row that are named, at most.
MOST_UNTESTED = 5
# Costs that are written out, at most.
MOST_COSTS = 12


def conclude(table: LabellingTable) -> str:
    """The conclusion of a table, in a line or two."""
    split = table.headline_split
    scored = [model for model in table.models if split in model.scores]
    rows, matrix = scored[0].scores[split].rows, scored[0].scores[split].confusion_matrix
    if labels := only_class(matrix):
        sentences = [
            f"All {rows:,} {split} rows are '{table.label_names[labels[0]]}': they cannot show whether a model knows "
            "the other classes, so there is no verdict. Test on rows of every class."
        ]
    elif label := unseen_label(table.judged_by, table.label_names, matrix):
        sentences = [
            f"No {split} row has the label '{label}': {table.judged_by.in_text} cannot be measured, so there is "
            "no verdict. Test on rows with this label, or judge by another measure."
        ]
    else:
        sentences = [_one(scored[0], split)] if len(scored) == 1 else _several(table, scored)
        if rows < FEW_ROWS:
            worth = f"one row is worth {100 / rows:.0f} points"
            sentences.append(f"{rows} {split} rows are too few to choose a model: {worth}. Label more.")
        if untested := [name for name, row in zip(table.label_names, matrix, strict=True) if not sum(row)]:
            names = words(untested) if len(untested) <= MOST_UNTESTED else f"{len(untested):,}"
            sentences.append(f"Labels without a {split} row: {names}. How well models recognise them is unknown.")
        sentences.append(f"For comparison, without reading the texts: {without_reading(table, scored[0])}.")
        if any(len(model.seeds) == 1 and model.kind == "transformer" for model in scored):
            sentences.append("With one seed, another training could turn out differently.")
        sentences += _of_answers(table, scored)
    return " ".join([*sentences, *audit_sentences(table.audits, split)])


def _one(model: ModelSummary, split: str) -> str:
    score = model.scores[split]
    barred = f" It does not work as a classifier: {model.barred}." if model.barred else ""
    return (
        f"{model.label} is right on {_percent(score.figures[ACCURACY.key].mean)} of the {score.rows:,} {split} rows "
        f"({seeds(model.seeds)}).{barred} There is no other model to compare it with."
    )


def _several(table: LabellingTable, models: Sequence[ModelSummary]) -> list[str]:
    split, measure = table.headline_split, table.judged_by
    judged = [(model, fault_of(table, model)) for model in models]
    faults = [f"{model.label} does not work as a classifier: {fault}." for model, fault in judged if fault]
    usable = [model for model, fault in judged if not fault]
    if not usable:
        return [*faults, "No model here should be used."]
    best = best_model(usable, split, measure)
    sentences = _why(table, best)
    mean, lead = measure.mean(best, split), "scores highest" if measure.higher_is_better else "costs least"
    value = f"right on {_percent(mean)} of" if measure.key == ACCURACY.key else f"{measure.value(mean)} on"
    sentences.append(f"{best.label} {lead}: {value} the {best.scores[split].rows:,} {split} rows.")
    sentences += beside_best(best, usable, table)
    misses = [
        f"{model.label} never predicts {ignored}."
        for model in usable
        if not measure.ranks and (ignored := _never_predicted(table, model)[0])
    ]
    return [*sentences, *misses, *faults]


def _of_answers(table: LabellingTable, models: Sequence[ModelSummary]) -> list[str]:
    """How each model that is known by its answers compares with the best of the others, and what is unknown."""
    split, measure = table.headline_split, table.judged_by
    answers = [model for model in models if model.kind == ANSWERS]
    trained_models = [model for model in models if model.kind != ANSWERS and not fault_of(table, model)]
    sentences = []
    for model in answers if trained_models else ():
        best = best_model(trained_models, split, measure)
        test = find_test(table.tests, model, best)
        interval = None if test is None else test.ahead(model.label)
        extent = f" (95 % {measure.range(*interval)})" if interval else ""
        chance = ", untested"
        if test is not None and test.verdict != "untested":
            chance = f", {'beyond' if test.supported else 'not beyond'} chance"
        gap = measure.gap(measure.mean(model, split) - measure.mean(best, split))
        sentences.append(f"{model.label}: {gap} compared with {best.label}, the best trained here{extent}{chance}.")
    if answers:
        sentences.append(
            f"Only the answers of {words([model.label for model in answers])} are known, not the training data, so "
            "leakage cannot be excluded, and there is no model to ship."
        )
    return sentences


def _why(table: LabellingTable, model: ModelSummary) -> list[str]:
    """Says by what models are judged and why, and what one answer for all rows costs; empty for plain accuracy."""
    split, measure = table.headline_split, table.judged_by
    unequal = are_unequal(sum(row) for row in model.scores[split].confusion_matrix)
    if measure.key == (MACRO_F1 if unequal else ACCURACY).key:
        reason = f"The classes differ in size, so models are judged by {measure.in_text}, not by accuracy"
    else:
        reason = f"Models are judged by {measure.in_text}, as requested"
    if table.costs is not None:
        label, cost = cheapest_answer(table.costs, model.scores[split].confusion_matrix)
        return [f"{reason}; always predicting '{table.label_names[label]}' would cost {measure.value(cost)}."]
    return [] if measure.key == ACCURACY.key and not unequal else [f"{reason}."]


def without_reading(table: LabellingTable, model: ModelSummary) -> str:
    """Accuracy of the commonest label, and of length and punctuation, on the rows that a model was judged on."""
    share = f"always giving the most frequent label is right on {_percent(majority_share(model, table.headline_split))}"
    if table.form_accuracy is None:
        return share
    return f"{share}, length and punctuation alone on {_percent(table.form_accuracy)}"


def costs_in_words(names: Sequence[str], costs: Sequence[Sequence[float]]) -> str:
    """The costs of mistakes ``[true][predicted]``, as many as can be read."""
    cells = [
        f"'{true}' predicted as '{predicted}': {cost:g}"
        for true, row in zip(names, costs, strict=True)
        for predicted, cost in zip(names, row, strict=True)
        if cost
    ]
    more = f" and {len(cells) - MOST_COSTS} more" if len(cells) > MOST_COSTS else ""
    return f"{'; '.join(cells[:MOST_COSTS])}{more}"


def fault_of(table: LabellingTable, model: ModelSummary) -> str:
    """Why a model should not be used whatever it scores: it has one answer, no gain over that, or ignores a class.

    A class counts as ignored if no seed ever names it and `FEWEST` rows or more of the split are of it. Of more than
    `MANY_LABELS` labels a weak model misses some by chance: it is at fault if those have `MOST_IGNORED` of the rows. By
    a measure of ranks no answer counts against a model.
    """
    if model.barred or table.judged_by.ranks:
        return model.barred
    split = table.headline_split
    score = model.scores[split]
    ignored, share = _never_predicted(table, model)
    if ignored and (len(table.label_names) <= MANY_LABELS or share >= MOST_IGNORED):
        return f"it never predicts {ignored}"
    if table.costs is not None:
        label, lowest = cheapest_answer(table.costs, score.confusion_matrix)
        mean = table.judged_by.mean(model, split)
        name = table.label_names[label]
        return f"it costs {mean:.4f} a row, and always predicting '{name}' {lowest:.4f}" if mean >= lowest else ""
    share = majority_share(model, split)
    if table.judged_by.key == ACCURACY.key and score.figures[ACCURACY.key].mean <= share:
        accuracy = _percent(score.figures[ACCURACY.key].mean)
        return f"it is right on {accuracy}, and always giving one answer on {_percent(share)}"
    return ""


def _never_predicted(table: LabellingTable, model: ModelSummary) -> tuple[str, float]:
    """Classes that a model ignores, in words, and their share of the rows; nothing if there are none."""
    matrix = np.asarray(model.scores[table.headline_split].confusion_matrix)
    rows = matrix.sum(axis=1)
    ignored = np.flatnonzero((matrix.sum(axis=0) == 0) & (rows >= FEWEST * len(model.seeds)))
    names = words([f"'{table.label_names[index]}'" for index in ignored[:3]])
    more = f" and {ignored.size - 3} more classes" if ignored.size > 3 else ""
    return f"{names}{more}" if ignored.size else "", float(rows[ignored].sum() / rows.sum())


def only_class(confusion_matrix: Sequence[Sequence[int]]) -> list[int]:
    """The class of all rows of a split, in a list; empty if they have several."""
    present = [label for label, row in enumerate(confusion_matrix) if sum(row)]
    return present if len(present) == 1 else []


def unseen_label(measure: Measure, names: Sequence[str], confusion_matrix: Sequence[Sequence[int]]) -> str:
    """The label that a measure is about, if no row of the split has it; else empty."""
    label = label_of(measure)
    return label if label in names and not sum(confusion_matrix[names.index(label)]) else ""


def majority_share(model: ModelSummary, split: str) -> float:
    """Accuracy of the most frequent answer on the rows that a model was judged on."""
    counts = np.asarray(model.scores[split].confusion_matrix).sum(axis=1)
    return float(counts.max() / counts.sum())


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


NEEDED = "Is a Transformer needed?"


def advise(table: LabellingTable, limits: Limits) -> list[Advice]:
    """Advice by priority; none if there are not two models to choose between.

    ``Recommended`` is the smallest model that is not worse than the best one by more than the `margin`. Models that
    failed an audit of their own, and models that are no classifiers, are not recommended.
    """
    split = table.headline_split
    candidates = unspoiled(table.models, table.audits)
    scored = [model for model in candidates if split in model.scores and not fault_of(table, model)]
    if len(scored) < 2:
        return []
    choice = _Choice(table, scored)
    return [item for item in (choice.recommended(limits), choice.need()) if item is not None]


class _Choice:
    """The models of a table to choose between, all with a score on its headline split."""

    def __init__(self, table: LabellingTable, models: Sequence[ModelSummary]) -> None:
        self.table, self.models = table, models
        self.measure, self.split = table.judged_by, table.headline_split
        self.best = self.best_of(models)
        # The quality that a smaller model may give up, and the same in words.
        self.margin = margin(table, self.best.scores[self.split].confusion_matrix)
        higher = self.measure.higher_is_better
        self.slack = "a point" if higher else f"{self.measure.value(self.margin)} a row"

    def best_of(self, models: Sequence[ModelSummary]) -> ModelSummary:
        return best_model(models, self.split, self.measure)

    def gap(self, model: ModelSummary, other: ModelSummary) -> float:
        return self.measure.mean(model, self.split) - self.measure.mean(other, self.split)

    def value(self, model: ModelSummary) -> str:
        return self.measure.value(self.measure.mean(model, self.split))

    def surely_close(self, model: ModelSummary) -> bool | None:
        """Whether a model gives up no more than it may at any end of its intervals over rows and seeds, if tested."""
        test = find_test(self.table.tests, self.best, model)
        interval = None if test is None else test.ahead(model.label)
        if test is None or interval is None:
            return None
        gap = test.gap if test.a == model.label else -test.gap
        ends = [*interval, gap - (test.half or 0.0), gap + (test.half or 0.0)]
        return min(map(self.measure.merit, ends)) >= -self.margin

    def recommended(self, limits: Limits) -> Advice:
        """The smallest model that gives up at most a point, how sure that is, and what it saves.

        Only models within the limits are weighed, if there are any.
        """
        inside = [model for model in self.models if limits.allow(model.file_size_mib, model.single_ms)]
        if not inside:
            return nearest(self.models, limits)
        if len(inside) < len(self.models):
            chosen = _Choice(self.table, inside).recommended(Limits())
            scope = f"within {limits} ({len(inside)} of {len(self.models)} models)"
            choice = next(model for model in inside if model.label == chosen.choice)
            ahead = self.measure.gap(self.gap(self.best, choice))
            beyond = "" if self.best in inside else f" The best model beyond them is {self.best.label}: {ahead}."
            limited = ("Your limits", f"{scope[0].upper()}{scope[1:]}.{beyond}")
            return replace(chosen, why=f"{scope}: {chosen.why}{beyond}", details=(*chosen.details, limited))
        best = self.best
        close = [model for model in self.models if self.measure.merit(self.gap(model, best)) >= -self.margin]
        # Models of one shape weigh the same: of those the best.
        smallest = min(close, key=lambda m: (m.file_size_mib, m.parameters, self.measure.merit(self.gap(best, m))))
        score = f"{self.measure.in_text} {self.value(smallest)} on {self.split}, {_size(smallest)}"
        if smallest is not best:
            ratio = times(best.file_size_mib / smallest.file_size_mib)
            saved = f"{ratio} smaller than {best.label}{_faster(smallest, best)}"
            sure = {None: "", True: ", certain at 95 %", False: ", not certain at 95 %"}[self.surely_close(smallest)]
            why = f"within {self.slack} of the best{sure}: {score}; {self._far(smallest)}; {saved}"
        elif others := [model for model in self.models if model.file_size_mib < best.file_size_mib]:
            second = self.best_of(others)
            why = f"the best: {score}; the best of the smaller ones is {second.label}, {self._far(second)}"
        else:
            why = f"the best and the smallest: {score}"
        return Advice(RECOMMENDED, smallest.label, f"{why}.", self._details(smallest))

    def _details(self, chosen: ModelSummary) -> list[tuple[str, str]]:
        """Questions of a reader about a recommendation, and the answers."""
        best, rivals = self.best, [model for model in self.models if model is not chosen]
        score = chosen.scores[self.split]
        value = f"{self.measure.heading} {self.value(chosen)}"
        if self.measure.key != ACCURACY.key and ACCURACY.key in score.figures:
            value += f", accuracy {ACCURACY.value(score.figures[ACCURACY.key].mean)}"
        good = f"{value} on {score.rows:,} {self.split} rows; {without_reading(self.table, chosen)}."
        if chosen is not best:
            unsure = f" It could be more than {self.slack} behind." if self.surely_close(chosen) is False else ""
            sure = f"{self._far(chosen)}.{unsure}"
        elif rivals:
            second = self.best_of(rivals)
            lead = "scores highest" if self.measure.higher_is_better else "costs least"
            sure = f"It {lead}. Next is {second.label}, {self._far(second)}."
        else:
            sure = "No other model was compared."
        if len(chosen.seeds) == 1 and chosen.kind != "linear":
            sure += " It was trained with one seed: another seed could give another result."
        time_alone = f", {significant(chosen.single_ms)} ms for a single text" if chosen.single_ms is not None else ""
        costs = f"{_size(chosen)}{time_alone}, trained in {duration(chosen.training_wall_s)}."
        loss, changes = self.measure.size(self.gap(chosen, best)), dict[str, str]()
        given_up = f"No {self.measure.in_text}." if self.measure.higher_is_better else "Nothing."
        if loss != self.measure.size(0):
            given_up = f"{loss}: {best.label} {'scores higher' if self.measure.higher_is_better else 'costs less'}."
            changes[best.label] = f"If that matters, take {best.label} ({_size(best)})."
        details = [("How good", good), ("How sure", sure), ("What it costs", costs), ("What you give up", given_up)]
        if smaller := [model for model in rivals if model.file_size_mib < chosen.file_size_mib]:
            second = self.best_of(smaller)
            changes[second.label] = (
                f"If it must be smaller, take {second.label} ({_size(second)}), {self._far(second)}."
            )
        faster = [
            model for model in rivals if model.single_ms is not None and 2 * model.single_ms < (chosen.single_ms or 0)
        ]
        if faster and (quick := self.best_of(faster)).label not in changes:
            cost = f"{significant(quick.single_ms or 0)} ms a text"
            changes[quick.label] = f"If it must be faster, take {quick.label} ({cost}), {self._far(quick)}."
        return [*details, *([("What would change this", " ".join(changes.values()))] if changes else [])]

    def _far(self, model: ModelSummary) -> str:
        """How far a model is from the best one, with its interval."""
        test = find_test(self.table.tests, self.best, model)
        interval = None if test is None else test.ahead(model.label)
        doubt = f", but not supported: {test.doubt}" if test is not None and test.doubt else ""
        interval_text = f" (95 % {self.measure.range(*interval)}{doubt})" if interval else ""
        return f"{self.measure.gap(self.gap(model, self.best))}{interval_text} compared with {self.best.label}"

    def need(self) -> Advice | None:
        """Says whether a Transformer is better than a linear model, or that no linear model was run.

        Words beside an encoder count as a Transformer: the encoder is one.
        """
        linear = [model for model in self.models if _is_linear(model)]
        transformers = [model for model in self.models if not _is_linear(model)]
        if not transformers:
            return None
        if not linear:
            return Advice(NEEDED, "unknown", "No linear control was run: add it before you choose.")
        control, rival = (self.best_of(group) for group in (linear, transformers))
        tests = [(model, find_test(self.table.tests, control, model)) for model in transformers]
        gap = self.measure.gap(self.gap(rival, control))
        untested = [model.label for model, test in tests if test is None or test.p_holm is None]
        supported = [model for model, test in tests if test is not None and test.supported]
        better = [model for model in supported if self.measure.merit(self.gap(model, control)) > 0]
        cost = _cost_ratio(control, rival)
        if better:
            gains = words([f"{model.label} by {self.measure.size(self.gap(model, control))}" for model in better])
            return Advice(NEEDED, f"yes, for {self.measure.in_text}", f"Better than {control.label}: {gains}{cost}.")
        if untested:
            why = f"{rival.label} differs from {control.label} by {gap}; not tested: {words(untested)}."
            return Advice(NEEDED, "untested", why)
        if len(supported) == len(transformers):
            behind = self.measure.size(self.gap(rival, control))
            why = f"{control.label} is better than every Transformer here, by at least {behind}"
            return Advice(NEEDED, f"no: take {control.label}", f"{why}{cost}.")
        why = f"no Transformer here is shown to be better than {control.label} ({rival.label}: {gap})"
        return Advice(NEEDED, f"not shown: {control.label} is simpler", f"{why}{cost}.")


def _is_linear(model: ModelSummary) -> bool:
    return model.kind == "linear" and model.runs[0].record.model.encoder is None


def _cost_ratio(control: ModelSummary, rival: ModelSummary) -> str:
    """Costs of a Transformer relative to the linear model, as far as both were measured."""
    parts = []
    if (slower := _time_ratio(rival, control)) is not None:
        parts.append(f"{times(slower[0])} the time per text at batch {slower[1]}")
    if control.training_wall_s > 0:
        parts.append(f"{times(rival.training_wall_s / control.training_wall_s)} the training time")
    return f"; {rival.label} takes {words(parts)}" if parts else ""


def _time_ratio(slow: ModelSummary, fast: ModelSummary) -> tuple[float, int] | None:
    """How many times the time of another a model takes, at the smallest batch at which both were timed."""
    shared = [int(batch) for batch in slow.latency if batch in fast.latency]
    if not shared:
        return None
    batch = min(shared)
    return slow.latency[str(batch)].median_ms / max(fast.latency[str(batch)].median_ms, 1e-9), batch


def _faster(small: ModelSummary, best: ModelSummary) -> str:
    """How much faster the smaller model is, if both were timed."""
    ratio = _time_ratio(best, small)
    return f" and {times(ratio[0])} faster at batch {ratio[1]}" if ratio and ratio[0] >= 1.05 else ""


def _size(model: ModelSummary) -> str:
    return f"{significant(model.file_size_mib)} MiB on disk"
