"""What a comparison says before its first run, and of each run as it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from factories import RunFactory
from recurra.core.record import read_record
from recurra.reported_study import _headline
from recurra.study import expectation
from recurra.study.cost import CostBook
from recurra.study.executor import Outcome
from recurra.study.expectation import Expectation, Expected, expect, measure
from recurra.study.spec import StudySpec, expand
from recurra.study.workers import Workers
from recurra.tasks.machine import Machine
from recurra.tasks.runs import RunConfig
from reviews import write_reviews

SPEED = 1e9


def study(folder: Path, **values: Any) -> StudySpec:
    rows = {"name": str(write_reviews(folder / "reviews.csv", 200)), "tokenizer": "trained", "max_length": 32}
    plain = {"name": "s", "models": ["baseline-tiny", "linear", "recurrent-tiny"], "seeds": [0, 1]}
    return StudySpec.parse({**plain, "protocols": ["tuned"], "data": [rows], **values})


def test_each_model_has_its_time_the_cheapest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def speed(config: RunConfig, mean_tokens: float, *, threads: int, seconds: float, steps: int) -> float:
        assert (threads, seconds, steps) == (1, 0.0, 2)
        return SPEED

    monkeypatch.setattr(expectation, "training_speed", speed)
    spec, machine = study(tmp_path), Machine(cache_dir=tmp_path / "cache", threads=1)
    found = Expectation.parse(measure(spec.plain(), str(tmp_path / "out"), machine.to_json(), 2), 1.0)
    assert [(each.model, each.runs) for each in found.models] == [
        ("linear", 1), ("recurrent-tiny", 2), ("baseline-tiny", 2)
    ]  # fmt: skip
    assert [each.memory_mib is None for each in found.models] == [True, False, False]
    book, runs = CostBook(machine), {run.model: run for run in expand(spec)}
    trained = [runs[name] for name in ("recurrent-tiny", "baseline-tiny")]
    # What a process does before it trains is the same for both.
    before = [found.seconds[run.run_id] - (book.training_flops(run) or 0.0) / SPEED for run in trained]
    assert before[0] == pytest.approx(before[1]) and before[0] > 0
    assert len(found.seconds) == len(expand(spec))


def test_time_that_is_left_is_that_of_the_others_at_the_pace_so_far() -> None:
    found = Expectation([], {"a": 10.0, "b": 20.0, "c": 40.0}, 1, 0.0)
    assert found.left_s(["b", "c"]) == 60
    assert found.pace(["a"], 15.0) == 1.5
    assert found.pace(["a"], 1e6) == 3.0
    assert found.pace(["a", "unknown"], 50.0) == 1.0
    # A student waits for all that learn from nobody, also where there is a process free.
    chained = Expectation([], found.seconds, 2, 0.0, ["b"])
    assert chained.left_s(["a", "b", "c"]) == 40 + 20 and chained.left_s(["b"]) == 20 and chained.left_s([]) == 0
    together = Expectation([], found.seconds, 2, 0.0)
    assert together.left_s(["a", "b", "c"]) == 40
    assert together.left_s(["a", "b"]) == 20
    assert together.pace(["a"], 15.0) == 1.0


def test_lines_say_what_is_not_known() -> None:
    models = [Expected("linear", 1, None, None), Expected("minilm", 3, 71.0, 988.2)]
    assert Expectation(models, {f"m{seed}": 71.0 for seed in range(3)}, 1, 4.0).lines() == [
        "  linear: not known",
        "  minilm: 3 runs of about 71 s, 988 MiB of memory or more",
        "  together: about 4 min, beside what is not known, one run at a time (estimated in 4.0 s)",
    ]


def test_what_cannot_be_known_is_said_and_stops_nothing(tmp_path: Path) -> None:
    with Workers(0, threads=1) as workers:
        said = expect(study(tmp_path, models=["minilm-of-nobody.yaml"]), tmp_path / "out", Machine(), workers)
    assert isinstance(said, str) and said.startswith("the time is not known: ") and "minilm-of-nobody.yaml" in said


def test_a_run_says_the_figure_that_the_study_is_judged_by(tmp_path: Path) -> None:
    folder = RunFactory(tmp_path, rows={"train": 90, "validation": 60, "test": 80}).run("recurrent", 0.8)
    record = read_record(folder)
    outcome = Outcome(expand(study(tmp_path))[1], folder, record)
    assert _headline(study(tmp_path), outcome).startswith(f"accuracy {record.metrics['test'].accuracy:.4f} on test, ")
    asked = study(tmp_path, measure="balanced_accuracy")
    assert _headline(asked, outcome).startswith("balanced accuracy 0.")
    assert _headline(asked, Outcome(outcome.config, folder, None, "out of memory")) == "failed: out of memory"
