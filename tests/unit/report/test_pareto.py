"""The Pareto front, against its definition."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as some

from factories import RunFactory
from recurra.report.summary import pareto_front
from rendered import summarise_runs

# Few different values, so that ties are common.
VALUES = some.lists(some.tuples(some.integers(0, 4), some.integers(0, 4)), max_size=9)


@given(VALUES)
def test_the_front_holds_exactly_what_nothing_dominates(values: list[tuple[int, int]]) -> None:
    accuracy = {f"m{index}": float(value[0]) for index, value in enumerate(values)}
    cost = {f"m{index}": float(value[1]) for index, value in enumerate(values)}

    def dominated(name: str) -> bool:
        return any(
            accuracy[other] >= accuracy[name]
            and cost[other] <= cost[name]
            and (accuracy[other] > accuracy[name] or cost[other] < cost[name])
            for other in accuracy
        )

    front = pareto_front(accuracy, cost)
    assert sorted(front) == sorted(name for name in accuracy if not dominated(name))
    assert [cost[name] for name in front] == sorted(cost[name] for name in front)


def test_a_model_without_a_cost_is_not_considered() -> None:
    assert pareto_front({"a": 0.9, "b": 0.8}, {"b": 3.0}) == ["b"]
    assert pareto_front({}, {}) == []


def test_models_of_a_table_know_their_fronts(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows={"train": 900, "validation": 300, "test": 400})
    folders = [
        factory.run("linear", 0.7),
        factory.run("baseline", 0.95),
        factory.run("recurrent", 0.85),
        factory.run("stacked-narrow", 0.75),
    ]
    (table,) = summarise_runs(folders)["tables"]
    fronts = {model["label"]: model["fronts"] for model in table["models"]}
    every = ["latency 1", "latency 32", "size"]
    assert fronts == {"linear": every, "baseline": every, "recurrent": every, "stacked-narrow": []}
    untimed = factory.run("recurrent", 0.85, latency=False, run_id="x")
    assert summarise_runs([untimed])["tables"][0]["models"][0]["fronts"] == ["size"]
