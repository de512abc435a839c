"""What is said where lm-evaluation-harness is not installed."""

from __future__ import annotations

import runpy
import sys

import pytest

from recurra.core.errors import UnavailableError

MISSING = "lm-evaluation-harness is not installed; pip install 'recurra[harness]'"


@pytest.fixture(autouse=True)
def _no_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "lm_eval" or name == "recurra.study.harness"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)


def test_the_missing_harness_is_an_error_with_its_install_command() -> None:
    with pytest.raises(UnavailableError) as caught:
        import recurra.study.harness  # noqa: F401
    assert str(caught.value) == MISSING


def test_the_command_line_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        runpy.run_module("recurra.study.harness", run_name="__main__")
    assert capsys.readouterr().err == f"error: {MISSING}\n"
