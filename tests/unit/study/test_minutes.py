"""A budget of minutes: which models of a study are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recurra.cli.main import main
from recurra.core.errors import RunError
from recurra.core.progress import Reporter
from recurra.core.record import read_record
from recurra.study import estimate
from recurra.study.spec import StudySpec
from recurra.study.status import within_minutes
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import model_name
from recurra.tasks.study_data import Machine, StudyData
from reviews import write_reviews

# Operations a second: made up, so that what is left out does not hang on the machine of the test.
SPEED = 1e9


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudySpec:
    def speed(config: RunConfig, mean_tokens: float, *, threads: int) -> float:
        return SPEED if config.model == "recurrent-tiny" else SPEED / 10

    monkeypatch.setattr(estimate, "training_speed", speed)
    values: dict[str, Any] = {
        "name": "timed",
        "data": [{"name": str(write_reviews(tmp_path / "reviews.csv", 200)), "tokenizer": "trained", "max_length": 32}],
        "models": [
            "linear",
            "recurrent-tiny",
            "baseline-tiny",
            {"name": "pupil", "preset": "recurrent-tiny", "teacher": "baseline-tiny"},
            {"name": "words", "preset": "linear-tuned", "teacher": "baseline-tiny"},
        ],
        "protocols": ["tuned"],
        "seeds": [0, 1],
        "prices": {"linear": 0.001, "baseline-tiny": 0.002},
    }
    return StudySpec.parse(values)


def test_the_dearest_are_left_out_and_their_pupils_with_them(spec: StudySpec, tmp_path: Path) -> None:
    output, data, quiet = (
        tmp_path / "out",
        StudyData(Machine(cache_dir=tmp_path / "cache", threads=1)),
        Reporter(quiet=True),
    )
    whole, said = within_minutes(spec, output, data, 1e6, workers=1, reporter=quiet)
    assert whole == spec and "left out" not in said and "recurrent-tiny" in said
    assert "linear" not in said
    counts = []
    for minutes in (1e6, 1e3, 10, 1, 0.3, 0.1, 0.03):
        kept, said = within_minutes(spec, output, data, minutes, workers=1, reporter=quiet)
        names = [model_name(model) for model in StudySpec.parse(kept.plain()).models]
        assert names[0] == "linear"
        assert "baseline-tiny" in names or not {"pupil", "words"} & {*names}
        assert ("left out for --minutes" in said) == (len(names) < 5)
        counts.append(len(names))
    assert counts == sorted(counts, reverse=True) and (counts[0], counts[-1]) == (5, 1)
    assert any(1 < count < 5 for count in counts)
    trained = spec.model_copy(update={"models": ("recurrent-tiny", "baseline-tiny")})
    with pytest.raises(RunError, match=r"no model can be trained within 0.03 minutes here: recurrent-tiny"):
        within_minutes(trained, output, data, 0.03, workers=1, reporter=quiet)


def test_without_time_for_training_folds_stay_and_the_small_rungs_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, file = tmp_path / "out", str(write_reviews(tmp_path / "few.csv", 60))
    asked = ["compare", file, "--from", "recurra-small", "--folds", "2", "--no-latency", "--output", str(output)]
    for budget in ("0", "-1", "nan", "inf"):
        assert main([*asked, "--minutes", budget]) == 2
        assert capsys.readouterr().err.splitlines() == [f"error: --minutes is {budget}; a budget is above 0"]
    assert not output.exists()
    assert main([*asked, "--minutes", "0.001", "--json"]) == 0
    said = capsys.readouterr()
    assert "left out for --minutes 0.001: recurra-small" in said.err
    records = [read_record(path.parent) for path in sorted(output.glob("runs/*/record.json"))]
    assert sorted(record.config["model"] for record in records) == [
        *["linear-tuned"] * 2,
        *["recurra-small-and-words"] * 2,
    ]


def test_one_split_comes_before_a_model_is_left_out(spec: StudySpec, tmp_path: Path) -> None:
    folded = spec.model_copy(update={"data": [spec.data[0].model_copy(update={"folds": 3})]})
    output, data, quiet = (
        tmp_path / "out",
        StudyData(Machine(cache_dir=tmp_path / "cache", threads=1)),
        Reporter(quiet=True),
    )
    kept, said = within_minutes(folded, output, data, 1e6, workers=1, reporter=quiet)
    assert kept == folded and "one split" not in said
    one, _ = within_minutes(spec, output, data, 1e6, workers=1, reporter=quiet)
    need = next(minutes for minutes in np.geomspace(0.01, 1e6, 60) if _all_of(one, output, data, float(minutes)))
    kept, said = within_minutes(folded, output, data, float(need), workers=1, reporter=quiet)
    assert said.startswith(f"one split instead of folds for --minutes {need:g}; ") and "left out" not in said
    assert kept.models == spec.models and [each.part for each in kept.data] == [""]


def _all_of(spec: StudySpec, output: Path, data: StudyData, minutes: float) -> bool:
    """Whether every model fits a budget."""
    kept, _ = within_minutes(spec, output, data, minutes, workers=1, reporter=Reporter(quiet=True))
    return kept.models == spec.models


def test_a_cost_that_cannot_be_known_is_said(spec: StudySpec, tmp_path: Path) -> None:
    gone = spec.model_copy(update={"data": [spec.data[0].model_copy(update={"name": "nowhere.csv"})]})
    with pytest.raises(RunError, match=r"--minutes 5 cannot be kept: the cost is not known: .*nowhere.csv"):
        data = StudyData(Machine(threads=1))
        within_minutes(gone, tmp_path / "out", data, 5, workers=1, reporter=Reporter(quiet=True))
