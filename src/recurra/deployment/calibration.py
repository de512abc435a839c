"""The exit rule that an export carries: chosen on real rows by the exported model itself, and what it does there."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from recurra.core.configuration import Settings
from recurra.core.errors import ConfigurationError
from recurra.models.exit_rules import ExitRule, read_rule

DEFAULT_AGREEMENT = 0.99


class CalibrationRecord(Settings):
    """How the threshold of an export's exits was chosen.

    Attributes:
        exits: Recurrences after which a head of their own stands.
        asked: Share of rows that was to keep the label of the export without exits.
        source: On which rows, in words.
        rows: How many; 0 if there were none to choose on.
        rule: The rule as `recurra.models.exit_rules` writes it; none if no threshold keeps what was asked.
        agreement: Share of rows that kept their label, with rows leaving as they do in use; none without a rule.
        taken: Rows by the recurrences that they took; none without a rule.
        accuracy: Accuracy with the rule, where labels are known.
    """

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
