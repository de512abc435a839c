"""The exception tree and its messages."""

from __future__ import annotations

from recurra.core.errors import RecurraError, did_you_mean, unknown

USERS = ["ConfigurationError", "DataError", "CheckpointError", "StorageError", "UnavailableError"]


def test_one_root_with_the_documented_children_and_exit_codes() -> None:
    children = {kind.__name__: kind.exit_code for kind in RecurraError.__subclasses__()}
    assert children == {**dict.fromkeys(USERS, 2), "AuditError": 3, "RunError": 1}
    assert RecurraError.exit_code == 1


def test_the_nearest_word_is_proposed_or_none_and_everything_allowed_listed_in_order() -> None:
    assert did_you_mean("recurent", ["baseline", "recurrent"]) == " (did you mean 'recurrent'?)"
    assert did_you_mean("xyz", ["baseline", "recurrent"]) == ""
    assert did_you_mean("1", [1, 12]) == " (did you mean '1'?)"
    assert did_you_mean("lr", ["label_smoothing", "learning_rate", "name"]) == " (did you mean 'learning_rate'?)"
    message = unknown("preset", "linaer", ["recurrent", "linear"])
    assert message == "unknown preset 'linaer' (did you mean 'linear'?); allowed: recurrent, linear"
