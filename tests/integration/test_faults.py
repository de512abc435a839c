"""A small draw of ``make test-faults``: kills, full storage, a server in use, hostile input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it watches processes through /proc"),
]
TESTS = Path(__file__).parents[1]


def test_a_small_draw_breaks_no_rule(tmp_path: Path) -> None:
    path = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    report = tmp_path / "faults.json"
    options = ["--seed", 0, "--seconds", 800, "--kills", 4, "--cases", 400, "--soak-seconds", 20, "--storage", 11]
    options += ["--only", "soak,kills,storage,hostile", "--json", report]
    done = subprocess.run(
        [sys.executable, "-m", "faults", *map(str, options)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-8000:] + done.stdout
    found = json.loads(report.read_text(encoding="utf-8"))
    figures = {(figure["part"], figure["name"]): figure for figure in found["figures"]}
    assert found["failures"] == [] and all(figure["holds"] for figure in found["figures"])
    assert figures["kills", "survived"]["value"] == 4 and figures["hostile", "cases"]["value"] >= 400
    assert sum(figure["value"] for (_, name), figure in figures.items() if name.endswith("times without room")) == 11
