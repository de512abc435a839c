"""What a comparison says before its first run, and of each run as it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from factories import RunFactory
from recurra.core import progress
from recurra.core.progress import Reporter
from recurra.core.record import read_record
from recurra.reported_study import _headline
from recurra.study import estimate
from recurra.study.estimate import Expectation, RunCost, costs_of_pending, expect, training_flops
from recurra.study.executor import Outcome
from recurra.study.spec import StudySpec, expand
from recurra.study.workers import Workers
from recurra.tasks.study_data import Machine, StudyData
from reviews import write_reviews

SPEED = 1e9


def study(folder: Path, **values: Any) -> StudySpec:
    rows = {"name": str(write_reviews(folder / "reviews.csv", 200)), "tokenizer": "trained", "max_length": 32}
    plain = {"name": "s", "models": ["baseline-tiny", "linear", "recurrent-tiny"], "seeds": [0, 1]}
    return StudySpec.parse({**plain, "protocols": ["tuned"], "data": [rows], **values})


def test_each_model_has_its_time_the_cheapest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "training_speed", lambda config, mean_tokens, *, threads: SPEED)
    spec, machine = study(tmp_path), Machine(cache_dir=tmp_path / "cache", threads=1)
    costs = costs_of_pending(StudyData(machine), spec.plain(), str(tmp_path / "out"), 1)
    runs = expand(spec)
    assert set(costs) == {run.run_id for run in runs}
    expectation = Expectation(runs, {name: RunCost(**cost) for name, cost in costs.items()}, 1, 4.0)
    lines = expectation.lines()
    assert [line.split(":")[0].strip() for line in lines] == ["linear", "recurrent-tiny", "baseline-tiny", "together"]
    assert "MiB of memory or more" in lines[1] and "MiB" not in lines[0] and "2 runs of about" in lines[2]
    trained = {run.model: run for run in runs if not run.is_control}
    known = StudyData(machine)
    for run in trained.values():
        assert costs[run.run_id]["seconds"] == pytest.approx((training_flops(run, known) or 0.0) / SPEED)


def test_models_are_counted_as_they_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.0)
    with Workers(1, threads=1) as workers:
        expectation = expect(study(tmp_path), tmp_path / "out", Machine(), workers, Reporter())
    assert isinstance(expectation, Expectation)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("estimating")]
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    assert {line.split()[2] for line in lines} == {"baseline-tiny", "linear", "recurrent-tiny"}


def test_time_that_is_left_is_what_the_same_model_took_or_the_expected_at_the_pace_so_far(tmp_path: Path) -> None:
    spec = study(tmp_path)
    runs = {(run.model, run.seed): run for run in expand(spec)}
    seconds = {"linear": None, "baseline-tiny": 40.0, "recurrent-tiny": 20.0}
    costs = {run.run_id: RunCost(1.0, seconds[run.model], 988.2) for run in runs.values()}

    def expectation(workers: int) -> Expectation:
        return Expectation(list(runs.values()), costs, workers, 4.0)

    one = expectation(1)
    assert one.lines() == [
        "  linear: not known, 988 MiB of memory or more",
        "  recurrent-tiny: 2 runs of about 20 s, 988 MiB of memory or more",
        "  baseline-tiny: 2 runs of about 40 s, 988 MiB of memory or more",
        "  together: about 2 min, beside what is not known, one run at a time (estimated in 4.0 s)",
    ]
    assert expectation(2).left_s() == 60 and expectation(8).left_s() == 40

    def done(key: tuple[str, int], wall_s: float | None) -> Outcome:
        folder = RunFactory(tmp_path / f"{key}", rows={"train": 90, "validation": 60, "test": 80}).run("recurrent", 0.8)
        record = read_record(folder).model_copy(update={"wall_s": wall_s})
        return Outcome(runs[key], folder, None if wall_s is None else record)

    one.note(done(("recurrent-tiny", 0), 30.0))
    # Ten seconds more, or half as long again: the smaller.
    assert one.left_s() == 30 + 2 * 50
    one.note(done(("baseline-tiny", 0), None))
    assert one.left_s() == 30 + 50 and "80 s" in one.lines()[-1]
    one.note(done(("recurrent-tiny", 1), 1e6))
    assert one.left_s() == 3 * 40
    # Of the linear model nothing is known.
    assert one.note(done(("baseline-tiny", 1), 50.0)) == ""


def test_what_cannot_be_known_is_said_and_stops_nothing(tmp_path: Path) -> None:
    with Workers(0, threads=1) as workers:
        said = expect(
            study(tmp_path, models=["minilm-of-nobody.yaml"]),
            tmp_path / "out",
            Machine(),
            workers,
            Reporter(quiet=True),
        )
    assert isinstance(said, str) and said.startswith("the time is not known: ") and "minilm-of-nobody.yaml" in said


def test_a_run_says_the_figure_that_the_study_is_judged_by(tmp_path: Path) -> None:
    folder = RunFactory(tmp_path, rows={"train": 90, "validation": 60, "test": 80}).run("recurrent", 0.8)
    record = read_record(folder)
    outcome = Outcome(expand(study(tmp_path))[1], folder, record)
    assert _headline(study(tmp_path), outcome).startswith(f"accuracy {record.metrics['test'].accuracy:.4f} on test, ")
    asked = study(tmp_path, measure="balanced_accuracy")
    assert _headline(asked, outcome).startswith("balanced accuracy 0.")
    assert _headline(asked, Outcome(outcome.config, folder, None, "out of memory")) == "failed: out of memory"
