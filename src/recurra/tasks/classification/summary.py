"""What a report knows of classifiers beside what it knows of any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from recurra.tasks.estimates import Estimate
from recurra.tasks.labelling.columns import CalibrationErrors
from recurra.tasks.labelling.mistakes import Mistake
from recurra.tasks.labelling.reporting import LabellingTable
from recurra.tasks.summary import ModelSummary


@dataclass(frozen=True)
class SplitScore:
    """Quality of a model on one split. ``confusion_matrix`` is the sum over seeds, ``[true][predicted]``.

    ``macro_f1`` is there where the classes of the split are unequal or it is asked for, ``calibration`` where every
    record has it.
    """

    split: str
    rows: int
    accuracy: Estimate
    f1: Estimate
    macro_f1: Estimate | None
    precision: float
    recall: float
    loss: float
    confusion_matrix: list[list[int]]
    calibration: CalibrationErrors | None


@dataclass(frozen=True)
class JudgedScore(SplitScore):
    """The same where models are judged by a figure that a score does not have by itself."""

    judged: Estimate


@dataclass(frozen=True, kw_only=True)
class ClassifierSummary(ModelSummary):
    """A classifier over its seeds.

    Attributes:
        accuracy_per_million_parameters: Accuracy on the headline split by parameters in millions.
        accuracy_per_gflop: Accuracy on the headline split by GFLOP a token, ``None`` if no FLOPs are recorded.
    """

    scores: dict[str, SplitScore]
    accuracy_per_million_parameters: float
    accuracy_per_gflop: float | None


@dataclass(frozen=True)
class PublishedLine:
    """Published figures beside those of one model of ours.

    Attributes:
        model: Label of our model.
        source: Which table of the papers.
        what: The experiment, in words.
        protocol: The split that was published on.
        accuracy: The published figure; so are the next four.
        f1: See ``accuracy``.
        precision: See ``accuracy``; none if it was not published.
        recall: See ``precision``.
        latency_ms: Milliseconds a text, on a machine that is not named.
        difference: Our mean accuracy less the published one; none if ours has no score.
        inside: Whether the published accuracy lies in our 95 % interval; none if we have none.
        basis: What our interval is over: ``seeds`` or ``examples``.
        differs: What is not the same between the two; empty if they are like for like.
    """

    model: str
    source: str
    what: str
    protocol: str
    accuracy: float
    f1: float
    precision: float | None
    recall: float | None
    latency_ms: float
    difference: float | None
    inside: bool | None
    basis: str
    differs: str


@dataclass(frozen=True, kw_only=True)
class ClassificationTable(LabellingTable):
    """A table of classifiers.

    Attributes:
        form_accuracy: Of a classifier that sees nothing but length, punctuation and case, on the headline split; none
            where the shortcut audit could not fit one.
        mistakes: There where the data are a file of the user that can still be read.
    """

    models: Sequence[ClassifierSummary]
    form_accuracy: float | None = None
    mistakes: list[Mistake] = field(default_factory=list)
    published: list[PublishedLine]


@dataclass(frozen=True, kw_only=True)
class CostTable(ClassificationTable):
    """The same where models are judged by what their mistakes cost: ``costs[true][predicted]``."""

    costs: list[list[float]]
