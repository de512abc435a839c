"""The bench of what a user waits for, on a machine without a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import usage
from benchmarks.measures import Setting


def test_without_a_browser_its_figures_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    # Nothing is trained or exported for it: there is no file to train on.
    assert usage._browser(tmp_path / "export", tmp_path / "none.csv", ["warm"], Setting("", (), 1, quick=True)) == []
    looked_for = "chromium, chromium-browser, google-chrome"
    assert capsys.readouterr().err == f"usage: no browser on PATH (looked for {looked_for}); its figures are left out\n"
