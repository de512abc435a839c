"""What is wrong is told before anything starts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import recurra.study.run as run_module
import recurra.tasks.study_data as study_data_module
from recurra.comparison import comparison
from recurra.core.errors import ConfigurationError, DataError, RecurraError, UnavailableError
from recurra.core.progress import Reporter
from recurra.data.configuration import DataConfig, LanguageDataConfig, MultiLabelData
from recurra.reported_study import run_and_report
from recurra.study.run import execute_run, preflight
from recurra.tasks.base import RunConfig, TeacherConfig
from recurra.tasks.labelling import labelled
from recurra.tasks.labelling.configuration import model_configuration
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.protocols import LANGUAGE_PROTOCOLS, PROTOCOLS
from reviews import write_csv, write_reviews
from tiny_runs import tiny_run


def run(path: Path, model: str = "recurrent", seed: int = 0, overrides: Any = None, **data: Any) -> RunConfig:
    config = DataConfig.parse({"name": str(path), "tokenizer": "trained", **data})
    return make_run(model, config, PROTOCOLS["tuned"], seed=seed, precision="fp32", overrides=overrides)


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    return write_reviews(tmp_path / "r.csv", 60)


@pytest.mark.parametrize("imitated", [True, False])
def test_it_says_once_that_bf16_is_imitated(reviews: Path, imitated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recurra.models.inference.imitates_bf16", lambda device: imitated)
    runs = [run(reviews, seed=seed) for seed in range(2)]
    halved = [each.model_copy(update={"precision": "bf16"}) for each in runs]
    assert not any("bf16" in line for line in preflight(runs, StudyData()))
    assert sum("emulates them" in line for line in preflight([*runs, *halved], StudyData())) == int(imitated)


def test_rows_of_several_labels_are_not_weighed_by_class(reviews: Path) -> None:
    protocol = PROTOCOLS["tuned"].model_copy(update={"class_weights": "balanced"})
    data = MultiLabelData(name=str(reviews), tokenizer="trained", label_separator=";")
    with pytest.raises(ConfigurationError, match="a row may have several labels"):
        preflight([make_run("recurrent", data, protocol, seed=0, precision="fp32")], StudyData())


def test_one_of_several_processes_fits_a_control(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "speaks_for_all", lambda: False)
    assert execute_run(StudyData(), tmp_path / "out", run(reviews, "linear")) is None
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"text_column": "txet"}, DataError, "did you mean 'text'"),
        ({"tokenizer": "bert-base-uncased"}, UnavailableError, "--data-root"),
        ({"tokenizer": "trainde"}, ConfigurationError, "did you mean 'trained'"),
        ({"overrides": {"hiden_size": 8}}, ConfigurationError, "did you mean 'hidden_size'"),
        ({"overrides": {"num_labels": 8}}, ConfigurationError, "decided by the data"),
        ({"overrides": {"max_position_embeddings": 16}}, ConfigurationError, "at most 16 tokens"),
        ({"overrides": {"preset": "recurent"}}, ConfigurationError, "did you mean 'recurrent'"),
    ],
)
def test_what_cannot_work_is_refused(
    reviews: Path, change: dict[str, Any], error: type[RecurraError], said: str
) -> None:
    with pytest.raises(error) as caught:
        preflight([run(reviews, **change)], StudyData())
    assert said in str(caught.value)


def test_a_halt_that_no_label_would_teach_is_refused_before_its_teacher_is_trained(reviews: Path) -> None:
    heads: dict[str, Any] = {"learned_halt": True, "tokens_without_recurrence": 2}

    def taught(weight: float, **keys: Any) -> RunConfig:
        protocol = PROTOCOLS["tuned"].model_copy(update={"distillation_weight": weight})
        data = DataConfig.parse({"name": str(reviews), "tokenizer": "trained"})
        teachers = [TeacherConfig(name="minilm", run_id="of-this-study")] if "teacher" in keys else []
        return make_run("recurrent", data, protocol, seed=0, precision="fp32", overrides=keys, teachers=teachers)

    exits = taught(1, teacher="minilm", exits=[1])
    preflight(
        [taught(1, teacher="minilm"), exits, taught(1, **heads), taught(0.9, teacher="minilm", **heads)], StudyData()
    )
    with pytest.raises(ConfigurationError, match="'distillation_weight' is 1 for a model with"):
        preflight([taught(1, teacher="minilm", **heads)], StudyData())


def test_the_linear_control_needs_no_tokenizer(reviews: Path) -> None:
    preflight([run(reviews, "linear", tokenizer="bert-base-uncased")], StudyData())


def test_the_table_must_hold_the_vocabulary(reviews: Path) -> None:
    small = run(reviews, overrides={"vocab_size": 50})
    with pytest.raises(ConfigurationError, match="'vocab_size' is 50, the tokenizer has 60"):
        model_configuration(small, ["a", "b"], 60)
    assert model_configuration(run(reviews, overrides={"vocab_size": 64}), ["a", "b"], 60).vocab_size == 64
    names = model_configuration(run(reviews), ["a", "b", "c"], 60).id2label
    assert names == {0: "a", 1: "b", 2: "c"}


def test_a_study_with_bad_data_starts_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "r.csv", [("a text", "same")] * 3)
    data = DataConfig(name=str(path), tokenizer="trained")
    spec = comparison(data, models=["linear", "recurrent"], protocol="tuned")
    output = tmp_path / "out"
    with pytest.raises(DataError, match="one class only"):
        run_and_report(spec, output, StudyData(), reporter=Reporter(quiet=True), command="test")
    assert not output.exists()


@pytest.mark.parametrize("kept", [True, False])
def test_a_file_that_changes_after_a_run_was_planned_is_refused(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    monkeypatch.setattr(study_data_module, "MOST_CHARACTERS", study_data_module.MOST_CHARACTERS if kept else 0)
    planned, data = run(reviews, "linear"), StudyData(Machine(threads=1, latency=False))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one line of running text\n" * 400, encoding="utf-8")
    text = LanguageDataConfig(name=str(corpus), context=8, tokenizer="trained")
    spoken = make_run("crt-tiny", text, LANGUAGE_PROTOCOLS["paper"], seed=0, precision="fp32")
    before = reviews.read_bytes()
    write_reviews(reviews, 50, seed=1)
    corpus.write_text("another line of running text\n" * 400, encoding="utf-8")
    for number, config in enumerate((planned, spoken)):
        with pytest.raises(DataError, match=r"was changed after the run was planned; start the same command again"):
            execute_run(data, tmp_path / f"changed-{number}", config)
        assert not (tmp_path / f"changed-{number}" / "record.json").exists()
    # Rows that were read before are those of the plan, whatever the file holds since.
    reviews.write_bytes(before)
    same = StudyData(data.machine)
    same.rows(labelled(planned.data))
    write_reviews(reviews, 50, seed=1)
    if kept:
        assert execute_run(same, tmp_path / "kept", planned) is not None
    else:
        with pytest.raises(DataError, match="was changed"):
            execute_run(same, tmp_path / "kept", planned)


def test_a_kill_leaves_no_checkpoints_beside_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds a record does nothing any more: what is to go must be gone when it is written."""
    folder, seen = tmp_path / "run", []

    def train(*_: object) -> None:
        (folder / "checkpoints" / "checkpoint-1").mkdir(parents=True)

    task = SimpleNamespace(trainer=lambda _: train, record_run=lambda *_, **__: "record")
    monkeypatch.setattr(run_module, "task_of_data", lambda _: task)
    monkeypatch.setattr(run_module, "write_record", lambda *_: seen.append((folder / "checkpoints").exists()))
    machine = Machine(threads=1, latency=False)
    run_module.execute_run(StudyData(machine), folder, tiny_run(tmp_path))
    assert seen == [False]
