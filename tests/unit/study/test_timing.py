"""Timing side by side: what one model stands for."""

from __future__ import annotations

from pathlib import Path

from recurra.core.files import read_json
from recurra.core.progress import Reporter
from recurra.study.run import execute_run
from recurra.study.spec import StudySpec, expand
from recurra.study.timing import time_all
from recurra.tasks.study_data import Machine, StudyData


def test_models_that_read_other_lengths_of_the_same_texts_are_timed_apart(tmp_path: Path) -> None:
    data = [{"name": "demo", "tokenizer": "trained", "max_length": length} for length in (32, 64)]
    runs = expand(StudySpec.parse({"name": "lengths", "data": data, "models": ["linear"]}))
    known = StudyData(Machine(cache_dir=tmp_path / "cache", threads=1, latency=False))
    for run in runs:
        execute_run(known, tmp_path / "runs" / run.run_id, run, reporter=Reporter(quiet=True))
    time_all(known, str(tmp_path), {"runs": [run.run_id for run in runs], "exports": []})
    short, long = read_json(tmp_path / "latency.json")["runs"].values()
    assert short != long
