"""Exit rules by name: as a user gives it, and as a record holds it. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from recurra.core.errors import ConfigurationError, unknown
from recurra.models.exits.rule import ExitRule, ThresholdRule

# The rule that an export carries, chosen on validation rows when it was made; not one by itself.
CALIBRATED = "calibrated"

Rule = TypeVar("Rule", bound=type[ExitRule])
_RULES: dict[str, type[ExitRule]] = {}


def register_rule(rule: Rule) -> Rule:
    """Makes a rule known by its name, everywhere: commands, records, calibration."""
    if rule.name in _RULES:
        raise ValueError(f"there are two exit rules of name '{rule.name}'")
    _RULES[rule.name] = rule
    return rule


def rule_names() -> tuple[str, ...]:
    """Names of all rules, in the order in which they were registered."""
    return tuple(_RULES)


def summarise_rules() -> str:
    """All rules in one line, for a command's help."""
    *others, last = (rule.summary for rule in _RULES.values())
    return f"{', '.join(others)}, or {last}"


def threshold_rule_names() -> tuple[str, ...]:
    """Names of the rules whose threshold can be chosen on validation rows."""
    return tuple(name for name, rule in _RULES.items() if issubclass(rule, ThresholdRule))


def threshold_rule(name: str) -> type[ThresholdRule]:
    """Returns a rule whose threshold can be chosen on validation rows.

    Raises:
        ConfigurationError: If there is no such rule, or it has no threshold.
    """
    rule = _RULES.get(name)
    if rule is None or not issubclass(rule, ThresholdRule):
        raise ConfigurationError(unknown("exit rule to calibrate", name, threshold_rule_names()))
    return rule


def make_rule(
    name: str | None, *, threshold: float | None = None, after: int | None = None, known: Sequence[str] = ()
) -> ExitRule | None:
    """Returns the rule that a user names.

    Args:
        name: One of `rule_names`; none means no rule, or the one that takes ``after`` if that is given.
        threshold: For a rule that has one.
        after: Recurrence, for a rule that stops at a given one.
        known: Names that a message tells of besides.

    Raises:
        ConfigurationError: For an unknown name, a value out of range, or one that the rule has no use for.
    """
    if name is not None and name not in _RULES:
        raise ConfigurationError(unknown("exit rule", name, (*_RULES, *known)))
    if name is None and after is not None:
        name = _rules_with("after")[0]
    rule = None if name is None else _RULES[name]
    options = {} if rule is None else rule.options
    if after is not None and "after" not in options:
        allowed = _quoted(_rules_with("after"))
        raise ConfigurationError(f"an exit is for rule {allowed}, not for '{name}'; give one or the other")
    if threshold is not None and "threshold" not in options:
        raise ConfigurationError(f"a threshold is for rule {_quoted(_rules_with('threshold'))}; name one of them")
    given = {"threshold": threshold, "after": after}
    return None if rule is None else rule.make(**{key: value for key, value in given.items() if value is not None})


def read_rule(values: Mapping[str, Any]) -> ExitRule:
    """Returns the rule that `ExitRule.plain` wrote.

    Raises:
        ConfigurationError: If it is none of ours.
    """
    name, numbers = str(values.get("rule")), {key: value for key, value in values.items() if key != "rule"}
    if name not in _RULES:
        raise ConfigurationError(unknown("exit rule", name, _RULES))
    try:
        return _RULES[name](**numbers)
    except TypeError as error:
        raise ConfigurationError(f"exit rule '{name}' cannot be read from {sorted(numbers)}: {error}") from error


def _rules_with(option: str) -> list[str]:
    return [name for name, rule in _RULES.items() if option in rule.options]


def _quoted(names: Sequence[str]) -> str:
    return " or ".join(f"'{name}'" for name in names)
