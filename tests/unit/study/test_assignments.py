"""From ``key=value`` and options to configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import ConfigurationError
from recurra.data.configuration import DataConfig
from recurra.study.assignments import read_assignments, sort_keywords
from recurra.tasks.classification.task import TASK
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.protocols import ProtocolConfig

KEYS = [*ProtocolConfig.model_fields, *(f"data.{key}" for key in DataConfig.model_fields), "model.anything"]


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 99)), unique_by=lambda pair: pair[0]))
def test_every_pair_goes_to_its_section_and_none_is_lost(pairs: list[tuple[str, int]]) -> None:
    found = read_assignments(f"{key}={value}" for key, value in pairs)
    found.check(TASK, model_keys=True)
    sections = {"": found.protocol, "data.": found.data, "model.": found.model}
    again = [(f"{section}{key}", str(value)) for section, values in sections.items() for key, value in values.items()]
    assert sorted(again) == sorted((key, str(value)) for key, value in pairs)


def test_values_are_read_as_yaml() -> None:
    found = read_assignments(
        ["data.fraction=0.5", "model.final_norm=true", "model.input_injection=add", "data.test=null", "max_epochs=3"]
    )
    assert read_assignments(["teacher=2024"]).protocol == {"teacher": "2024"}
    assert found.data == {"fraction": 0.5, "test": None} and found.protocol == {"max_epochs": 3}
    assert found.model == {"final_norm": True, "input_injection": "add"}


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("max_epoch=3", "did you mean 'max_epochs'"),
        ("max_length=64", "did you mean 'data.max_length'"),
        ("dta.fraction=0.5", "did you mean 'data.fraction'"),
        ("data.fractoin=0.5", "did you mean 'data.fraction'"),
        ("max_epochs", "write key=value"),
        ("=3", "write key=value"),
    ],
)
def test_unknown_keys_are_refused_with_a_suggestion(assignment: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_assignments([assignment]).check(TASK, model_keys=True)
    assert said in str(caught.value)


def test_keys_of_the_model_are_refused_where_several_are_compared() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown key 'model\.hidden_size'"):
        read_assignments(["model.hidden_size=8"]).check(TASK, model_keys=False)


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
    "given",
    [
        {"adam_betas": (0.9, 0.95)},
        {"adam_betas": np.array([0.9, 0.95])},
        {"teacher": "runs/a=b"},
        {"learning_rate": 3e-5},
    ],
)
def test_keywords_are_what_the_same_pairs_are_on_a_command_line(given: dict[str, Any]) -> None:
    base, found = sort_keywords(
        {"max_length": 64, "data_protocol": "pooled", **given}, {"base": "paper", "max_epochs": np.int64(5)}, task=TASK
    )
    values = "\n".join(
        f"{key}={value if isinstance(value, str | float) else [*map(float, value)]}" for key, value in given.items()
    )
    pairs = ["max_epochs=5", *values.splitlines(), "data.max_length=64", "data.protocol=pooled"]
    wanted = read_assignments(pairs)
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
