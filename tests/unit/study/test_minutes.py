"""A budget of minutes: which models of a study are left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from factories import finish
from recurra.core.errors import RunError
from recurra.core.progress import Reporter
from recurra.study import estimate
from recurra.study.spec import StudySpec, expand
from recurra.study.status import plan_with_cost, within_minutes
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


def within(spec: StudySpec, folder: Path, minutes: float) -> tuple[StudySpec, str]:
    data = StudyData(Machine(cache_dir=folder / "cache", threads=1))
    return within_minutes(spec, folder / "out", data, minutes, workers=1, reporter=Reporter(quiet=True))


def seconds(spec: StudySpec, folder: Path) -> float:
    """What all runs take together."""
    known, silent = StudyData(Machine(cache_dir=folder / "cache", threads=1)), Reporter(quiet=True)
    view = plan_with_cost(spec, folder / "out", known, workers=1, calibrated=True, reporter=silent)
    found = view.cost and view.cost.seconds(view.runs)
    assert found is not None
    return found


def test_the_dearest_are_left_out_and_their_pupils_with_them(spec: StudySpec, tmp_path: Path) -> None:
    whole, said = within(spec, tmp_path, 1e6)
    assert whole == spec and "left out" not in said and "recurrent-tiny" in said
    assert "linear" not in said
    counts = []
    for minutes in (1e6, 10, 1, 0.3, 0.03):
        kept, said = within(spec, tmp_path, minutes)
        names = [model_name(model) for model in StudySpec.parse(kept.plain()).models]
        assert names[0] == "linear"
        assert "baseline-tiny" in names or not {"pupil", "words"} & {*names}
        assert ("left out for --minutes" in said) == (len(names) < 5)
        counts.append(len(names))
    assert counts == sorted(counts, reverse=True) and (counts[0], counts[-1]) == (5, 1)
    assert any(1 < count < 5 for count in counts)
    trained = spec.model_copy(update={"models": ("recurrent-tiny", "baseline-tiny")})
    with pytest.raises(RunError, match=r"no model can be trained within 0.03 minutes here: recurrent-tiny"):
        within(trained, tmp_path, 0.03)


def test_without_time_for_training_folds_stay_and_the_small_rungs_answer(
    spec: StudySpec, tmp_path: Path, refused: Callable[..., str]
) -> None:
    words = ["compare", tmp_path / "reviews.csv", "--from", "recurra-small", "--output", tmp_path / "out"]
    for budget in ("0", "-1", "nan", "inf"):
        said = refused(*words, "--minutes", budget)
        assert said == f"error: --minutes is {budget}; a budget is a finite number above 0\n"
    data, small = [spec.data[0].model_copy(update={"folds": 2})], ["linear-tuned", "recurra-small-and-words"]
    changes = {"data": data, "models": [*small, "recurra-small"], "seeds": [0], "prices": {}}
    kept, said = within(spec.model_copy(update=changes), tmp_path, 0.001)
    assert "left out for --minutes 0.001: recurra-small" in said
    assert (list(kept.models), list(kept.data)) == (small, data)


def test_one_split_comes_before_a_model_is_left_out(spec: StudySpec, tmp_path: Path) -> None:
    folded = spec.model_copy(update={"data": [spec.data[0].model_copy(update={"folds": 3})]})
    kept, said = within(folded, tmp_path, 1e6)
    assert kept == folded and "one split" not in said
    need = 1.01 * seconds(spec, tmp_path) / 60
    kept, said = within(folded, tmp_path, need)
    assert said.startswith(f"one split instead of folds for --minutes {need:g}; ") and "left out" not in said
    assert kept.models == spec.models and [each.part for each in kept.data] == [""]


@pytest.mark.parametrize("folds", [None, 3])
def test_what_was_begun_counts_and_stays(spec: StudySpec, tmp_path: Path, folds: int | None) -> None:
    data = [spec.data[0].model_copy(update={"folds": folds})]
    names = ["recurrent-tiny", "baseline-tiny"]
    spec = spec.model_copy(update={"models": names, "data": data, "seeds": [0], "prices": {}})
    total = seconds(spec, tmp_path)
    first = next(run for run in expand(spec) if run.model == names[0])
    for took, minutes, models in ((1.0, 1.01 * total / 60, names), (total, 0.99 * total / 60, names[:1])):
        finish(tmp_path / "out", first, epochs=first.protocol.max_epochs, values={"wall_s": took})
        kept, said = within(spec, tmp_path, minutes)
        assert (kept.models, kept.data) == (models, data) and f"{names[0]} " in said


def test_a_run_that_stopped_early_counts_with_the_time_that_it_took(spec: StudySpec, tmp_path: Path) -> None:
    spec = spec.model_copy(update={"models": ["recurrent-tiny"], "seeds": [0], "prices": {}})
    (run,) = expand(spec)
    finish(tmp_path / "out", run, epochs=1, values={"wall_s": 30.0})
    assert within(spec, tmp_path, 1)[1] == "about 30 s of training (recurrent-tiny 30 s)"


def test_a_cost_that_cannot_be_known_is_said(spec: StudySpec, tmp_path: Path) -> None:
    gone = spec.model_copy(update={"data": [spec.data[0].model_copy(update={"name": "nowhere.csv"})]})
    with pytest.raises(RunError, match=r"--minutes 5 cannot be kept: the cost is not known: .*nowhere.csv"):
        within(gone, tmp_path, 5)
