"""Slices of work for an accelerator: what is done is not done twice, what is too long goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from benchmarks import accelerator, accelerator_speed
from benchmarks.accelerator import STEPS, Step, main, run_slice

COUNT = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.open('a').write('x')"
# Counts seconds into a file, as a study counts checkpoints, and ends after three of them.
SLOW = (
    "import pathlib, sys, time\np = pathlib.Path(sys.argv[1])\n"
    "while not p.exists() or len(p.read_text()) < 3:\n    time.sleep(0.3)\n    p.open('a').write('x')\n"
)


def step(name: str, code: str, finished: tuple[int, ...] = (0,)) -> Step:
    return Step(name, ("-c", code, f"{{output}}/{name}.txt"), finished)


def test_a_step_that_outlives_its_slice_goes_on_in_the_next(tmp_path: Path) -> None:
    steps = [step("once", COUNT), step("slow", SLOW), step("last", COUNT)]
    slices = 1
    while run_slice(steps, tmp_path, 0.8):
        slices += 1
        assert slices < 60
    assert slices > 1 and run_slice(steps, tmp_path, 0.8) == []
    written = [(tmp_path / one.name / f"{one.name}.txt").read_text() for one in steps]
    assert written == ["x", "xxx", "x"]


def test_a_step_that_fails_does_not_hold_up_the_others(tmp_path: Path) -> None:
    steps = [step("broken", "raise SystemExit(7)"), step("audited", "raise SystemExit(3)", (0, 3)), step("fine", COUNT)]
    assert run_slice(steps, tmp_path, 30) == ["broken"]
    assert (tmp_path / "audited.done").read_text() == "exit code 3\n"


def test_a_step_that_ignores_the_interrupt_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "PATIENCE_S", 0.3)
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    started = time.monotonic()
    assert run_slice([step("deaf", deaf)], tmp_path, 2) == ["deaf"]
    assert time.monotonic() - started < 60


def test_without_an_accelerator_it_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["--output", str(tmp_path / "runs")]) == 2
    assert capsys.readouterr().err == f"error: {accelerator.NO_DEVICE}\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_every_path_is_timed_on_the_device_at_hand() -> None:
    report = accelerator_speed.measure(torch.device("cpu"), quick=True, budget_s=0.01)
    assert {(line["path"], line["precision"]) for line in report["paths"]} == {
        (path, precision) for path in ("training step", "forward") for precision in ("fp32", "bf16")
    }
    assert all(line["ms"] > 0 and 0 < line["share_of_products"] < 10 for line in report["paths"])
    assert all(line["fused_ms"] > 0 and line["explicit_ms"] > 0 for line in report["attention"])
    assert len(report["norms"]) == 4 and report["products_tflops"].keys() == {"fp32", "bf16"}


def test_every_study_is_a_file_that_is_there() -> None:
    files = [word for one in STEPS for word in one.command if word.endswith(".yaml")]
    assert len(files) > 15 and all(Path(file).is_file() for file in files)
