"""Runs side by side: one that fails does not stop the others, and every failure has its reason.

The worker is a stand-in that does what its seed says, so that no test here trains anything.
"""

from __future__ import annotations

import stat
import sys
import time
from pathlib import Path

import pytest

from factories import finish
from recurra.core.progress import Reporter
from recurra.data.configuration import DataConfig
from recurra.models.names import PRESETS
from recurra.study.executor import LocalExecutor, Outcome, choose_next, rough_weight, threads_of
from recurra.study.plan import look_at, run_folder
from recurra.study.workers import Workers
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine
from recurra.training.protocols import PROTOCOLS

DONE, REFUSED, KILLED, SILENT, LIES, SLOW = range(6)

WORKER = """#!{python}
import json, os, pathlib, shutil, signal, sys, time, yaml
assert sys.argv[1:4] == ["-m", "recurra.study.worker", "serve"], sys.argv
for line in sys.stdin:
    function, machine, (folder,) = json.loads(line)
    folder, machine = pathlib.Path(folder), json.loads(machine)
    seed = yaml.safe_load((folder / "config.yaml").read_text())["seed"]
    template = pathlib.Path({template!r})
    threads = os.environ["OMP_NUM_THREADS"]
    print("working on", seed, "with", machine["threads"], "threads,", threads, flush=True)
    code = 0
    if seed == {SLOW}:
        (template.parent / "started").touch()
        time.sleep(100)
    elif seed == {REFUSED}:
        error = {{"error": "the file has no column 'text'", "kind": "DataError", "code": 2}}
        (folder / "error.json").write_text(json.dumps(error))
        code = 2
    elif seed == {KILLED}:
        os.kill(os.getpid(), signal.SIGKILL)
    elif seed == {SILENT}:
        sys.exit(5)
    elif seed != {LIES}:
        shutil.copy(template.parent / f"{{seed}}.json", folder / "record.json")
    print("\\n\\x1e" + json.dumps({{"code": code, "reusable": True}}), flush=True)
"""


def config(seed: int) -> RunConfig:
    return make_run("baseline", DataConfig(name="demo"), PROTOCOLS["paper"], seed=seed, precision="fp32")


def make_worker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a stand-in in the interpreter's place; it copies records that are prepared here."""
    for seed in (DONE, 9):
        (finish(folder / "made", config(seed)) / "record.json").rename(folder / f"{seed}.json")
    names = {"DONE": DONE, "REFUSED": REFUSED, "KILLED": KILLED, "SILENT": SILENT, "LIES": LIES, "SLOW": SLOW}
    script = folder / "python"
    script.write_text(WORKER.format(python=sys.executable, template=str(folder / "0.json"), **names), encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("recurra.study.workers.sys.executable", str(script))


def execute(output: Path, seeds: list[int], *, workers: int = 2, machine: Machine | None = None) -> dict[int, Outcome]:
    with Workers(workers, threads=1) as pool:
        executor = LocalExecutor(output, machine or Machine(threads=1), pool, reporter=Reporter(quiet=True))
        outcomes = executor.execute([config(seed) for seed in seeds])
    assert sorted(outcome.config.seed for outcome in outcomes) == sorted(seeds)
    return {outcome.config.seed: outcome for outcome in outcomes}


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_worker(tmp_path, monkeypatch)
    output = tmp_path / "study"
    taken = run_folder(output, config(8))
    taken.mkdir(parents=True)
    (taken / "thesis.tex").touch()
    outcomes = execute(output, [8, REFUSED, KILLED, SILENT, LIES, DONE, 9])
    assert {seed for seed, outcome in outcomes.items() if outcome.record is not None} == {DONE, 9}
    assert outcomes[REFUSED].error == "the file has no column 'text'"
    assert outcomes[REFUSED].exit_code == 2
    assert "killed by signal 9: working on 2" in str(outcomes[KILLED].error)
    assert "exit code 5" in str(outcomes[SILENT].error) and outcomes[SILENT].exit_code == 5
    assert outcomes[LIES].exit_code == 1
    assert "is not empty and not a run folder of ours" in str(outcomes[8].error) and outcomes[8].exit_code == 2
    for seed in (KILLED, SILENT):
        log = run_folder(output, config(seed)) / "log.txt"
        assert str(log) in str(outcomes[seed].error)
        assert f"working on {seed}" in log.read_text(encoding="utf-8")
    for seed in (REFUSED, KILLED, SILENT, LIES):
        found = look_at(output, config(seed))
        assert (found.state, found.reason) == ("failed", outcomes[seed].error), seed


def test_only_a_record_of_this_very_configuration_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_worker(tmp_path, monkeypatch)
    output = tmp_path / "study"
    execute(output, [9])
    assert look_at(output, config(9)).state == "done"
    assert look_at(output, config(10)).state == "to do"
    run_folder(output, config(9)).rename(run_folder(output, config(10)))
    assert look_at(output, config(10)).state == "interrupted"


def test_an_interruption_stops_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_worker(tmp_path, monkeypatch)

    def interrupt(_: Outcome) -> str:
        deadline = time.monotonic() + 30
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        raise KeyboardInterrupt

    output = tmp_path / "study"
    with Workers(2, threads=1) as pool:
        executor = LocalExecutor(output, Machine(threads=1), pool, reporter=Reporter(quiet=True), tell=interrupt)
        with pytest.raises(KeyboardInterrupt):
            executor.execute([config(DONE), config(SLOW)])
    # Ended by us: that is no failure.
    assert look_at(output, config(SLOW)).state == "interrupted"


def test_the_cores_are_shared_out() -> None:
    cases = [(0, 4, 2), (3, 1, 3), (0, 16, 1)]
    assert [threads_of(Machine(threads=threads), 8, workers).threads for threads, workers, _ in cases] == [
        wanted for _, _, wanted in cases
    ]


def test_runs_begin_in_the_plan_s_order_and_the_last_few_by_length() -> None:
    def run(model: str, seed: int) -> RunConfig:
        return make_run(model, DataConfig(name="demo"), PROTOCOLS["paper"], seed=seed, precision="fp32")

    def ends(queue: list[RunConfig], workers: int) -> list[float]:
        """When each worker ends, if a run takes as long as its weight."""
        free = [0.0] * workers
        while queue:
            worker = free.index(min(free))
            free[worker] += rough_weight(queue.pop(choose_next(queue, workers)))
        return free

    plan = [run(model, seed) for seed in range(4) for model in ("recurrent", "baseline")]
    assert [choose_next(plan, workers) for workers in (1, 2, 3)] == [0, 0, 0]
    assert choose_next(plan[:4], 2) == 1
    assert choose_next([run("linear", 0), *plan[:1]], 2) == 1
    total = sum(map(rough_weight, plan))
    longest = max(ends(list(plan), 2))
    assert total / (2 * longest) > 0.9
    assert (
        rough_weight(run("baseline", 0))
        == 2.25 * rough_weight(run("recurrent", 0))
        > 0
        == rough_weight(run("linear", 0))
    )


@pytest.mark.parametrize("model", PRESETS)
def test_every_preset_has_a_weight(model: str) -> None:
    config = make_run(model, DataConfig(name="demo"), PROTOCOLS["paper"], seed=0, precision="fp32")
    half = config.model_copy(update={"data": config.data.model_copy(update={"fraction": 0.5})})
    assert rough_weight(config) == 2 * rough_weight(half) > 0
