"""What a study expands to, what identifies a run, and what the shipped studies compare."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from committed import RESULTS
from recurra.core.errors import ConfigurationError
from recurra.core.packed import run_folders
from recurra.data.configuration import DataConfig
from recurra.deployment.export_record import ExportRequest
from recurra.models.presets import count_parameters
from recurra.study.executor import waves
from recurra.study.spec import StudySpec, expand, load_study
from recurra.tasks.classification.exports import PUBLISHED
from recurra.tasks.questions import Contrast, PublishedReference
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import file_hash
from recurra.training.protocols import PROTOCOLS
from reviews import write_reviews

DEMO = DataConfig(name="demo")
STUDIES = Path(__file__).parents[3] / "configs" / "studies"
FILES = sorted(STUDIES.glob("*.yaml"))
VARIANT = {"name": "recurrent-R3", "preset": "recurrent", "num_recurrences": 3}


def spec(**values: Any) -> StudySpec:
    return StudySpec.parse({"name": "s", "data": [{"name": "demo"}], "models": ["baseline"], **values})


def shape(study: StudySpec) -> list[tuple[str, str, str, int]]:
    return [(run.data.protocol or "-", run.protocol.name, run.model, run.seed) for run in expand(study)]


def test_cheap_controls_come_first_then_seed_by_seed_with_every_model() -> None:
    study = spec(
        data=[{"name": "sst2", "protocol": "official"}, {"name": "sst2", "protocol": "pooled"}],
        models=["recurrent", "linear", "baseline"],
        seeds=[4, 2],
    )
    assert shape(study) == [
        ("official", "linear", "linear", 0),
        ("official", "paper", "recurrent", 4),
        ("official", "paper", "baseline", 4),
        ("pooled", "linear", "linear", 0),
        ("pooled", "paper", "recurrent", 4),
        ("pooled", "paper", "baseline", 4),
        ("official", "paper", "recurrent", 2),
        ("official", "paper", "baseline", 2),
        ("pooled", "paper", "recurrent", 2),
        ("pooled", "paper", "baseline", 2),
    ]


def test_the_linear_control_runs_once_for_all_seeds_and_protocols() -> None:
    runs = expand(spec(models=["linear", "baseline"], protocols=["paper", "tuned"], seeds=[0, 1, 2], precision="bf16"))
    linear = [run for run in runs if run.is_control]
    assert len(linear) == 1 and len(runs) == 1 + 2 * 3
    assert (linear[0].seed, linear[0].precision) == (0, "fp32")
    both = expand(spec(models=["linear", "baseline"], precision=["fp32", "bf16"], seeds=[0]))
    assert [(run.model, run.precision) for run in both] == [
        ("linear", "fp32"), ("baseline", "fp32"), ("baseline", "bf16"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modles": []}, r"unknown key 'modles' \(did you mean 'models'\?\)"),
        ({"models": []}, r"'models' is \[\]"),
        ({"seeds": [0, -1]}, "'seeds.1' is -1: input should be greater than or equal to 0"),
        ({"models": ["a/tiny.yaml", "b/tiny.yml"]}, "tiny is given twice; name each once"),
        ({"data": [{"name": "demo"}, {"name": "demo", "fraction": 1.0}]}, "'demo' is given twice with the same"),
        ({"name": "a/b"}, r"'name' is \"a/b\""),
        ({"precision": "fp8"}, r"'precision' is \"fp8\""),
        ({"protocol_overrides": [3]}, "cannot read the override '3'; write key=value"),
        ({"data": [{"name": "demo", "fractoin": 1}]}, r"\(did you mean 'fraction'\?\)"),
        ({"models": [{**VARIANT, "num_recurences": 3}]}, r"\(did you mean 'num_recurrences'\?\)"),
        ({"models": [{**VARIANT, "name": "recurrent"}]}, "this name is taken"),
        ({"models": [{**VARIANT, "preset": "recurent"}]}, r"\(did you mean 'recurrent'\?\)"),
        ({"models": [{"name": "x"}]}, "give either preset or encoder"),
        ({"models": [VARIANT, {**VARIANT, "num_recurrences": 4}]}, "recurrent-R3 is given twice"),
        ({"precision": []}, "name at least one"),
        ({"precision": ["fp32", "fp8"]}, "unknown precision 'fp8'"),
        ({"contrasts": [{"name": "x", "a": "baselin", "b": "linear"}]}, r"\(did you mean 'baseline'\?\)"),
        ({"contrasts": [{"name": "x", "a": "baseline", "b": "baseline"}]}, "compared with itself"),
        ({"contrasts": [{"name": "x", "a": "baseline@bf16", "b": "baseline@fp32"}]}, "unknown precision of this study"),
        ({"contrasts": [{"name": "x", "a": "baseline@fp32", "b": "linear"}]}, "of both sides or of neither"),
        ({"contrasts": [{"name": "x", "a": "baseline", "b": "linear", "note": 1}]}, "unknown key .contrasts.0.note."),
        ({"protocols": [{"name": "p", "base": "tuned", "models": [{"a": 1}]}]}, "give a list of names"),
        ({"published": [{"table": 77}]}, "unknown published table '77'"),
        ({"published": [{"table": 7, "precision": "fp8"}]}, "input should be 'fp32', 'bf16' or 'fp16'"),
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
    ],
)
def test_a_mistake_shows_when_the_plan_is_made(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        expand(spec(**values))


def test_every_setting_is_part_of_a_runs_identity() -> None:
    def run(**values: Any) -> str:
        arguments = {"seed": 0, "precision": "fp32", **values}
        data = arguments.pop("data", DEMO)
        protocol = arguments.pop("protocol", PROTOCOLS["paper"])
        return make_run(arguments.pop("model", "baseline"), data, protocol, **arguments).config_hash

    variants = [
        run(),
        run(seed=1),
        run(precision="bf16"),
        run(model="recurrent"),
        run(overrides={"hidden_dropout": 0.2}),
        run(data=DataConfig(name="demo", fraction=0.5)),
        run(protocol=PROTOCOLS["tuned"]),
        run(protocol=PROTOCOLS["paper"].model_copy(update={"max_epochs": 2})),
    ]
    assert len(set(variants)) == len(variants)
    assert run() == variants[0]


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


def test_a_run_id_is_a_readable_folder_name(tmp_path: Path) -> None:
    path = write_reviews(tmp_path / "my réviews (1).csv", rows=4)
    run = make_run("recurrent", DataConfig(name=str(path)), PROTOCOLS["paper"], seed=7, precision="fp32")
    assert run.run_id.startswith("my-réviews--1--default-recurrent-paper-s7-")
    assert "/" not in run.run_id and " " not in run.run_id and len(run.run_id.encode()) < 200
    assert run.run_id.endswith(run.config_hash[:8])


def test_the_keys_of_a_variant_are_those_of_the_model_configuration() -> None:
    from recurra.models.configuration import RecurraConfig
    from recurra.models.names import MODEL_KEYS

    assert list(MODEL_KEYS) == RecurraConfig.own_keys()


def test_a_variant_is_the_same_run_as_a_model_file_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "recurrent-R3.yaml"
    path.write_text("preset: recurrent\nnum_recurrences: 3\n", encoding="utf-8")
    (written,) = expand(spec(models=[VARIANT], seeds=[1]))
    (from_file,) = expand(spec(models=[str(path)], seeds=[1]))
    assert written == from_file
    assert (written.model, written.model_overrides) == ("recurrent-R3", {"preset": "recurrent", "num_recurrences": 3})


def test_a_control_that_is_taught_is_a_run_of_each_seed_and_protocol() -> None:
    taught = [{"name": f"{name}-taught", "preset": name, "teacher": "baseline"} for name in ("linear-tuned", "static")]
    runs = expand(spec(models=["linear-tuned", "baseline", *taught], protocols=["paper", "tuned"], seeds=[0, 1]))
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


def test_a_teacher_of_a_protocol_teaches_none_that_the_protocol_does_not_train() -> None:
    distil = {"name": "distil", "base": "finetune", "teacher": "minilm"}
    models = ["recurra-small-and-words", "minilm", "setfit", "recurra-small"]
    runs = expand(spec(models=models, protocols=["finetune", distil], seeds=[0]))
    assert Counter(run.model for run in runs) == {"minilm": 1, models[0]: 1, "setfit": 2, "recurra-small": 2}
    taught = [run for run in runs if run.teachers]
    assert [(run.model, run.protocol.name) for run in taught] == [("recurra-small", "distil")]


def test_folds_are_runs_of_their_own_whose_teachers_are_of_the_same_fold(tmp_path: Path) -> None:
    data = [{"name": str(write_reviews(tmp_path / "reviews.csv", rows=60)), "folds": 3}]
    taught = {"name": "words", "preset": "linear-tuned", "teacher": "baseline"}
    runs = expand(spec(data=data, models=["linear", "baseline", taught], seeds=[0, 1]))
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


def test_who_teaches_a_control_is_trained_before_it() -> None:
    taught = {"name": "words", "preset": "linear-tuned", "teacher": "baseline"}
    study = spec(models=[taught, "linear", "baseline"], seeds=[0, 1])
    first, second = waves(study, expand(study))
    assert [run.model for run in first] == ["linear", "baseline", "baseline"]
    assert [run.model for run in second] == ["words", "words"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"preset": "linear-tuned"}, "is the same as linear-tuned; write linear-tuned, or add teacher"),
        ({"preset": "linear", "teacher": "baseline"}, "unknown preset 'linear'"),
        ({"preset": "static", "teacher": "baseline", "plan": "0 1"}, "'plan' is '0 1', and static has no such key"),
        ({"preset": "linear-tuned", "teacher": "baseline", "num_recurrences": 3}, "linear-tuned has no such key"),
    ],
)
def test_a_mistake_in_a_taught_control_is_one_clear_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        expand(spec(models=["baseline", {"name": "x", **keys}]))
    assert "\n" not in str(caught.value)


def test_a_protocol_may_be_for_some_models_alone() -> None:
    keys = {
        "name": "x",
        "data": [{"name": "demo"}],
        "models": ["minilm", "recurrent-tiny", "baseline-tiny"],
        "protocols": [
            {"name": "teach", "base": "finetune", "models": ["minilm"]},
            {"name": "taught", "base": "tuned", "teacher": "minilm", "models": ["recurrent-tiny"]},
        ],
        "seeds": [0],
    }
    runs = expand(StudySpec.parse(keys))
    assert [(run.model, run.protocol.name) for run in runs] == [("minilm", "teach"), ("recurrent-tiny", "taught")]
    assert [teacher.run_id for teacher in runs[-1].teachers] == [runs[0].run_id]
    keys["protocols"][0]["models"] = ["minilmm"]
    with pytest.raises(ConfigurationError, match=r"protocol 'teach': .*'minilmm'.*minilm"):
        StudySpec.parse(keys)


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


# Recorded on a part of the rows that they name, or of models that they had then.
OTHERWISE_RECORDED = {"deployment", "domains", "isolate", "recurrence", "relax", "rungs"}


@pytest.mark.parametrize("path", [path for path in FILES if (RESULTS / path.stem).is_dir()], ids=lambda path: path.stem)
def test_runs_that_were_recorded_are_still_the_runs_of_their_study(path: Path) -> None:
    """Identifiers hold the configuration's hash: if one moves, every record in results/ is orphaned."""
    recorded = {folder.name for folder in run_folders(RESULTS / path.stem)}
    planned = {run.run_id for run in expand(load_study(path))}
    assert recorded and (recorded <= planned) == (path.stem not in OTHERWISE_RECORDED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_study_file_expands_and_takes_one_key_on_top_of_its_protocols(path: Path) -> None:
    own, typed = load_study(path), load_study(path, ["protocol_overrides.max_epochs=3"])
    assert expand(own) and typed.protocol_overrides == {**own.protocol_overrides, "max_epochs": 3}


def test_every_preset_of_the_isolation_study_has_the_recurrent_models_parameters_where_it_says_so() -> None:
    from recurra.models.presets import preset

    study = load_study(STUDIES / "isolate.yaml")
    shapes = {run.model: run.model_overrides for run in expand(study) if not run.is_control}
    counts = {}
    for name in ("stacked-shallow", "recurrent", "recurrent-R3", "recurrent-R4"):
        values = dict(shapes[name])
        counts[name] = count_parameters(preset(values.pop("preset", name), **values)).total
    assert set(counts.values()) == {10_972_162}


def test_every_key_of_a_study_file_is_in_the_reference() -> None:
    page = (STUDIES.parents[1] / "docs" / "reference" / "study-files.md").read_text(encoding="utf-8")
    for settings in (StudySpec, Contrast, PublishedReference, ExportRequest):
        for key in settings.model_fields:
            assert f"| `{key}` |" in page, key
    for table in PUBLISHED:
        assert f"`{table}`" in page


@pytest.mark.parametrize("name", ["-rf.csv", "--help.csv", "..csv", "-.csv"])
def test_no_name_of_a_run_is_an_option_or_hidden(name: str) -> None:
    data = {"name": name, "tokenizer": "trained"}
    runs = expand(StudySpec.parse({"name": "s", "data": [data], "models": ["linear", "recurrent"], "seeds": [0]}))
    assert all(run.run_id[0] not in "-." for run in runs)
