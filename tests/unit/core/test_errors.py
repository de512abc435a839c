"""The exception tree and its messages."""

from __future__ import annotations

from recurra.core.errors import RecurraError, did_you_mean, unknown

CODES = {
    "ConfigurationError": 2,
    "DataError": 2,
    "CheckpointError": 2,
    "StorageError": 2,
    "UnavailableError": 2,
    "AuditError": 3,
    "RunError": 1,
}


def test_one_root_with_the_documented_children_and_exit_codes() -> None:
    children = {kind.__name__: kind.exit_code for kind in RecurraError.__subclasses__()}
    assert children == CODES
    assert RecurraError.exit_code == 1
    assert issubclass(RecurraError, Exception)


def test_the_nearest_word_is_proposed_or_none() -> None:
    assert did_you_mean("recurent", ["baseline", "recurrent"]) == " (did you mean 'recurrent'?)"
    assert did_you_mean("xyz", ["baseline", "recurrent"]) == ""
    assert did_you_mean("1", [1, 12]) == " (did you mean '1'?)"
    assert did_you_mean("lr", ["label_smoothing", "learning_rate", "name"]) == " (did you mean 'learning_rate'?)"


def test_an_unknown_name_lists_everything_allowed_in_order() -> None:
    message = unknown("preset", "linaer", ["recurrent", "linear"])
    assert message == "unknown preset 'linaer' (did you mean 'linear'?); allowed: recurrent, linear"
