"""Progress goes to standard error, as lines where there is no terminal, and nowhere when quiet."""

from __future__ import annotations

import pytest

from recurra.core import progress
from recurra.core.progress import Reporter


def test_messages_go_to_standard_error_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter().say("[bold] 'x' " + "y" * 300)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "[bold] 'x' " + "y" * 300 + "\n"


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.0)
    reporter = Reporter(quiet=True)
    reporter.say("hello")
    with reporter.task("work", 3) as task:
        task.advance(2)
    assert task.done == 2
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = Reporter()
    with reporter.task("work", 3) as task:
        task.advance()
        monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.0)
        task.advance(note="epoch 1")
    assert capsys.readouterr().err == "work: 2/3 epoch 1\n"
