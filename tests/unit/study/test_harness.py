"""What is said where lm-evaluation-harness is not installed."""

from __future__ import annotations

import sys

import pytest

import recurra.study.harness
from recurra.core.errors import UnavailableError
from recurra.study.harness.__main__ import main


def test_the_missing_harness_is_one_line_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = [
        name for name in sys.modules if name.split(".")[0] == "lm_eval" or name == "recurra.study.harness.adapter"
    ]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(UnavailableError, match=r"not installed; pip install 'recurra\[harness\]'"):
        recurra.study.harness.RecurraLM
    assert main() == 2
    assert capsys.readouterr().err == "error: lm-evaluation-harness is not installed; pip install 'recurra[harness]'\n"


def test_the_package_has_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LM'"):
        recurra.study.harness.LM
