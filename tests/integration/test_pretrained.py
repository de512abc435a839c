"""From a pretrained encoder to a student: adapted, trained, taught, exported, in the way that a user goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy.special import softmax

import recurra.tasks.labelling.teacher as teacher_module
from recurra import Classifier
from recurra.adaptation import AdaptationOptions, adapt
from recurra.core.errors import CheckpointError, ConfigurationError, RecurraError, RunError
from recurra.core.progress import Reporter
from recurra.core.record import RunRecord, read_record
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset, recorded_data
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.models.adaptation.source import find_encoder
from recurra.models.controls.fitting import fit_tuned
from recurra.models.loading import load_classifier_model
from recurra.study.run import execute_run
from recurra.study.spec import StudySpec, expand
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine, StudyData, file_hash
from recurra.training.protocols import PROTOCOLS
from reviews import Command, review_rows
from tiny_encoder import write_tiny_encoder

QUIET = Reporter(quiet=True)
QUICK = {"max_epochs": 2, "learning_rate": 1e-2, "batch_size": 8}


def machine(root: Path) -> Machine:
    return Machine(cache_dir=root / "cache", latency=False, threads=1)


def run(root: Path, name: str = "student", *, overrides: dict[str, Any] | None = None, **keys: Any) -> RunConfig:
    """A run that starts from the encoder."""
    model = root / f"{name}.yaml"
    model.write_text(yaml.safe_dump({"encoder": str(root / "encoder"), **(overrides or {})}), encoding="utf-8")
    data = DataConfig(name=str(root / "reviews.csv"), tokenizer="trained", max_length=24)
    protocol = PROTOCOLS["finetune"].model_copy(update={**QUICK, **keys})
    return make_run(str(model), data, protocol, seed=0, precision="fp32")


def execute(config: RunConfig, folder: Path, root: Path) -> RunRecord:
    found = execute_run(StudyData(machine(root)), folder, config)
    assert isinstance(found, RunRecord)
    return found


@pytest.fixture(scope="module")
def taught_by(root: Path) -> Path:
    """A trained run of the whole encoder."""
    execute(run(root, "whole"), root / "teacher", root)
    return root / "teacher"


def test_an_adapted_encoder_is_trained_predicts_and_is_exported(root: Path, tmp_path: Path) -> None:
    options = AdaptationOptions(
        texts=root / "reviews.csv",
        stored=2,
        applied=4,
        changes={"recurrence_embedding": True},
        cache_dir=root / "cache",
    )
    made = adapt(str(root / "encoder"), tmp_path / "small", options, reporter=QUIET)
    kept = json.loads((tmp_path / "small" / "adaptation.json").read_text(encoding="utf-8"))
    assert kept["plan"] == str(made.plan) == kept["scores"][0]["plan"] and made.plan.stored == 2
    assert kept["sha256"] == find_encoder(str(root / "encoder")).sha256 and "licence" in kept
    assert "recurra train" in (tmp_path / "small" / "README.md").read_text(encoding="utf-8")
    data = DataConfig(name=str(root / "reviews.csv"), tokenizer="trained", max_length=24)
    protocol = PROTOCOLS["finetune"].model_copy(update={**QUICK, "max_epochs": 4})
    config = make_run(str(tmp_path / "small"), data, protocol, seed=0, precision="fp32")
    record = execute(config, tmp_path / "run", root)
    assert record.model.encoder is not None and record.model.encoder.layers == 2
    assert record.metrics["test"].accuracy > 0.9
    # It reads with the encoder's tokenizer, whatever the data say.
    assert record.data.tokenizer["vocab_size"] == find_encoder(str(root / "encoder")).values["vocab_size"]
    classifier = Classifier.from_run(tmp_path / "run")
    texts = ["a good film", "no idea", ""]
    for precision in ("fp32", "int8"):
        manifest = export_run(tmp_path / "run", tmp_path / precision, ExportOptions("onnx", precision))
        assert manifest.check.label_agreement >= 0.98
        found = Classifier.from_export(tmp_path / precision).logits(texts)
        if precision == "fp32":
            np.testing.assert_allclose(found, classifier.logits(texts), rtol=1e-4, atol=1e-4)
    card = (tmp_path / "int8" / "README.md").read_text(encoding="utf-8")
    assert "licence of its weights: not known" in card and record.model.encoder.sha256[:16] in card


def test_a_student_learns_from_a_run(root: Path, taught_by: Path, tmp_path: Path) -> None:
    keys = {"plan": "0 (1)x2 3", "recurrence_norms": True, "low_rank": 4, "embedding_size": 10}
    config = run(root, overrides=keys, teacher=str(taught_by), distillation_weight=1.0, max_epochs=4)
    record = execute(config, tmp_path / "student", root)
    taught = record.teacher
    assert taught is not None and taught.runs == [read_record(taught_by).run_id] and taught.compares_states
    assert taught.rows == record.data.splits["train"].rows and taught.agreement > 0.9
    assert record.model.encoder is not None and record.model.encoder.plan == "0 (1)x2 3"
    assert {audit.status for audit in record.audits if audit.name.startswith("teacher.")} == {"passed"}
    shape = record.shape
    assert (shape["recurrence_norms"], shape["low_rank"], shape["relaxation_start"]) == (True, 4, "shared")
    # Another teacher is another run.
    assert config.config_hash != run(root, overrides=keys, max_epochs=4).config_hash
    # The token table is narrow, and is made shorter on top.
    assert record.model.parameters == sum(
        part.numel() for part in load_classifier_model(tmp_path / "student" / "model").parameters()
    )
    smaller = export_run(tmp_path / "student", tmp_path / "smaller", ExportOptions("onnx", "int8", vocabulary=0))
    assert smaller.vocabulary is not None and smaller.vocabulary.pieces < smaller.vocabulary.of
    assert smaller.check.label_agreement >= 0.98


def test_texts_without_labels_are_learned_by_the_teachers_answers(root: Path, taught_by: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.txt"
    more.write_text("\n".join(text for text, _ in review_rows(60, seed=9)), encoding="utf-8")
    student = run(root, overrides={"plan": "0 (1)x2 3"}, teacher=str(taught_by), max_epochs=4)
    data = student.data.model_copy(update={"unlabelled": str(more)})
    config = student.model_copy(update={"data": data, "data_hash": file_hash(data)})
    record = execute(config, tmp_path / "student", root)
    taught = record.teacher
    assert taught is not None and taught.unlabelled_rows == 60 and taught.compares_states
    assert taught.rows == record.data.splits["train"].rows and taught.train_accuracy > 0.9
    # Every row, labelled or not, is read in every epoch.
    assert record.training.steps == 4 * -(-(taught.rows + 60) // 8)
    assert record.metrics["test"].accuracy > 0.9
    assert "leakage.unlabelled-exact.test" in {audit.name for audit in record.audits}
    assert config.config_hash != student.config_hash


@pytest.mark.parametrize(("preset", "variant"), [("linear-tuned", True), ("linear-tuned", False), ("static", True)])
def test_a_linear_model_learns_the_answers_to_texts_with_and_without_labels(
    root: Path, taught_by: Path, tmp_path: Path, preset: str, variant: bool, command: Command
) -> None:
    more = tmp_path / "more.txt"
    more.write_text("\n".join(text for text, _ in review_rows(60, seed=9)), encoding="utf-8")
    model = tmp_path / "taught.yaml"
    own = {"encoder": str(root / "encoder")} if preset == "static" else {}
    own["teacher"] = str(taught_by)
    model.write_text(yaml.safe_dump({"preset": preset, **own}), encoding="utf-8")
    data = DataConfig(name=str(root / "reviews.csv"), tokenizer="trained", max_length=24, unlabelled=str(more))
    data = data.model_copy(update={"unlabelled_unit": "sentences"}) if variant else data
    protocol = PROTOCOLS["finetune"].model_copy(update={"distillation_weight": 0.8, "max_epochs": 7})
    named, overrides = (str(model), {}) if variant else (preset, own)
    config = make_run(named, data, protocol, seed=3, precision="fp32", overrides=overrides)
    assert config.seed == 3 and config.is_control and config.protocol.max_epochs == 1
    record = execute(config, tmp_path / "run", root)
    taught = record.teacher
    assert taught is not None and taught.runs == [read_record(taught_by).run_id] and not taught.compares_states
    assert (taught.rows, taught.unlabelled_rows) == (record.data.splits["train"].rows, 60)
    # The vectors of an encoder that learned nothing say little.
    assert taught.agreement > (0.9 if preset == "linear-tuned" else 0.5) and taught.train_accuracy > 0.9
    assert record.model.kind == "linear" and record.model.description.endswith("on a teacher's answers")
    assert "teacher.test" in {audit.name for audit in record.audits}
    assert record.learning_curve is None
    command("evaluate", tmp_path / "run", "--data", root / "reviews.csv")

    # The same from its parts: the teacher's probabilities, on labelled rows mixed with their label.
    dataset = load_dataset(data, None)
    train, unlabelled = dataset.splits["train"], dataset.unlabelled
    assert unlabelled is not None
    texts = [*train.texts, *unlabelled.texts]
    wanted = softmax(Classifier.from_run(taught_by).logits(texts, clean=False).astype(np.float64), axis=1)
    wanted[: len(train)] = 0.8 * wanted[: len(train)] + 0.2 * np.eye(2)[train.labels]
    again = fit_tuned(texts, wanted, seed=3) if preset == "linear-tuned" else None
    found = Classifier.from_run(tmp_path / "run")
    fresh = [text for text, _ in review_rows(40, seed=5)]
    if again is not None:
        np.testing.assert_allclose(found.logits(fresh), again.logits(fresh), atol=1e-3)
    manifest = export_run(tmp_path / "run", tmp_path / "export", ExportOptions("safetensors", "fp32"))
    assert manifest.check.label_agreement == 1


def test_a_teacher_that_saw_the_test_rows_is_found_out(root: Path, tmp_path: Path) -> None:
    """It was trained on another split of the same file."""
    data = DataConfig(name=str(root / "reviews.csv"), tokenizer="trained", split_seed=1)
    cheat = make_run("linear", data, PROTOCOLS["tuned"], seed=0, precision="fp32")
    execute(cheat, tmp_path / "cheat", root)
    config = run(root, overrides={"plan": "0"}, teacher=str(tmp_path / "cheat"), max_epochs=1)
    record = execute(config, tmp_path / "student", root)
    (found,) = [audit for audit in record.audits if audit.name == "teacher.test"]
    rows = load_dataset(recorded_data(record), None).splits["test"].texts
    theirs = load_dataset(recorded_data(read_record(tmp_path / "cheat")), None).splits["train"].texts
    assert found.status == "failed" and found.value == len(set(rows) & set(theirs)) / len(rows) > 0.5
    assert "cheat" in found.summary and found in record.failed_audits()


def test_answers_are_kept_and_nobody_is_asked_twice(
    root: Path, taught_by: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_module, "PART_ROWS", 50)
    asked: list[int] = []
    honest = teacher_module.Teacher.compute_logits

    def dies_late(self: Any, texts: Any, names: Any) -> Any:
        if len(asked) == 1:
            raise KeyboardInterrupt
        asked.append(len(texts))
        return honest(self, texts, names)

    config = run(root, overrides={"plan": "0 3"}, teacher=str(taught_by))
    own = root / f"cache-{tmp_path.name}"
    alone = Machine(cache_dir=own, latency=False, threads=1)
    monkeypatch.setattr(teacher_module.Teacher, "compute_logits", dies_late)
    with pytest.raises(KeyboardInterrupt):
        execute_run(StudyData(alone), tmp_path / "student", config)
    again: list[int] = []

    def counted(self: Any, texts: Any, names: Any) -> Any:
        again.append(len(texts))
        return honest(self, texts, names)

    monkeypatch.setattr(teacher_module.Teacher, "compute_logits", counted)
    assert execute_run(StudyData(alone), tmp_path / "student", config) is not None
    rows = read_record(tmp_path / "student").data
    parts = sum(-(-rows.splits[name].rows // 50) for name in ("train", rows.selection_split))
    assert asked == [50] and len(again) == parts - 1
    monkeypatch.setattr(teacher_module.Teacher, "compute_logits", lambda *_: pytest.fail("asked again"))
    assert execute_run(StudyData(alone), tmp_path / "another", config) is not None


def test_a_classifier_of_transformers_and_a_linear_model_teach_by_their_answers(root: Path, tmp_path: Path) -> None:
    names = read_labels(root)
    texts = (root / "reviews.csv").read_text(encoding="utf-8").splitlines()
    foreign = write_tiny_encoder(tmp_path / "foreign", texts, labels=names[::-1])
    linear = make_run(
        "linear", DataConfig(name=str(root / "reviews.csv"), tokenizer="trained"), PROTOCOLS["tuned"], seed=0,
        precision="fp32",
    )  # fmt: skip
    execute(linear, tmp_path / "linear", root)
    both = f"{foreign}, {tmp_path / 'linear'}"
    record = execute(run(root, overrides={"plan": "0"}, teacher=both, max_epochs=1), tmp_path / "student", root)
    assert record.teacher is not None and not record.teacher.compares_states
    assert record.teacher.names == ["foreign", "linear"] and record.teacher.runs[0] == ""
    told = [audit.status for audit in record.audits if audit.name == "teacher.test"]
    assert told == ["skipped", "passed"]
    # Labels are matched by name, whatever their order.
    rows = ["a good film", "the plot"]
    from recurra.deployment.engines.trained import ForeignClassifier

    model = ForeignClassifier.load(foreign, precision="fp32")
    with torch.no_grad():
        encoded = model.tokenizer(rows, return_tensors="pt", padding=True)
        wanted = model.model(encoded.input_ids, attention_mask=encoded.attention_mask).logits.numpy()
    np.testing.assert_allclose(model.logits(rows), wanted, rtol=1e-4, atol=1e-5)


def read_labels(root: Path) -> list[str]:
    rows = (root / "reviews.csv").read_text(encoding="utf-8").splitlines()[1:]
    return sorted({row.rsplit(",", 1)[1] for row in rows})


def test_a_teacher_of_a_study_has_the_seed_of_who_learns(root: Path) -> None:
    spec = StudySpec.parse(
        {
            "name": "taught",
            "data": [{"name": str(root / "reviews.csv"), "tokenizer": "trained", "max_length": 24}],
            "models": [
                {"name": "looped", "encoder": str(root / "encoder"), "plan": "0 (1)x2 3"},
                {"name": "whole", "encoder": str(root / "encoder")},
            ],
            "protocols": [{"name": "taught", "base": "finetune", "teacher": "whole"}, "finetune"],
            "protocol_overrides": ["max_epochs=1", "batch_size=16"],
            "seeds": [0, 1],
        }
    )
    runs = expand(spec)
    assert sorted((run.model, run.protocol.name, run.seed) for run in runs) == [
        (model, protocol, seed)
        for model, protocol in (("looped", "finetune"), ("looped", "taught"), ("whole", "finetune"))
        for seed in (0, 1)
    ]
    by_id = {run.run_id: run for run in runs}
    for student in (run for run in runs if run.teachers):
        (own,) = student.teachers
        assert by_id[own.run_id].seed == student.seed and by_id[own.run_id].model == "whole"


@pytest.mark.slow
def test_a_comparison_from_an_encoder_is_one_table(
    root: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SetFit stands in no comparison of many rows; tests/integration/test_setfit.py has one of few.
    monkeypatch.setattr("recurra.ladder.MOST_FEW_ROWS", 0)
    compare = ["compare", root / "reviews.csv", "--from", root / "encoder", "--plan", "0 (1)x2 3"]
    compare += ["--seeds", 1, "--folds", 1, "--workers", 1, "--threads", 1, "--no-latency", "--no-estimate", "--quiet"]
    compare += ["max_epochs=1", "learning_rate=1e-2", "data.max_length=24"]
    (table,) = command(*compare, "--output", tmp_path / "compared", "--json").json["tables"]
    labels = {model["label"] for model in table["models"]}
    assert labels == {"linear-tuned", "encoder-and-words", "encoder", "encoder-small"}
    for model in table["models"]:
        record = read_record(Path(model["runs"][0]["folder"]))
        assert (record.teacher is not None) == (model["label"] == "encoder-small")
        assert record.training.protocol in ("finetune-small", "linear-tuned", "encoder-and-words")
        if record.teacher is not None:
            # It was trained first, though it comes later in the alphabet.
            assert record.teacher.runs[0].startswith("reviews-default-encoder-finetune-small")
            assert record.teacher.compares_states
    (teacher,) = (model["runs"][0]["folder"] for model in table["models"] if model["label"] == "encoder")
    command(*compare, "--output", tmp_path / "taught", "--teacher", teacher)
    (student,) = (tmp_path / "taught" / "runs").glob("*encoder-small*")
    learned = read_record(student).teacher
    assert learned is not None and learned.runs == [Path(teacher).name]


def test_a_comparison_names_what_it_lacks(root: Path, command: Command) -> None:
    for arguments, why in (
        (["--models", "linear", "--plan", "0 1"], "was given without an encoder whose layers it chooses; add --from"),
        (["--from", str(root / "encoder"), "--teacher", "runs/x"], "was given without a student; add --plan"),
        (["--from", "minimal"], "unknown encoder 'minimal'"),
    ):
        assert why in " ".join(command("compare", root / "reviews.csv", *arguments, code=2).err.split())


def test_what_cannot_teach_or_be_started_from_says_why(root: Path, taught_by: Path, tmp_path: Path) -> None:
    def refused(kind: type[RecurraError], why: str, **keys: Any) -> None:
        with pytest.raises(kind, match=why) as caught:
            execute_run(StudyData(machine(root)), tmp_path / f"bad{len(why)}", run(root, "bad", **keys))
        assert "\n" not in str(caught.value)

    refused(
        ConfigurationError, "teacher '.*nowhere' is neither a run, nor an export", teacher=str(tmp_path / "nowhere")
    )
    bare = write_tiny_encoder(tmp_path / "bare")
    refused(CheckpointError, "an encoder without a trained classifier cannot teach", teacher=str(bare))
    others = write_tiny_encoder(tmp_path / "others", labels=["x", "y", "z"])
    refused(ConfigurationError, "has the labels x, y, z, the data have", teacher=str(others))
    refused(ConfigurationError, "'vocab_size' is set by the encoder", overrides={"vocab_size": 90})
    refused(ConfigurationError, "gives both preset", overrides={"preset": "recurrent"})
    refused(ConfigurationError, "unknown encoder 'minilmm' .did you mean 'minilm'", overrides={"encoder": "minilmm"})
    refused(ConfigurationError, "planned with 000000000000", overrides={"encoder_sha256": "0" * 64})
    gone = run(root, "gone", teacher=str(taught_by))
    planned = gone.model_copy(update={"teachers": [gone.teachers[0].model_copy(update={"identity": "0" * 16})]})
    with pytest.raises(RunError, match="not the one that the run was planned with"):
        execute_run(StudyData(machine(root)), tmp_path / "gone", planned)
