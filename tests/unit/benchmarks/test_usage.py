"""The bench of what a user waits for, on a machine without a browser or the server to compare with."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import load, usage
from benchmarks.command import run_recurra
from benchmarks.measures import Setting

from recurra.core.errors import RunError


def test_without_a_browser_its_figures_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    # Nothing is trained or exported for it: there is no file to train on.
    assert usage._browser(tmp_path / "export", tmp_path / "none.csv", ["warm"], Setting("", (), 1, quick=True)) == []
    looked_for = "chromium, chromium-browser, google-chrome"
    assert capsys.readouterr().err == f"usage: no browser on PATH (looked for {looked_for}); its figures are left out\n"


def test_our_server_ends_if_the_other_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> Any:
        raise SystemExit(1)

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True) as ours:
        monkeypatch.setattr(load, "start", lambda _: (ours, ("127.0.0.1", 1), 0.0))
        monkeypatch.setattr(load, "start_peer", gone)
        with pytest.raises(SystemExit):
            load.beside_peer(argparse.Namespace(folder=tmp_path, data=None, text_column="text", texts=1))
        ended = ours.poll()
    assert ended is not None


def test_a_refused_export_is_an_error_and_a_failed_audit_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess([], 3, "", "error: the int8 export disagrees with the run's model")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    run_recurra("train", "--model", "linear")
    with pytest.raises(RunError, match="recurra export failed: error: the int8 export disagrees"):
        run_recurra("export", "run")
