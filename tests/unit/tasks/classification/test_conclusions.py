"""What a report says of the recommended model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from factories import RunFactory
from recurra.tasks.classification.conclusions import advise
from recurra.tasks.questions import Limits
from rendered import summarise_folders


def test_a_faster_model_is_named_although_its_name_is_part_of_a_smaller_ones(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows={"train": 90, "validation": 60, "test": 400})
    scores = {"baseline": 0.95, "recurrent-wide": 0.8, "recurrent": 0.65}
    (table,) = summarise_folders([factory.run(name, accuracy) for name, accuracy in scores.items()]).tables
    models = [
        replace(model, latency={"1": model.latency["1"].model_copy(update={"median_ms": 1.0})})
        if model.label == "recurrent"
        else model
        for model in table.models
    ]
    recommended, _ = advise(replace(table, models=models), Limits())
    assert recommended.choice == "baseline"
    changes = dict(recommended.details)["What would change this"]
    assert "If it must be smaller, take recurrent-wide" in changes
    assert "If it must be faster, take recurrent (1 ms a text)" in changes
