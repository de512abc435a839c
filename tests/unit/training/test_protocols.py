"""Training protocols: the papers' own, and what a user may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from recurra.core.configuration import content_hash, write_yaml
from recurra.core.errors import ConfigurationError
from recurra.training.fit import training_arguments
from recurra.training.protocols import PROTOCOLS, ProtocolConfig, finetuning_for, load_protocol


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_becomes_arguments_of_the_trainer(name: str, tmp_path: Path) -> None:
    protocol = PROTOCOLS[name]
    arguments = training_arguments(protocol, tmp_path, seed=0, precision="fp32")
    assert arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps == protocol.batch_size
    assert arguments.learning_rate == protocol.learning_rate
    assert arguments.max_grad_norm == protocol.max_grad_norm
    assert arguments.metric_for_best_model == f"eval_{protocol.selection}"
    assert arguments.greater_is_better == (protocol.selection == "accuracy")
    assert not arguments.bf16 and training_arguments(protocol, tmp_path, seed=0, precision="bf16").bf16
    assert protocol.name == name


def test_values_can_be_changed_by_name_and_from_a_file(tmp_path: Path) -> None:
    changed = load_protocol("paper", {"learning_rate": 1e-4, "max_epochs": 2})
    assert (changed.learning_rate, changed.max_epochs, changed.batch_size) == (1e-4, 2, 16)
    path = tmp_path / "mine.yaml"
    path.write_text(write_yaml(changed.plain()), encoding="utf-8")
    assert load_protocol(str(path)) == changed
    assert load_protocol(str(path), {"batch_size": 4}).batch_size == 4


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("papre", {}, r"unknown protocol 'papre' \(did you mean 'paper'\?\); allowed: paper, .*, a .yaml file"),
        ("paper", {"learning_rat": 1}, r"protocol 'paper': unknown key 'learning_rat' \(did you mean 'learning_rate'"),
        ("paper", {"learning_rate": -1}, r"'learning_rate' is -1: input should be greater than 0"),
        ("paper", {"gradient_accumulation": 3}, r"'gradient_accumulation' is 3: must divide batch_size 16"),
        ("paper", {"selection": "accuracy"}, "'selection' is accuracy: the plateau schedule waits for the loss; take "),
        ("paper", {"curriculum_epochs": 6}, r"'curriculum_epochs' is 6; allowed: 0 to max_epochs, which is 5"),
        (
            "paper",
            {"auxiliary_epochs": 0, "auxiliary_learning_rate": 1e-3},
            r"'auxiliary_learning_rate' is 0.001 without its stage; set auxiliary_epochs above 0",
        ),
        ("nowhere.yaml", {}, r"cannot read 'nowhere.yaml'"),
    ],
)
def test_a_mistake_is_one_clear_line(name: str, overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_protocol(name, overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("tuned", "distillation_weight", 0.5, "without a teacher; give teacher=FOLDER"),
        ("tuned", "state_weight", 0.0, "without a teacher"),
        ("tuned", "distillation_temperature", 1.0, "without a teacher"),
        ("tuned", "student_factor", 2.0, "without a teacher"),
        ("tuned", "plateau_factor", 0.1, "with schedule=cosine; take schedule=plateau"),
        ("tuned", "plateau_patience", 1, "with schedule=cosine"),
        ("paper", "warmup_ratio", 0.1, "with schedule=plateau; take another schedule"),
    ],
)
def test_a_key_that_changes_nothing_is_refused_where_a_user_gives_it(
    name: str, key: str, value: object, message: str
) -> None:
    protocol = load_protocol(name, {key: value})
    with pytest.raises(ConfigurationError, match=f"'{key}' is {value}, which changes nothing {message}"):
        protocol.refuse_unused({key: value}, taught=False)
    schedule = "plateau" if "plateau" in key else "cosine"
    used = protocol.model_copy(update={"schedule": schedule, "exit_distillation": 0.5})
    used.refuse_unused({key: value}, taught=True)


# Younger than the first records: name, default, another value.
LATER = {
    "adam_betas": ([0.9, 0.999], [0.9, 0.95]),
    "selection": ("loss", "accuracy"),
    "token_dropout": (0.0, 0.1),
    "weight_averaging": (0.0, 0.99),
    "activation_checkpointing": (False, True),
    "auxiliary_epochs": (0, 1),
    "auxiliary_learning_rate": (None, 1e-3),
    "teacher": ("", "runs/teacher"),
    "distillation_weight": (0.7, 0.5),
    "distillation_temperature": (2.0, 1.0),
    "state_weight": (1.0, 0.0),
    "student_factor": (1.0, 2.5),
    "selection_rows": (0, 100),
    "class_weights": ("none", "balanced"),
    "curriculum_epochs": (0, 3),
    "sampled_recurrences": (False, True),
    "exit_distillation": (0.0, 0.5),
}


def test_a_later_key_at_its_default_changes_no_identity_and_with_another_value_does() -> None:
    """The hash of the papers' protocol is that of its first records, which know none of the later keys."""
    paper, tuned = PROTOCOLS["paper"].plain(), PROTOCOLS["tuned"].plain()
    assert paper.keys() == ProtocolConfig.model_fields.keys() - LATER.keys()
    assert content_hash(paper) == "2ffd22a16bab2605"
    written = {**tuned, **{name: default for name, (default, _) in LATER.items()}}
    assert ProtocolConfig.parse(written).plain() == tuned
    for name, (_, other) in LATER.items():
        if not name.endswith("_learning_rate"):
            changed = ProtocolConfig.parse({**tuned, name: other})
            assert changed.plain() == {**tuned, name: other}
            assert content_hash(changed.plain()) != content_hash(tuned)
            assert ProtocolConfig.parse(changed.plain()) == changed
    # A dropped key is read at its default alone.
    assert ProtocolConfig.parse({**tuned, "focal_gamma": 0.0}).plain() == tuned
    with pytest.raises(ConfigurationError, match="unknown key 'focal_gamma'"):
        ProtocolConfig.parse({**tuned, "focal_gamma": 2.0})


def test_students_may_train_longer_than_who_teaches_them() -> None:
    protocol = PROTOCOLS["finetune-small"]
    taught, alone = protocol.for_model(taught=True), protocol.for_model(taught=False)
    assert (taught.max_epochs, alone.max_epochs) == (10, 4)
    assert taught.student_factor == alone.student_factor == 1
    assert load_protocol("finetune-small", {"max_epochs": 1}).for_model(taught=True).max_epochs == 3
    assert taught.model_copy(update={"max_epochs": alone.max_epochs}) == alone
    assert PROTOCOLS["finetune"].for_model(taught=True) == PROTOCOLS["finetune"]


def test_the_number_of_rows_chooses_how_an_encoder_is_tuned() -> None:
    sizes = {"few": (50, 100), "small": (101, 5_000), "": (5_001, 20_000), "large": (20_001, 10**6)}
    for kind, numbers in sizes.items():
        for rows in numbers:
            name, reason = finetuning_for(rows)
            assert name == f"finetune-{kind}".rstrip("-") and name in PROTOCOLS
            assert f"{rows:,} training rows" in reason
