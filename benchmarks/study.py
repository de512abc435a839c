"""A study's own cost: planning 10,000 runs, and how busy a plan of 8 small runs keeps the cores.

The share of the cores is counted from the kernel's statistics of each of its threads: the time that it ran and the
time that it waited for a core. On a machine with other work the second is the fair figure: a core that the study wanted
and did not get was not idle.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.measures import Measure, Setting
from benchmarks.report import made_up_data, made_up_record
from recurra.core.configuration import write_yaml
from recurra.core.environment import available_cores
from recurra.core.progress import Reporter
from recurra.core.record import write_record
from recurra.evaluation.metrics import evaluate_logits
from recurra.study.plan import plan_study, run_folder
from recurra.study.spec import StudySpec, expand
from recurra.study.status import plan_with_cost
from recurra.tasks.study_data import Machine, StudyData

EVERY_S = 0.25
NANOSECONDS = 1e9


def measure(setting: Setting) -> list[Measure]:
    """Measures both."""
    with tempfile.TemporaryDirectory(prefix="recurra-study-") as folder:
        return [*_planning(Path(folder), setting), *_occupation(Path(folder), setting)]


def _planning(folder: Path, setting: Setting) -> list[Measure]:
    data = [{"name": "demo", "tokenizer": "trained", "fraction": part / 10} for part in range(1, 6)]
    models = ["linear", "baseline-tiny", "recurrent-tiny", "stacked-narrow", "stacked-shallow", "recurrent"]
    seeds = list(range(setting.sized(200, 1)))
    values = {"name": "many", "data": data, "models": models, "protocols": ["paper", "tuned"], "seeds": seeds}
    spec, machine = StudySpec.parse(values), Machine(cache_dir=folder / "cache")
    empty, full = folder / "empty", folder / "full"
    # Planning looks only at a record's identity and at whether it is whole.
    metrics, rng = evaluate_logits(np.zeros((2, 2), dtype=np.float32), np.arange(2)), np.random.default_rng(0)
    for config in expand(spec):
        with mock.patch("os.fsync"):
            write_record(run_folder(full, config), made_up_record(config, made_up_data(config.data), metrics, 0, rng))
    runs = len(expand(spec))
    # The first look at the data tokenises them.
    plan_with_cost(spec, full, StudyData(machine), reporter=Reporter(quiet=True))
    figures = {
        f"planning {runs:,} runs, none begun": _seconds(lambda: plan_study(spec, empty)),
        f"planning {runs:,} runs, all done": _seconds(lambda: plan_study(spec, full)),
        "the same, with their costs": _seconds(
            lambda: plan_with_cost(spec, full, StudyData(machine), reporter=Reporter(quiet=True))
        ),
    }
    return [
        Measure(
            part="study",
            title=title,
            preset="",
            ours_name="on the clock",
            ours=wall_s,
            other_name="of the processor",
            other=processor_s,
            unit="s",
            result=wall_s,
            result_unit="s",
            target=2.0,
            at_most=True,
        )
        for title, (wall_s, processor_s) in figures.items()
    ]


def _seconds(work: Callable[[], object], repeats: int = 3) -> tuple[float, float]:
    """The shortest time of several: on the clock and of the processor."""
    walls, processors = [], []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return min(walls), min(processors)


def _occupation(folder: Path, setting: Setting) -> list[Measure]:
    """Runs 8 small runs as a user would and counts what the cores did meanwhile."""
    data = {"name": "demo", "tokenizer": "trained", "max_length": 64, "trained_vocab_size": 2000}
    values = {
        "name": "eight",
        "data": [{**data, "fraction": 0.1 if setting.quick else 1.0}],
        "models": ["baseline-tiny", "recurrent-tiny"],
        "protocols": ["tuned"],
        "protocol_overrides": [f"max_epochs={setting.sized(2, 1)}"],
        "seeds": list(range(setting.sized(4, 1))),
    }
    study = folder / "eight.yaml"
    study.write_text(write_yaml(values), encoding="utf-8")
    cores = min(2, available_cores())
    command = [sys.executable, "-m", "recurra", "study", "run", str(study), "--output", str(folder / "eight")]
    # Timing uses one process on purpose. Without it the figure is about the runs.
    wall_s, ran_s, wanted_s = _follow([*command, "--no-latency", "--workers", str(cores), "--quiet", "--json"], cores)
    return [
        Measure(
            part="study",
            title=f"share of {cores} cores that 8 small runs and their report wanted",
            preset="",
            ours_name="wanted",
            ours=100 * wanted_s / (wall_s * cores),
            other_name="had",
            other=100 * ran_s / (wall_s * cores),
            unit="%",
            result=100 * wanted_s / (wall_s * cores),
            result_unit="%",
            target=85.0,
        )
    ]


def _follow(command: list[str], cores: int) -> tuple[float, float, float]:
    """Runs a command; returns wall seconds, core seconds that it had, and core seconds that it had or waited for."""
    start = time.monotonic()
    before = dict[str, tuple[int, int]]()
    ran_s = wanted_s = 0.0
    last = start
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(EVERY_S)
            now, threads = time.monotonic(), dict(_threads(process.pid))
            ran = sum(values[0] - before.get(name, (0, 0))[0] for name, values in threads.items()) / NANOSECONDS
            waited = sum(values[1] - before.get(name, (0, 0))[1] for name, values in threads.items()) / NANOSECONDS
            ran_s += ran
            # More threads than cores want no more than the cores.
            wanted_s += min((now - last) * cores, ran + waited)
            last, before = now, threads
    # An audit that fails (3) is no failure of the study.
    if process.returncode not in (0, 3):
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return time.monotonic() - start, ran_s, wanted_s


def _threads(root: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Nanoseconds run and waited of every thread of a process and of those below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            except OSError:
                continue
            children.setdefault(int(parent), []).append(int(entry.name))
    family = [root]
    for pid in family:
        family += children.get(pid, [])
        try:
            threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - may vanish meanwhile
        except OSError:
            continue
        for thread in threads:
            try:
                ran, waited, _ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="ascii").split()
            except (OSError, ValueError):
                continue
            yield f"{pid}/{thread}", (int(ran), int(waited))
