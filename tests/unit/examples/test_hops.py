"""The script on chains of facts runs and stays short."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "examples" / "hops.py"


def test_it_prints_accuracy_by_hops_of_both_models(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("hops", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.main(steps=3, rows=400)
    assert list(found) == list(module.MODELS)
    assert all(len(values) == 8 and all(0 <= value <= 1 for value in values) for values in found.values())
    lines = capsys.readouterr().out.splitlines()
    assert [line[:24].strip() for line in lines] == list(module.MODELS)


def test_it_stays_short() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 60
