"""All that needs an accelerator, in slices that go on where they stopped: ``make accelerator``.

    python -m benchmarks.accelerator --output runs/accelerator [--slice-s 540] [--only tests,crt-deep] [--any-device]

A slice ends by itself after ``--slice-s`` seconds, at most ten minutes: what runs is interrupted as by Ctrl-C, and
killed if it does not end within half a minute; studies lose at most the minutes since their last checkpoint. Start the
same command again until it says that nothing is missing. Everything lies under ``--output``: records of the studies
(bring them home with ``recurra study pack``), figures of the benches, what the tests said.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recurra.core.files import write_text

ROOT = Path(__file__).resolve().parents[1]
LONGEST_SLICE_S = 600
# Between the interrupt and the kill.
PATIENCE_S = 30
NO_DEVICE = "no accelerator is found (torch.cuda.is_available() is false); --any-device runs the steps on what is there"
# Exit codes of a finished study; 3 means that an audit failed, which some studies exist to show.
FINISHED = (0, 3)


@dataclass(frozen=True)
class Step:
    """One step; it is done once it has ended with an exit code in ``finished``.

    Attributes:
        name: Name of the step, its folder and its log.
        command: Arguments of the interpreter; ``{output}`` stands for the step's folder.
        finished: Exit codes of a step that is done.
    """

    name: str
    command: tuple[str, ...]
    finished: tuple[int, ...] = (0,)


def study(name: str, *overrides: str) -> Step:
    """A study of ours, at full size."""
    file = str(ROOT / "configs" / "studies" / f"{name}.yaml")
    return Step(name, ("-m", "recurra", "study", "run", file, *overrides, "--output", "{output}"), FINISHED)


ALL_ROWS = "data.fraction=1"
STEPS = (
    Step("tests", ("-m", "pytest", "-q", "-m", "gpu", str(ROOT / "tests")), (0, 5)),
    Step("speed", ("-m", "benchmarks.accelerator_speed", "--json", "{output}/speed.json")),
    study("crt-deep"),
    *(study(name) for name in ("sst2", "sst2-pooled", "length", "data-size", "isolate", "recurrence", "deployment")),
    *(study(name, ALL_ROWS) for name in ("yelp", "domains", "components")),
    *(study(name, ALL_ROWS) for name in ("lm-leak", "lm-exits", "lm-trm", "lm-embedding", "lm-norm", "lm-compare")),
    *(study(name, ALL_ROWS) for name in ("crt-supervision", "crt-parts", "lm-epochs")),
)  # fmt: skip


def run_slice(steps: Sequence[Step], output: Path, seconds: float) -> list[str]:
    """Runs the missing steps, in their order, until the time is over.

    Returns:
        Names of the steps that are still missing.
    """
    end = time.monotonic() + seconds
    for step in steps:
        if not _stamp(output, step).exists():
            left = end - time.monotonic()
            if left <= 0 or not _advance(step, output, left):
                break
    return [step.name for step in steps if not _stamp(output, step).exists()]


def _stamp(output: Path, step: Step) -> Path:
    return output / f"{step.name}.done"


def _advance(step: Step, output: Path, seconds: float) -> bool:
    """Runs a step for at most ``seconds``; returns whether it ended by itself, so that the next one may start."""
    folder = output / step.name
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *(word.replace("{output}", str(folder)) for word in step.command)]
    _tell(f"{step.name}: {seconds:.0f} s are left of this slice")
    with (output / f"{step.name}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            _tell(f"{step.name}: the slice is over; the same command goes on")
            return False
        except BaseException:
            _end(process)
            raise
    if code in step.finished:
        write_text(_stamp(output, step), f"exit code {code}\n")
        _tell(f"{step.name}: done")
    else:
        _tell(f"{step.name}: ended with exit code {code}, see {output / step.name}.log; it is tried again next time")
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts a step and its child processes, and kills them if they do not end."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(PATIENCE_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


def chosen(names: str) -> list[Step]:
    """The steps that are named, with commas, in the order of `STEPS`; all if none is named."""
    known = {step.name: step for step in STEPS}
    wanted = [name for name in names.split(",") if name]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"error: '{unknown[0]}' is no step; allowed: {', '.join(known)}")
    return [step for step in STEPS if not wanted or step.name in wanted]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a slice: 0 if nothing is missing, 1 if something is, 2 without an accelerator."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/accelerator"))
    parser.add_argument("--slice-s", type=float, default=540, help=f"seconds of a slice, at most {LONGEST_SLICE_S}")
    parser.add_argument("--only", default="", help=f"steps, with commas: {', '.join(step.name for step in STEPS)}")
    parser.add_argument("--any-device", action="store_true", help="run without an accelerator too")
    options = parser.parse_args(arguments)
    steps = chosen(options.only)
    if not 0 < options.slice_s <= LONGEST_SLICE_S:
        parser.error(f"--slice-s is {options.slice_s:g}; allowed: above 0, at most {LONGEST_SLICE_S}")
    if not options.any_device:
        import torch

        if not torch.cuda.is_available():
            _tell(f"error: {NO_DEVICE}")
            return 2
    missing = run_slice(steps, options.output, options.slice_s)
    _tell(f"missing: {', '.join(missing)}; start the same command again" if missing else "nothing is missing")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
