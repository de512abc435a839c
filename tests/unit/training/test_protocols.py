"""Training protocols: the papers' own, and what a user may change."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import TrainingArguments

from recurra.core.configuration import write_yaml
from recurra.core.errors import ConfigurationError
from recurra.training.fit import training_arguments
from recurra.training.protocols import PROTOCOLS, ProtocolConfig, load_protocol


def test_the_papers_protocol_is_the_papers() -> None:
    paper = PROTOCOLS["paper"]
    assert (paper.learning_rate, paper.batch_size, paper.max_epochs, paper.max_grad_norm) == (3e-5, 16, 5, 1.0)
    assert (paper.schedule, paper.plateau_factor, paper.plateau_patience) == ("plateau", 0.5, 2)
    assert (paper.early_stopping_patience, paper.early_stopping_threshold) == (3, 1e-3)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_becomes_arguments_of_the_trainer(name: str, tmp_path: Path) -> None:
    protocol = PROTOCOLS[name]
    arguments = training_arguments(protocol, tmp_path, seed=0, precision="fp32")
    assert isinstance(arguments, TrainingArguments)
    assert arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps == protocol.batch_size
    assert arguments.learning_rate == protocol.learning_rate
    assert arguments.max_grad_norm == protocol.max_grad_norm
    assert (arguments.metric_for_best_model, arguments.greater_is_better) == ("eval_loss", False)
    assert not arguments.bf16 and training_arguments(protocol, tmp_path, seed=0, precision="bf16").bf16
    assert protocol.name == name


def test_values_can_be_changed_by_name_and_from_a_file(tmp_path: Path) -> None:
    changed = load_protocol("paper", ["learning_rate=1e-4", "max_epochs=2"])
    assert (changed.learning_rate, changed.max_epochs, changed.batch_size) == (1e-4, 2, 16)
    path = tmp_path / "mine.yaml"
    path.write_text(write_yaml(changed.plain()), encoding="utf-8")
    assert load_protocol(str(path)) == changed
    assert load_protocol(str(path), ["batch_size=4"]).batch_size == 4


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        (
            "papre",
            [],
            r"unknown protocol 'papre' \(did you mean 'paper'\?\); allowed: paper, tuned, demo, a .yaml file",
        ),
        (
            "paper",
            ["learning_rat=1"],
            r"protocol 'paper': unknown key 'learning_rat' \(did you mean 'learning_rate'\?\)",
        ),
        ("paper", ["learning_rate=-1"], r"'learning_rate' is -1: input should be greater than 0"),
        ("paper", ["schedule=plato"], r"'schedule' is \"plato\""),
        ("paper", ["gradient_accumulation=3"], r"'gradient_accumulation' is 3: must divide batch_size 16"),
        ("nowhere.yaml", [], r"cannot read 'nowhere.yaml'"),
    ],
)
def test_a_mistake_is_one_clear_line(name: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_protocol(name, overrides)
    assert "\n" not in str(caught.value)


def test_a_protocol_says_what_it_is() -> None:
    assert all(field in (ProtocolConfig.__doc__ or "") for field in ProtocolConfig.model_fields)
