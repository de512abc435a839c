"""Texts of others on a terminal."""

from __future__ import annotations

import io
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.cli.main import main
from recurra.cli.output import present
from recurra.core import progress
from recurra.core.progress import Reporter
from recurra.core.terminal import one_line, printable, significant
from recurra.tasks.tables import CommandResult, Table

ESCAPE = "\x1b[2J\x1b]0;owned\x07"


@given(st.text())
def test_nothing_that_is_shown_controls_the_terminal(text: str) -> None:
    for shown in (printable(text), one_line(text)):
        assert not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in shown)
        shown.encode("utf-8")
    # Words of every script stay as they are.
    words = "".join(character for character in text if unicodedata.category(character)[0] in "LMNPS")
    assert printable(words) == words


@given(st.floats(1e-12, 1e12))
def test_three_digits_are_significant_whatever_the_size(value: float) -> None:
    shown = significant(value)
    assert "e" not in shown and float(shown.replace(",", "")) == pytest.approx(value, rel=5.1e-3)


def test_what_is_written_out_and_what_is_cut() -> None:
    assert printable("a\x1b[31m\n\u202eb") == r"a\x1b[31m\n\u202eb"
    assert printable("👩‍👩‍👧 naïve 数") == "👩‍👩‍👧 naïve 数"
    assert one_line("a\n  b\tc") == "a b c"
    assert [*map(significant, (1e-7, 1.234e-5, 999.6, 1234.5))] == ["0.0000001", "0.0000123", "1,000", "1,234"]
    assert printable("x" * 400_000, 10) == "xxxxxxxxxx… (400,000 characters)"
    assert one_line("x " * 400_000, 3) == "x x… (799,999 characters)" and one_line(" " * 9000 + "end") == "end"


def test_tables_lines_progress_and_errors_show_them(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("t", f"[red]{ESCAPE}", [{f"[b]{ESCAPE}": ESCAPE + "[/]", "n": "1"}])
    present(CommandResult({}, [table, [f"line {ESCAPE}"]]), as_json=False)
    Reporter().say(f"said {ESCAPE}\nsecond line")
    assert main(["data", "describe", f"no{ESCAPE}such\nfile.csv"]) == 2
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err and "\x07" not in out + err
    assert "[red]" in out and "[b]" in out and "[/]" in out
    assert err.count("\n") == 2 and "second line" in err


def test_a_terminal_without_the_letters_of_a_label_shows_their_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"text number {row},{'טוב' if row % 2 else 'رديء'}\n" for row in range(40))
    (tmp_path / "rows.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert main(["data", "describe", str(tmp_path / "rows.csv")]) == 0
    sys.stdout.flush()
    assert rb"\u05d8\u05d5\u05d1" in shown.getvalue()


@pytest.mark.parametrize("quiet", [False, True])
def test_a_log_gets_messages_as_they_are_and_a_line_now_and_then_unless_it_is_quiet(
    quiet: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter, message = Reporter(quiet=quiet), "[bold] 'x' " + "y" * 300
    reporter.say(message)
    with reporter.task("work", 3) as task:
        task.advance()
        monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.0)
        task.advance(note="epoch 1")
    assert task.done == 2
    assert capsys.readouterr() == ("", "" if quiet else f"{message}\nwork: 2/3 epoch 1\n")
