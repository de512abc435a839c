"""What an export's manifest records: how it compares with the run's model, and the exit rule that it carries."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from recurra.core.configuration import HashedSettings
from recurra.core.errors import ConfigurationError
from recurra.deployment.engines.computation import Computation
from recurra.models.exits.registry import read_rule
from recurra.models.exits.rule import ExitRule


class VocabularyRecord(HashedSettings):
    """What a smaller vocabulary costs, held against the run's model on the rows of the check, both in FP32.

    Attributes:
        pieces: That are left.
        of: That the run's tokenizer has.
        rows_changed: Share of rows that are cut into other pieces.
        label_agreement: Share of rows with the same label.
        reference_accuracy: Accuracy of the run's model on the rows, where their labels are known.
        accuracy: Accuracy with the smaller vocabulary.
    """

    pieces: int
    of: int
    rows_changed: float
    label_agreement: float
    reference_accuracy: float | None = None
    accuracy: float | None = None

    def describe(self) -> str:
        """One line."""
        lost = ""
        if self.accuracy is not None and self.reference_accuracy is not None:
            lost = f", accuracy {self.accuracy:.4f} instead of {self.reference_accuracy:.4f}"
        return (
            f"vocabulary: {self.pieces:,} of {self.of:,} pieces; {self.rows_changed:.1%} of the rows are cut anew, "
            f"{self.label_agreement:.2%} keep their label{lost}"
        )


class CheckRecord(HashedSettings):
    """The export held against the run's model on real rows, when it was made.

    Attributes:
        source: Which rows, in words.
        rows: How many.
        label_agreement: Share of rows with the same label.
        largest_logit_difference: Largest absolute difference of a logit.
        largest_logit: Largest absolute logit of the run's model, to judge the difference by.
        reference: How the run's model was computed.
        computation: How the export was computed.
        reference_accuracy: Accuracy of the run's model on the rows, where their labels are known.
        accuracy: Accuracy of the export.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"reference_accuracy", "accuracy"})

    source: str
    rows: int
    label_agreement: float
    largest_logit_difference: float
    largest_logit: float
    reference: Computation
    computation: Computation
    reference_accuracy: float | None = None
    accuracy: float | None = None

    @property
    def lost_points(self) -> float | None:
        """Points of accuracy that the export loses, where labels are known; negative if it gains."""
        if self.accuracy is None or self.reference_accuracy is None:
            return None
        return round(100 * (self.reference_accuracy - self.accuracy), 6)


class CalibrationRecord(HashedSettings):
    """How the threshold of an export's exits was chosen: on real rows, by the exported model itself.

    Attributes:
        exits: Recurrences after which a head of their own stands.
        asked: Share of rows that was to keep the label of the export without exits.
        source: On which rows, in words.
        rows: How many; 0 if there were none to choose on.
        rule: The rule as `recurra.models.exits` writes it; none if no threshold keeps what was asked.
        agreement: Share of rows that kept their label, with rows leaving as they do in use; none without a rule.
        taken: Rows by the recurrences that they took; none without a rule.
        accuracy: Accuracy with the rule, where labels are known.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"rule", "agreement", "taken", "accuracy"})

    exits: list[int] = Field(min_length=1)
    asked: float = Field(gt=0, le=1)
    source: str
    rows: int = Field(ge=0)
    rule: dict[str, Any] | None = None
    agreement: float | None = None
    taken: dict[int, int] = Field(default_factory=dict)
    accuracy: float | None = None

    @model_validator(mode="after")
    def _check_rule(self) -> CalibrationRecord:
        if self.rule is not None:
            try:
                read_rule(self.rule)
            except ConfigurationError as error:
                raise ValueError(str(error)) from error
        return self

    @property
    def exit_rule(self) -> ExitRule | None:
        """The rule."""
        return None if self.rule is None else read_rule(self.rule)

    def describe(self) -> str:
        """Says it in one line."""
        rule = self.exit_rule
        if not self.rows:
            return "exits: not calibrated, for the run's own rows are not at hand; texts take all recurrences"
        if rule is None or self.agreement is None:
            return (
                f"exits: no threshold keeps {self.asked:.4g} of the labels of {self.source}: texts take all recurrences"
            )
        total = max(1, sum(self.taken.values()))
        shares = ", ".join(f"{count / total:.1%} after {number}" for number, count in sorted(self.taken.items()))
        return (
            f"exits: {rule.describe()} keeps {self.agreement:.2%} of the labels (asked: {self.asked:.4g}) of "
            f"{self.rows:,} rows of {self.source}; of these leave {shares}"
        )
