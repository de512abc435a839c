"""What a plan costs, what a comparison says of time before its first run and as runs come, and a budget of minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from factories import RunFactory, finish
from language_runs import language_run
from recurra.core.configuration import write_yaml
from recurra.core.errors import DataError, RunError
from recurra.core.progress import Reporter
from recurra.core.record import read_record, write_record
from recurra.data.corpora import load_dataset
from recurra.data.language.corpora import load_language_dataset
from recurra.data.language.tokenization import encode_for, load_language_tokenizer, make_samples
from recurra.data.tokenization import load_tokenizer
from recurra.models.presets import forward_flops, language_flops, preset
from recurra.study import estimate
from recurra.study.estimate import (
    Expectation,
    RunCost,
    cost_plan,
    costs_of_runs,
    data_cost,
    expect,
    training_flops,
    training_speed,
)
from recurra.study.plan import PlannedRun, plan_study, run_folder
from recurra.study.spec import StudySpec, expand
from recurra.study.status import plan_with_cost, within_minutes
from recurra.tasks.base import DataCost
from recurra.tasks.classification.task import ClassificationTask
from recurra.tasks.language.data import language_configuration
from recurra.tasks.runs import model_name
from recurra.tasks.study_data import Machine, StudyData
from reviews import Command, write_reviews, write_tiny_model
from small_study import Inline


def study(folder: Path, **values: Any) -> StudySpec:
    data, model = folder / "reviews.csv", folder / "tiny.yaml"
    if not data.exists():
        write_reviews(data, 200)
        write_tiny_model(model)
    plain = {"name": "s", "models": ["linear", str(model)], "seeds": [0, 1], "protocols": ["paper"]}
    rows = {"name": str(data), "tokenizer": "trained", "trained_vocab_size": 200, "max_length": 24}
    return StudySpec.parse({**plain, "data": [rows], **values})


@pytest.fixture
def known(tmp_path: Path) -> StudyData:
    return StudyData(Machine(cache_dir=tmp_path / "cache", threads=1))


def test_operations_are_those_of_every_row_at_its_own_length(tmp_path: Path, known: StudyData) -> None:
    linear, run, *_ = expand(study(tmp_path))
    dataset = load_dataset(run.data)
    tokenizer = load_tokenizer(run.data, dataset, None)
    shape = preset("recurrent", **run.model_overrides)
    lengths = [min(24, len(tokenizer(text)["input_ids"])) for text in dataset.splits["train"].texts]
    assert len(set(lengths)) > 1
    wanted = 3 * sum(forward_flops(shape, length) for length in lengths) * run.protocol.max_epochs
    assert training_flops(run, known) == wanted
    assert training_flops(run, known, epochs=2) == wanted / run.protocol.max_epochs * 2
    cost = data_cost(run, known)
    assert sum(cost.lengths.values()) == len(lengths) and cost.mean_length == sum(lengths) / len(lengths)
    assert training_flops(linear, known) is None


def test_auxiliary_rows_cost_as_often_as_they_are_passed_over(
    tmp_path: Path, known: StudyData, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = DataCost(["a", "b"], {9: 4}, auxiliary_lengths={5: 3})
    monkeypatch.setattr(ClassificationTask, "data_cost", lambda *_: cost)
    (run,) = expand(study(tmp_path, models=["recurrent"], seeds=[0]))
    protocol = run.protocol.model_copy(update={"max_epochs": 2, "auxiliary_epochs": 7})
    one = {length: 3 * forward_flops(preset("recurrent"), length) for length in (5, 9)}
    found = training_flops(run.model_copy(update={"protocol": protocol}), known)
    assert found == 2 * 4 * one[9] + 7 * 3 * one[5]


@pytest.mark.parametrize("mode", ["packed", "lines"])
def test_a_training_costs_three_forward_passes_over_every_sample(mode: str, tmp_path: Path, known: StudyData) -> None:
    run = language_run(tmp_path, mode=mode)
    run = run.model_copy(update={"data": run.data.model_copy(update={"context": 32})})
    dataset = load_language_dataset(run.data)
    tokenizer = load_language_tokenizer(run.data, dataset, None)
    encoded = encode_for(dataset.splits["train"], run.data, tokenizer, tmp_path / "own")
    samples = make_samples(encoded, run.data)
    shape = language_configuration(run, len(tokenizer), tokenizer.eos_token_id)
    forward = sum(language_flops(shape, len(row["input_ids"]), with_exits=True) for row in samples)
    assert training_flops(run, known, 1) == pytest.approx(3 * forward)
    assert training_flops(run, known) == pytest.approx(3 * forward * run.protocol.max_epochs)
    assert (len({len(row["input_ids"]) for row in samples}) == 1) == (mode == "packed")


def test_seconds_come_from_the_records_of_the_study(tmp_path: Path, known: StudyData) -> None:
    spec, output = study(tmp_path), tmp_path / "out"
    linear, tiny, other = expand(spec)
    finish(output, linear, values={"wall_s": 7.0})
    finish(output, tiny, epochs=2, values={"wall_s": 50.0})
    found = cost_plan(plan_study(spec, output), known)
    assert found.runs[linear.run_id].seconds == 7.0
    # Two epochs took 50 s, and the run may take five.
    assert found.runs[other.run_id].seconds == pytest.approx(125.0)
    assert found.basis == ["linear: from 1 of its own records here", "tiny: from 1 of its own records here"]
    pending = [run for run in plan_study(spec, output) if run.state != "done"]
    assert found.seconds(pending) == pytest.approx(125.0)


def test_a_model_without_a_record_is_calibrated_or_takes_the_others_rate(tmp_path: Path, known: StudyData) -> None:
    write_tiny_model(tmp_path / "second.yaml")
    spec = study(tmp_path, models=[str(tmp_path / "tiny.yaml"), str(tmp_path / "second.yaml")])
    output = tmp_path / "out"
    first, second, *_ = expand(spec)
    nothing = cost_plan(plan_study(spec, output), known)
    assert nothing.seconds(plan_study(spec, output)) is None and "--calibrate" in nothing.basis[0]
    flops = training_flops(first, known)
    assert flops is not None
    measured = cost_plan(plan_study(spec, output), known, lambda config: (flops / 10, None))
    assert measured.runs[second.run_id].seconds == pytest.approx(10.0) and "calibrated" in measured.basis[1]
    finish(output, first, epochs=5, values={"wall_s": 20.0})
    others = cost_plan(plan_study(spec, output), known)
    assert others.runs[second.run_id].seconds == pytest.approx(20.0)
    assert "at the rate of the other models' records" in others.basis[1]


def test_a_calibration_is_a_plausible_rate(tmp_path: Path) -> None:
    for run in (expand(study(tmp_path))[1], language_run(tmp_path)):
        assert 1e6 < training_speed(run, 12.4, threads=1) < 1e14


def test_a_plan_shows_its_cost_and_starts_nothing(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, output, file = study(tmp_path), tmp_path / "out", tmp_path / "s.yaml"
    file.write_text(write_yaml(spec.plain()), encoding="utf-8")
    finish(output, expand(spec)[1], epochs=5, values={"wall_s": 3600.0})
    words = ["study", "plan", file, "--output", output, "--cache-dir", tmp_path / "cache"]
    plan = command(*words, "--workers", 1, "--json").json
    assert [run["state"] for run in plan["runs"]] == ["to do", "done", "to do"]
    assert plan["runs"][2]["training_flops"] == plan["remaining_flops"] == plan["training_flops"] / 2
    assert plan["runs"][2]["seconds"] == plan["remaining_s"] == pytest.approx(3600.0)
    table = command(*words).out
    assert "60 min" in table and "time of tiny: from 1 of its own records here" in table
    assert [path.name for path in (output / "runs").iterdir()] == [run_folder(output, expand(spec)[1]).name]

    def refuse(*_: Any) -> DataCost:
        raise DataError("the data are elsewhere")

    monkeypatch.setattr(ClassificationTask, "data_cost", refuse)
    assert "the cost is not known: the data are elsewhere" in command(*words).out


# What a comparison says. Operations a second are made up: what is left out does not hang on the machine of the test.
SPEEDS = {"recurrent-tiny": 1e9, "baseline-tiny": 1e8}
SMALL = {"models": ["baseline-tiny", "linear", "recurrent-tiny"], "protocols": ["tuned"]}


@pytest.fixture
def _speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "training_speed", lambda config, *_, **__: SPEEDS.get(config.model, 1e8))


@pytest.mark.usefixtures("_speeds")
def test_each_model_has_its_time_the_cheapest_first(tmp_path: Path, known: StudyData) -> None:
    spec = study(tmp_path, **SMALL)
    costs = costs_of_runs(known, spec.plain(), str(tmp_path / "out"), 1)
    runs = expand(spec)
    assert set(costs) == {run.run_id for run in runs}
    lines = Expectation(runs, {name: RunCost(**cost) for name, cost in costs.items()}, 1, 4.0).lines()
    assert [line.split(":")[0].strip() for line in lines] == ["linear", "recurrent-tiny", "baseline-tiny", "together"]
    assert "MiB of memory or more" in lines[1] and "MiB" not in lines[0] and "2 runs of about" in lines[2]
    for run in runs:
        if run.model in SPEEDS:
            flops = training_flops(run, known) or 0.0
            assert costs[run.run_id]["seconds"] == pytest.approx(flops / SPEEDS[run.model])


def test_of_folds_which_have_equally_many_rows_one_is_timed_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []
    monkeypatch.setattr(estimate, "time_model", lambda config, *_: timed.append(config.model) or (7.0, None))
    folds = study(tmp_path, models=["linear"], data=[{"name": str(write_reviews(tmp_path / "rows.csv")), "folds": 3}])
    costs = costs_of_runs(StudyData(), folds.plain(), str(tmp_path / "out"), 1)
    assert timed == ["linear"] and [cost["seconds"] for cost in costs.values()] == [7.0] * 3


def test_time_that_is_left_is_what_the_same_model_took_or_the_expected_at_the_pace_so_far(tmp_path: Path) -> None:
    runs = {(run.model, run.seed): run for run in expand(study(tmp_path, **SMALL))}
    seconds = {"linear": None, "baseline-tiny": 40.0, "recurrent-tiny": 20.0}
    costs = {run.run_id: RunCost(1.0, seconds[run.model], 988.2) for run in runs.values()}

    def expectation(workers: int) -> Expectation:
        return Expectation(list(runs.values()), costs, workers, 4.0)

    one = expectation(1)
    assert one.lines() == [
        "  linear: not known, 988 MiB of memory or more",
        "  recurrent-tiny: 2 runs of about 20 s, 988 MiB of memory or more",
        "  baseline-tiny: 2 runs of about 40 s, 988 MiB of memory or more",
        "  together: about 2 min, plus what is unknown, one run at a time (estimated in 4.0 s)",
    ]
    assert expectation(2).left_s() == 60 and expectation(8).left_s() == 40
    folder = RunFactory(tmp_path, rows={"train": 90, "validation": 60, "test": 80}).run("recurrent")
    record = read_record(folder)

    def done(model: str, seed: int, wall_s: float | None) -> PlannedRun:
        write_record(folder, record.model_copy(update={"wall_s": wall_s}))
        return PlannedRun(runs[model, seed], folder, "failed" if wall_s is None else "done")

    one.note(done("recurrent-tiny", 0, 30.0))
    # Ten seconds more, or half as long again: the smaller.
    assert one.left_s() == 30 + 2 * 50
    one.note(done("baseline-tiny", 0, None))
    assert one.left_s() == 30 + 50 and "80 s" in one.lines()[-1]
    one.note(done("recurrent-tiny", 1, 1e6))
    assert one.left_s() == 3 * 40
    # Of the linear model nothing is known.
    assert one.note(done("baseline-tiny", 1, 50.0)) == ""


def test_what_cannot_be_known_is_said_and_stops_nothing(tmp_path: Path) -> None:
    spec = study(tmp_path, models=["minilm-of-nobody.yaml"])
    said = expect(spec, [], tmp_path / "out", Machine(), Inline(1, 1), reporter=Reporter(quiet=True))
    assert isinstance(said, str) and said.startswith("the time could not be ") and "minilm-of-nobody.yaml" in said


def test_a_run_that_another_process_has_just_finished_is_still_expected(tmp_path: Path) -> None:
    spec, output, machine = study(tmp_path, models=["linear"]), tmp_path / "out", Machine(cache_dir=tmp_path / "cache")
    (run,) = expand(spec)
    finish(output, run, values={"wall_s": 7.0})
    renamed = run.model_copy(update={"data_hash": "of the file as it was"})
    found = expect(spec, [run, renamed], output, machine, Inline(1, 1), reporter=Reporter(quiet=True))
    assert isinstance(found, Expectation) and found.left_s() == 7.0
    (ended,) = plan_study(spec, output)
    assert found.note(ended) == "about 7.0 s left"


# A budget of minutes.


@pytest.fixture
def timed(tmp_path: Path, _speeds: None) -> StudySpec:
    pupil = {"name": "pupil", "preset": "recurrent-tiny", "teacher": "baseline-tiny"}
    words = {"name": "words", "preset": "linear-tuned", "teacher": "baseline-tiny"}
    models = ["linear", "recurrent-tiny", "baseline-tiny", pupil, words]
    return study(tmp_path, models=models, protocols=["tuned"], prices={"linear": 0.001, "baseline-tiny": 0.002})


@pytest.fixture
def within(tmp_path: Path, known: StudyData) -> Callable[[StudySpec, float], tuple[StudySpec, str]]:
    def run(spec: StudySpec, minutes: float) -> tuple[StudySpec, str]:
        return within_minutes(spec, tmp_path / "out", known, minutes, workers=1, reporter=Reporter(quiet=True))

    return run


def seconds(spec: StudySpec, folder: Path, known: StudyData) -> float:
    """What all runs take together."""
    view = plan_with_cost(spec, folder / "out", known, workers=1, calibrated=True, reporter=Reporter(quiet=True))
    found = view.cost and view.cost.seconds(view.runs)
    assert found is not None
    return found


def test_the_dearest_are_left_out_and_their_pupils_with_them(timed: StudySpec, within: Any) -> None:
    whole, said = within(timed, 1e6)
    assert whole == timed and "left out" not in said and "recurrent-tiny" in said
    assert "linear" not in said
    counts = []
    for minutes in (1e6, 10, 1, 0.3, 0.03):
        kept, said = within(timed, minutes)
        names = [model_name(model) for model in StudySpec.parse(kept.plain()).models]
        assert names[0] == "linear"
        assert "baseline-tiny" in names or not {"pupil", "words"} & {*names}
        assert ("left out for --minutes" in said) == (len(names) < 5)
        counts.append(len(names))
    assert counts == sorted(counts, reverse=True) and (counts[0], counts[-1]) == (5, 1)
    assert any(1 < count < 5 for count in counts)
    controls = timed.model_copy(update={"models": ["linear"], "prices": {}})
    assert within(controls, 0.01) == (controls, "")
    trained = timed.model_copy(update={"models": ("recurrent-tiny", "baseline-tiny")})
    with pytest.raises(RunError, match=r"no model can be trained within 0.01 minutes here: recurrent-tiny"):
        within(trained, 0.01)
    gone = timed.model_copy(update={"data": [timed.data[0].model_copy(update={"name": "nowhere.csv"})]})
    with pytest.raises(RunError, match=r"--minutes 5 cannot be kept: the cost is not known: .*nowhere.csv"):
        within(gone, 5)


def test_without_time_for_training_folds_stay_and_the_small_rungs_answer(
    timed: StudySpec, within: Any, tmp_path: Path, refused: Callable[..., str]
) -> None:
    words = ["compare", tmp_path / "reviews.csv", "--from", "recurra-small", "--output", tmp_path / "out"]
    for budget in ("0", "-1", "nan", "inf"):
        said = refused(*words, "--minutes", budget)
        assert said == f"error: --minutes is {budget}; a budget is a finite number above 0\n"
    data, small = [timed.data[0].model_copy(update={"folds": 2})], ["linear-tuned", "recurra-small-and-words"]
    changes = {"data": data, "models": [*small, "recurra-small"], "seeds": [0], "prices": {}}
    kept, said = within(timed.model_copy(update=changes), 0.001)
    assert "left out for --minutes 0.001: recurra-small" in said
    assert (list(kept.models), list(kept.data)) == (small, data)


def test_one_split_comes_before_a_model_is_left_out(
    timed: StudySpec, within: Any, tmp_path: Path, known: StudyData
) -> None:
    models = ["linear", "recurrent-tiny", "baseline-tiny"]
    timed = timed.model_copy(update={"models": models, "seeds": [0]})
    folded = timed.model_copy(update={"data": [timed.data[0].model_copy(update={"folds": 3})]})
    kept, said = within(folded, 1e6)
    assert kept == folded and "one split" not in said
    need = 1.01 * seconds(timed, tmp_path, known) / 60
    kept, said = within(folded, need)
    assert said.startswith(f"one split instead of folds for --minutes {need:g}; ") and "left out" not in said
    assert kept.models == models and [each.part for each in kept.data] == [""]


@pytest.mark.parametrize("folds", [None, 3])
def test_what_was_begun_counts_and_stays(
    timed: StudySpec, within: Any, tmp_path: Path, known: StudyData, folds: int | None
) -> None:
    data = [timed.data[0].model_copy(update={"folds": folds})]
    names = ["recurrent-tiny", "baseline-tiny"]
    spec = timed.model_copy(update={"models": names, "data": data, "seeds": [0], "prices": {}})
    total = seconds(spec, tmp_path, known)
    first = next(run for run in expand(spec) if run.model == names[0])
    for took, minutes, models in ((1.0, 1.01 * total / 60, names), (total, 0.99 * total / 60, names[:1])):
        finish(tmp_path / "out", first, epochs=first.protocol.max_epochs, values={"wall_s": took})
        kept, said = within(spec, minutes)
        assert (kept.models, kept.data) == (models, data) and f"{names[0]} " in said


def test_a_run_that_stopped_early_counts_with_the_time_that_it_took(
    timed: StudySpec, within: Any, tmp_path: Path
) -> None:
    spec = timed.model_copy(update={"models": ["recurrent-tiny"], "seeds": [0], "prices": {}})
    (run,) = expand(spec)
    finish(tmp_path / "out", run, epochs=1, values={"wall_s": 30.0})
    assert within(spec, 1)[1] == "about 30 s of training (recurrent-tiny 30 s)"
