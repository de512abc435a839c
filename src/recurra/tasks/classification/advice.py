"""What to choose when accuracy, latency, balance or memory matters, from the records alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recurra.core.formatting import points, significant, times, words
from recurra.tasks.classification.conclusions import best_model, find_test
from recurra.tasks.classification.summary import ClassifierSummary
from recurra.tasks.summary import BALANCE, Advice, AuditLine, PairTest, unspoiled

NEEDED = "Is a Transformer needed?"


def level_models(models: Sequence[ClassifierSummary], tests: Sequence[PairTest], split: str) -> list[str]:
    """Labels of the best model and of those not shown to be less accurate."""
    scored = [model for model in models if split in model.scores]
    choice = _Choice(scored, tests, split)
    return [model.label for model in scored if choice.level(model)]


def advise(
    models: Sequence[ClassifierSummary], tests: Sequence[PairTest], audits: Sequence[AuditLine], split: str
) -> list[Advice]:
    """Advice by priority; none if there are not two models to choose between.

    ``Balance`` is the smallest model that is not supported to be less accurate than the best one.

    Args:
        models: The models of the table.
        tests: The paired tests between them.
        audits: What the audits found; models that failed one of their own are not recommended.
        split: The split that is judged.
    """
    scored = [model for model in unspoiled(models, audits) if split in model.scores]
    if len(scored) < 2:
        return []
    choice = _Choice(scored, tests, split)
    advice = [choice.need(), choice.accuracy(), choice.latency(), choice.balance(), choice.memory()]
    return [item for item in advice if item is not None]


@dataclass(frozen=True)
class _Choice:
    """The models to choose between, all with a score on the split."""

    models: Sequence[ClassifierSummary]
    tests: Sequence[PairTest]
    split: str

    @property
    def best(self) -> ClassifierSummary:
        return best_model(self.models, self.split)

    def gap(self, model: ClassifierSummary, other: ClassifierSummary) -> float:
        return model.scores[self.split].accuracy.mean - other.scores[self.split].accuracy.mean

    def level(self, model: ClassifierSummary) -> bool:
        """Whether a model is tested and not supported to be less accurate than the best one."""
        if model is self.best:
            return True
        test = find_test(self.tests, self.best, model)
        return test is not None and test.p_holm is not None and not test.supported

    def accuracy(self) -> Advice:
        equals = [model.label for model in self.models if model is not self.best and self.level(model)]
        reason = f"{self.best.scores[self.split].accuracy.mean:.4f} on {self.split}"
        reason += f"; no difference is supported from {words(equals)}" if equals else ""
        return Advice("Accuracy", self.best.label, f"{reason}.")

    def balance(self) -> Advice:
        level = [model for model in self.models if self.level(model)]
        small = min(level, key=lambda model: (model.file_size_mib, model.parameters))
        reason = (
            f"the smallest of the {len(level)} models whose accuracy is not shown to be below the best"
            if len(level) > 1
            else "the only model not shown to be less accurate than the best"
        )
        if small.latency:
            batch = min(small.latency, key=int)
            timed = f", {significant(small.latency[batch].median_ms)} ms a text at batch {batch}"
        else:
            timed = ""
        return Advice(BALANCE, small.label, f"{reason}: {_size(small)}{timed}.")

    def memory(self) -> Advice:
        ranked = sorted(self.models, key=lambda model: (model.file_size_mib, model.parameters))
        return Advice("Memory", ranked[0].label, self._with_price(_size(ranked[0]), ranked, "smallest", _size))

    def latency(self) -> Advice:
        batches = sorted({int(batch) for model in self.models for batch in model.latency})
        batch = str(batches[0]) if batches else ""
        timed = [model for model in self.models if batch in model.latency]
        if len(timed) < 2:
            return Advice("Latency", "–", "The models were not timed against each other: nothing can be advised.")
        ranked = sorted(timed, key=lambda model: model.latency[batch].median_ms)

        def reason(model: ClassifierSummary) -> str:
            return f"{significant(model.latency[batch].median_ms)} ms a text at batch {batch}"

        ratio = ranked[1].latency[batch].median_ms / max(ranked[0].latency[batch].median_ms, 1e-9)
        second = ranked[1].label
        lead = f"{times(ratio)} faster than {second}" if ratio >= 1.05 else f"as {second} within 5 %"
        text = f"{reason(ranked[0])}, {lead}"
        return Advice("Latency", ranked[0].label, self._with_price(text, ranked, "fastest", reason))

    def _with_price(
        self,
        text: str,
        ranked: Sequence[ClassifierSummary],
        superlative: str,
        reason: Callable[[ClassifierSummary], str],
    ) -> str:
        """Adds what the choice costs in accuracy, and the first Transformer if the choice is a linear model."""
        text += self._price(ranked[0])
        transformer = next((model for model in ranked if model.kind != "linear"), None)
        if ranked[0].kind == "linear" and transformer is not None:
            name = transformer.label
            text += f". The {superlative} Transformer: {name}, {reason(transformer)}{self._price(transformer)}"
        return f"{text}."

    def _price(self, model: ClassifierSummary) -> str:
        if model is self.best:
            return "; also the most accurate"
        unsupported = " (not a supported difference)" if self.level(model) else ""
        return f"; {points(self.gap(model, self.best))} of accuracy against {self.best.label}{unsupported}"

    def need(self) -> Advice | None:
        """Says when a linear model is simply better, or that nobody looked."""
        linear = [model for model in self.models if model.kind == "linear"]
        deep = [model for model in self.models if model.kind != "linear"]
        if not deep:
            return None
        if not linear:
            return Advice(NEEDED, "unknown", "No linear control was run: add it before you choose.")
        control, rival = best_model(linear, self.split), best_model(deep, self.split)
        tests = [(model, find_test(self.tests, control, model)) for model in deep]
        gap = points(self.gap(rival, control))
        if any(test is None or test.p_holm is None for _, test in tests):
            return Advice(NEEDED, "untested", f"{rival.label} differs from {control.label} by {gap}, untested.")
        supported = [model for model, test in tests if test is not None and test.supported]
        better = [model for model in supported if self.gap(model, control) > 0]
        cost = _cost_ratio(control, rival)
        if better:
            gains = words([f"{model.label} by {points(self.gap(model, control)).lstrip('+')}" for model in better])
            return Advice(NEEDED, "yes, for accuracy", f"Better than {control.label}: {gains}{cost}.")
        if len(supported) == len(deep):
            why = f"{control.label} is simply better: every Transformer is at least {gap.lstrip('−')} behind it"
            return Advice(NEEDED, f"no: take {control.label}", f"{why}{cost}.")
        why = f"no Transformer here is supported to be better than {control.label} ({rival.label}: {gap})"
        return Advice(NEEDED, f"not shown: {control.label} is simpler", f"{why}{cost}.")


def _cost_ratio(control: ClassifierSummary, rival: ClassifierSummary) -> str:
    """What a Transformer costs beside the linear model, as far as both were measured."""
    parts = []
    shared = sorted(int(batch) for batch in control.latency if batch in rival.latency)
    if shared:
        batch = str(shared[0])
        ratio = rival.latency[batch].median_ms / max(control.latency[batch].median_ms, 1e-9)
        parts.append(f"{times(ratio)} the time a text at batch {batch}")
    if control.training_wall_s > 0:
        parts.append(f"{times(rival.training_wall_s / control.training_wall_s)} the training time")
    return f"; {rival.label} takes {words(parts)}" if parts else ""


def _size(model: ClassifierSummary) -> str:
    return f"{significant(model.file_size_mib)} MiB on disk"
