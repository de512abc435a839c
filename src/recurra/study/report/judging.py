"""The runs of one model on one split, read once and ready to be held against another's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from recurra.evaluation.significance import BootstrapDifference, McNemarTest, mcnemar, paired_bootstrap
from recurra.study.report.runs import Correctness, LoadedRun, load_correctness

KnownRows = dict[bytes, tuple[bytes, NDArray[np.int64]]]


@dataclass(frozen=True)
class Judged:
    """One model on one split.

    Attributes:
        label: Name in the table.
        split: The split.
        seeds: Seed of each run.
        accuracies: Accuracy of each run; empty if one was not evaluated on the split.
        correct: Which rows each run got right; none where the predictions cannot be read.
        seeded: Whether another seed gives another model; the linear control is always the same.
        every_accuracy: Accuracy of each run that there is, those that `only` leaves out too: what the seed alone moves.
    """

    label: str
    split: str
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    correct: tuple[Correctness | None, ...]
    seeded: bool
    every_accuracy: tuple[float, ...]

    def only(self, runs: Collection[int]) -> Judged:
        """The same with some of the runs, by their positions."""
        kept = sorted(set(runs))
        return replace(
            self,
            seeds=tuple(self.seeds[index] for index in kept),
            accuracies=tuple(self.accuracies[index] for index in kept),
            correct=tuple(self.correct[index] for index in kept),
        )

    @property
    def rows(self) -> int:
        """Rows of the split; 0 if no predictions can be read."""
        return next((len(item.correct) for item in self.correct if item is not None), 0)

    @cached_property
    def mean_correct(self) -> NDArray[np.float64]:
        """Share of the seeds that get each row right, ``(rows,)``."""
        right = [item.correct for item in self.correct if item is not None]
        return np.mean(right, axis=0, dtype=np.float64)

    @property
    def spread(self) -> float | None:
        """What the seed alone moves: the best seed less the worst one; none for a single run."""
        return max(self.every_accuracy) - min(self.every_accuracy) if len(self.every_accuracy) > 1 else None


def judge(label: str, runs: Sequence[LoadedRun], split: str, known: KnownRows | None = None) -> Judged:
    """Reads the predictions of a model's runs on a split; rows that are ``known`` are not decoded again."""
    evaluated = all(split in run.record.metrics for run in runs)
    accuracies = tuple(run.record.metrics[split].accuracy for run in runs) if evaluated else ()
    return Judged(
        label=label,
        split=split,
        seeds=tuple(run.record.seed for run in runs),
        accuracies=accuracies,
        correct=tuple(load_correctness(run, split, known) for run in runs),
        seeded=any(run.record.model.kind != "linear" for run in runs),
        every_accuracy=accuracies,
    )


def obstacle(first: Judged, second: Judged) -> str:
    """Why two models cannot be tested against each other; empty if they can."""
    if not paired_seeds(first, second):
        return "the models have no seed in common"
    everything = [*first.correct, *second.correct]
    known = [item for item in everything if item is not None]
    if len(known) < len(everything):
        return f"the predictions on the {first.split} split are not on disk"
    if not all(item.same_rows(known[0]) for item in known):
        return f"the models were not evaluated on the same rows of the {first.split} split"
    return "" if first.rows else f"the {first.split} split has no rows"


def bootstrap(first: Judged, second: Judged) -> BootstrapDifference:
    """Paired bootstrap over rows, each row's correctness averaged over a model's seeds."""
    return paired_bootstrap(first.mean_correct, second.mean_correct)


def paired_seeds(first: Judged, second: Judged) -> list[tuple[int, int]]:
    """Positions of the runs to hold against each other: equal seeds; what no seed changes meets every seed."""
    if not first.seeded and len(first.seeds) == 1:
        return [(0, index) for index in range(len(second.seeds))]
    if not second.seeded and len(second.seeds) == 1:
        return [(index, 0) for index in range(len(first.seeds))]
    return [(index, second.seeds.index(seed)) for index, seed in enumerate(first.seeds) if seed in second.seeds]


def paired(first: Judged, second: Judged) -> tuple[Judged, Judged]:
    """Both with the runs of `paired_seeds` alone: a seed that one side alone has says nothing of the difference.

    It still says what the seed moves, and may keep a difference from being supported.
    Models without a seed in common stay as they are; `obstacle` names it.
    """
    pairs = paired_seeds(first, second)
    return (first.only([i for i, _ in pairs]), second.only([j for _, j in pairs])) if pairs else (first, second)


def seed_tests(first: Judged, second: Judged) -> list[tuple[tuple[int, int], McNemarTest]]:
    """McNemar's test for each pair of seeds that has predictions."""
    tests = []
    for i, j in paired_seeds(first, second):
        a, b = first.correct[i], second.correct[j]
        if a is not None and b is not None:
            tests.append(((first.seeds[i], second.seeds[j]), mcnemar(a.correct, b.correct)))
    return tests


def seeds_apart(first: Judged, second: Judged) -> bool | None:
    """Whether the ranges of the seeds do not touch; none if neither model has a second seed."""
    a, b = first.every_accuracy, second.every_accuracy
    if len(a) < 2 and len(b) < 2:
        return None
    return min(a) > max(b) or min(b) > max(a)
