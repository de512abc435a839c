"""A converted encoder computes what transformers computes, outputs and gradients, on padded and on packed rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModel

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.models.adaptation import convert as table_module
from recurra.models.adaptation.convert import expected_frequencies, factorise_table, load_encoder
from relaxed import RELAXED
from tiny import stir

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "attn_implementation": "eager",
}
ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1}
KINDS: dict[str, dict[str, int]] = {"bert": {}, "roberta": ROBERTA, "xlm-roberta": ROBERTA, "camembert": ROBERTA}
LOOPED = "0 (2 1)x2 3"
Made = Callable[..., tuple[Any, str]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Makes an encoder of transformers with random weights, and saves it."""

    def make(kind: str = "bert") -> tuple[Any, str]:
        theirs = AutoModel.from_config(CONFIG_MAPPING[kind](**SIZES, **KINDS[kind]), add_pooling_layer=False).eval()
        stir(theirs, spread=0.2)
        theirs.save_pretrained(tmp_path / kind)
        return theirs, str(tmp_path / kind)

    return make


def rows(pad: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Four rows of 9, 1, 5 and 7 tokens, padded on the right."""
    lengths = torch.tensor([9, 1, 5, 7])
    mask = (torch.arange(9) < lengths[:, None]).long()
    ids = torch.randint(3, 40, (4, 9), generator=torch.Generator().manual_seed(1))
    return torch.where(mask.bool(), ids, pad), mask


@torch.no_grad()
def states_of(model: Any) -> torch.Tensor:
    ids, mask = rows()
    states: torch.Tensor = model(ids, attention_mask=mask).last_hidden_state
    return states[mask.bool()]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_transformers(made: Made, kind: str) -> None:
    theirs, folder = made(kind)
    ours = load_encoder(folder)
    ids, mask = rows(ours.config.pad_token_id)
    real, weights = mask.bool(), torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(2)) * mask[:, :, None]
    states, padded = theirs(ids, attention_mask=mask).last_hidden_state, ours(ids, mask).last_hidden_state
    torch.testing.assert_close(padded[real], states[real], rtol=1e-5, atol=1e-5)
    packed = ours(ids[real][None], row_lengths=mask.sum(1)).last_hidden_state[0]
    torch.testing.assert_close(packed, states[real], rtol=1e-5, atol=1e-5)
    for found in (states, padded):
        (found * weights).sum().backward()
    wanted = {"embeddings.token": theirs.embeddings.word_embeddings.weight.grad}
    for index, layer in enumerate(theirs.encoder.layer):
        attention = layer.attention.self
        parts = attention.query, attention.key, attention.value
        gradients = {
            "attention.qkv_proj": torch.cat([part.weight.grad for part in parts]),
            "attention.out_proj": layer.attention.output.dense.weight.grad,
            "attention_norm": layer.attention.output.LayerNorm.weight.grad,
            "feed_forward.up_proj": layer.intermediate.dense.weight.grad,
            "feed_forward.down_proj": layer.output.dense.weight.grad,
            "feed_forward_norm": layer.output.LayerNorm.weight.grad,
        }
        wanted |= {f"core.block.layers.{index}.{name}": each for name, each in gradients.items()}
    own = {name: ours.get_parameter(f"{name}.weight").grad for name in wanted}
    torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-5)


def test_a_plan_applies_the_layers_that_it_names(made: Made) -> None:
    theirs, folder = made()
    ours = load_encoder(folder, LOOPED)
    ids, mask = rows()
    with torch.no_grad():
        states = theirs.embeddings(ids)
        allowed = torch.where(mask.bool(), 0.0, torch.finfo(torch.float32).min)[:, None, None, :]
        for number in (0, 2, 1, 2, 1, 3):
            found = theirs.encoder.layer[number](states, allowed)
            states = found[0] if isinstance(found, tuple) else found
    torch.testing.assert_close(states_of(ours), states[mask.bool()], rtol=1e-5, atol=1e-5)
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, theirs)]
    assert counts[0] == counts[1]


# The second with a number of recurrences in place of the plan's.
@pytest.mark.parametrize(("plan", "keys"), [("0 (1 2)x3", {}), ("0 (1)x2", {"num_recurrences": 4})])
def test_relaxations_that_start_from_the_shared_layer_change_nothing_at_first(
    made: Made, plan: str, keys: dict[str, int]
) -> None:
    _, folder = made()
    plain, relaxed = (load_encoder(folder, plan, **keys, **own) for own in ({}, RELAXED))
    assert torch.equal(states_of(plain), states_of(relaxed))
    assert all(layer.attention.qkv_proj.down.any() for stack in relaxed.core.recurrences for layer in stack.layers)


def test_an_adapted_encoder_keeps_what_its_recurrences_have_of_their_own(made: Made, tmp_path: Path) -> None:
    _, folder = made()
    plain, relaxed = str(tmp_path / "plain"), str(tmp_path / "relaxed")
    model = load_encoder(folder, "0 (1 2)x3", recurrence_embedding=True, **RELAXED)
    assert not model.core.recurrence_embedding.weight.any()
    stir(model.core.recurrence_embedding)
    model.save_pretrained(relaxed)
    assert torch.equal(states_of(model), states_of(load_encoder(relaxed)))
    load_encoder(folder, "0 (1 2)x3").save_pretrained(plain)
    with pytest.raises(ConfigurationError, match=r"was adapted without 'core.recurrences.0.*give recurrence_norms and"):
        load_encoder(plain, recurrence_norms=True)
    # Without any, it starts with none to add.
    assert not load_encoder(plain, recurrence_embedding=True).core.recurrence_embedding.weight.any()


def test_a_narrow_table_that_holds_the_encoders_computes_what_it_does(made: Made) -> None:
    """Outputs on padded and packed rows, and gradients: of the factors by the chain rule from those of the table."""
    theirs, folder = made()
    # A token table that a mean and five directions make up, but for the padding's row.
    generator = torch.Generator().manual_seed(4)
    table = torch.randn(40, 5, generator=generator) @ torch.randn(5, 16, generator=generator) + 0.5
    with torch.no_grad():
        theirs.embeddings.word_embeddings.weight.copy_(table)
    theirs.save_pretrained(folder)
    whole, narrow = load_encoder(folder, LOOPED), load_encoder(folder, LOOPED, embedding_size=5)
    assert narrow.embeddings.token.weight.shape == (40, 5)
    ids, mask = rows()
    real, weights = mask.bool(), torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(2)) * mask[:, :, None]
    found = [model(ids, mask).last_hidden_state for model in (whole, narrow)]
    torch.testing.assert_close(found[1][real], found[0][real], rtol=1e-5, atol=1e-5)
    packed = narrow(ids[real][None], row_lengths=mask.sum(1)).last_hidden_state[0]
    torch.testing.assert_close(packed, found[0][real], rtol=1e-5, atol=1e-5)
    for states in found:
        (states * weights).sum().backward()
    own = dict(narrow.named_parameters())
    gradient, factor = whole.embeddings.token.weight.grad, own.pop("embeddings.token.weight")
    up, bias = (own.pop(f"embeddings.projection.{kind}") for kind in ("weight", "bias"))
    assert gradient is not None
    wanted = [gradient @ up, gradient.T @ factor, gradient.sum(0), *(whole.get_parameter(name).grad for name in own)]
    gradients = [parameter.grad for parameter in (factor, up, bias, *own.values())]
    torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-4)


def test_an_adapted_encoder_keeps_its_narrow_table_or_is_given_one(made: Made, tmp_path: Path) -> None:
    _, folder = made()
    narrow = load_encoder(folder, "0 (1)x2", embedding_size=6)
    narrow.save_pretrained(tmp_path / "narrow")
    load_encoder(folder, "0 (1)x2").save_pretrained(tmp_path / "plain")
    again, later = load_encoder(str(tmp_path / "narrow")), load_encoder(str(tmp_path / "plain"), embedding_size=6)
    assert all(torch.equal(states_of(narrow), states_of(each)) for each in (again, later))
    with pytest.raises(ConfigurationError, match=r"'embeddings.token.weight' of shape \(40, 6\), and the model has"):
        load_encoder(str(tmp_path / "narrow"), embedding_size=4)
    with pytest.raises(ConfigurationError, match=r"'embedding_size' is 17, and the token table .* allowed: 1 to 16$"):
        load_encoder(folder, embedding_size=17)


def test_older_names_and_prefixes_are_read_and_what_cannot_be_used_says_why(made: Made) -> None:
    theirs, folder = made()
    with pytest.raises(ConfigurationError, match=r"the model has one of shape \(48, 16\)|sizes and parts"):
        load_encoder(folder, hidden_size=32, num_attention_heads=2)
    with pytest.raises(ConfigurationError, match=r"has no weight 'final_norm.weight'"):
        load_encoder(folder, final_norm=True)
    path = Path(folder) / "model.safetensors"
    weights = load_file(path)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, values in weights.items():
        ending = next((ending for ending in old if name.endswith(ending)), "")
        renamed["bert." + name.removesuffix(ending) + old.get(ending, "")] = values
    save_file(renamed, path)
    torch.testing.assert_close(states_of(load_encoder(folder)), states_of(theirs))
    save_file({name: values for name, values in weights.items() if ".2.output" not in name}, path)
    with pytest.raises(CheckpointError, match=r"lacks weight 'encoder.layer.2.output.dense.weight'"):
        load_encoder(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match="incomplete or damaged safetensors file"):
        load_encoder(folder)


HIDDEN, PIECES = 7, 23


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A table whose mean is far from 0, and frequencies of which some are 0."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(PIECES, HIDDEN, generator=generator) * torch.arange(1, HIDDEN + 1) + 3
    frequencies = torch.rand(PIECES, generator=generator).square()
    frequencies[:3] = 0
    return table, frequencies


@given(seed=st.integers(0, 1000), width=st.integers(1, HIDDEN), rows=st.integers(1, 30))
def test_it_is_the_truncated_svd_of_the_weighted_rows(seed: int, width: int, rows: int) -> None:
    table, frequencies = drawn(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "_ROWS", rows)
        pieces, weight, bias = factorise_table(table, width, frequencies)
    product = pieces @ weight.T + bias
    values, weights = table.double().numpy(), frequencies.double().numpy()
    mean = np.average(values, axis=0, weights=weights)
    left, scales, right = np.linalg.svd(np.sqrt(weights)[:, None] * (values - mean), full_matrices=False)
    kept = weights > 0
    best = (left[:, :width] * scales[:width] @ right[:width])[kept] / np.sqrt(weights[kept])[:, None] + mean
    np.testing.assert_allclose(product.numpy()[kept], best, rtol=1e-4, atol=1e-4)
    # Eckart and Young: what is lost are the singular values that were left out.
    lost = (weights[:, None] * (product.numpy() - values) ** 2).sum()
    np.testing.assert_allclose(lost, (scales[width:] ** 2).sum(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(weight.T @ weight, torch.eye(width), rtol=1e-5, atol=1e-5)


def test_pieces_are_expected_by_their_numbers_and_by_texts() -> None:
    seen_pieces = torch.tensor([4000, 7, 4000, 4], dtype=torch.int32)
    alone, seen = expected_frequencies(5000), expected_frequencies(5000, seen_pieces)
    assert (alone.diff() < 0).all() and alone.sum() == pytest.approx(1)
    found = seen - alone
    assert found[4000] == pytest.approx(0.5) and found[7] == found[4] == pytest.approx(0.25)
    assert found.sum() == pytest.approx(1)
