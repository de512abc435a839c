"""The module that earlier guides named."""

import importlib
import sys

import pytest

from recurra.models import exits


def test_the_old_name_gives_the_same_rules_and_says_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "recurra.models.exit_rules", raising=False)
    with pytest.warns(DeprecationWarning, match=r"is recurra\.models\.exits now"):
        old = importlib.import_module("recurra.models.exit_rules")
    for name in exits.__all__:
        assert getattr(old, name) is getattr(exits, name)
