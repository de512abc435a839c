"""A converted encoder computes what transformers computes, outputs and gradients, on padded and on packed rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

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
KINDS: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "bert": (transformers.BertConfig, transformers.BertModel, {}),
    "roberta": (transformers.RobertaConfig, transformers.RobertaModel, ROBERTA),
    "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaModel, ROBERTA),
    "camembert": (transformers.CamembertConfig, transformers.CamembertModel, ROBERTA),
}
Made = Callable[..., tuple[Any, Path]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Makes an encoder of transformers with random weights, and saves it."""

    def make(kind: str = "bert", **sizes: Any) -> tuple[Any, Path]:
        config, model, own = KINDS[kind]
        torch.manual_seed(0)
        theirs = model(config(**{**SIZES, **own, **sizes}), add_pooling_layer=False).eval()
        stir(theirs, spread=0.2)
        theirs.save_pretrained(tmp_path / kind)
        return theirs, tmp_path / kind

    return make


def rows(pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four rows of 9, 1, 5 and 7 tokens, padded on the right."""
    lengths = torch.tensor([9, 1, 5, 7])
    mask = (torch.arange(9) < lengths[:, None]).long()
    ids = torch.randint(3, 40, (4, 9), generator=torch.Generator().manual_seed(1))
    return torch.where(mask.bool(), ids, pad), mask


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_transformers(made: Made, kind: str) -> None:
    theirs, folder = made(kind)
    ours = load_encoder(str(folder))
    ids, mask = rows(ours.config.pad_token_id)
    real, weights = mask.bool(), torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(2)) * mask[:, :, None]
    states, padded = theirs(ids, attention_mask=mask).last_hidden_state, ours(ids, mask).last_hidden_state
    torch.testing.assert_close(padded[real], states[real], rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        packed = ours(ids[real][None], row_lengths=mask.sum(1)).last_hidden_state[0]
    torch.testing.assert_close(packed, states[real], rtol=1e-5, atol=1e-5)
    for found in (states, padded):
        (found * weights).sum().backward()
    own = dict(ours.named_parameters())
    for index, layer in enumerate(theirs.encoder.layer):
        prefix = f"core.block.layers.{index}"
        attention = layer.attention.self
        parts = attention.query, attention.key, attention.value
        pairs = {
            "attention.qkv_proj": torch.cat([part.weight.grad for part in parts]),
            "attention.out_proj": layer.attention.output.dense.weight.grad,
            "attention_norm": layer.attention.output.LayerNorm.weight.grad,
            "feed_forward.up_proj": layer.intermediate.dense.weight.grad,
            "feed_forward.down_proj": layer.output.dense.weight.grad,
            "feed_forward_norm": layer.output.LayerNorm.weight.grad,
        }
        for name, wanted in pairs.items():
            found = own[f"{prefix}.{name}.weight"].grad
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    table, wanted = own["embeddings.token.weight"].grad, theirs.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(table, wanted, rtol=1e-4, atol=1e-5)


def test_a_plan_applies_the_layers_that_it_names(made: Made) -> None:
    theirs, folder = made()
    ours = load_encoder(str(folder), "0 (2 1)x2 3")
    ids, mask = rows(0)
    with torch.no_grad():
        states = theirs.embeddings(ids)
        allowed = torch.where(mask.bool(), 0.0, torch.finfo(torch.float32).min)[:, None, None, :]
        for number in (0, 2, 1, 2, 1, 3):
            found = theirs.encoder.layer[number](states, allowed)
            states = found[0] if isinstance(found, tuple) else found
        own = ours(ids, mask).last_hidden_state
    torch.testing.assert_close(own[mask.bool()], states[mask.bool()], rtol=1e-5, atol=1e-5)
    assert sum(parameter.numel() for parameter in ours.parameters()) == sum(
        parameter.numel() for parameter in theirs.parameters()
    )


def stirred_apart(folder: Path) -> None:
    """Gives the layers norms and biases that tell them apart."""
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    for name, values in weights.items():
        if "encoder.layer" in name and values.dim() == 1:
            weights[name] = values + 0.3 * torch.randn(values.shape, generator=generator)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_relaxations_that_start_from_the_shared_layer_change_nothing_at_first(made: Made) -> None:
    _, folder = made()
    stirred_apart(folder)
    ids, mask = rows(0)
    plain, relaxed = (load_encoder(str(folder), "0 (1 2)x3", **keys) for keys in ({}, RELAXED))
    with torch.no_grad():
        assert torch.equal(plain(ids, mask).last_hidden_state, relaxed(ids, mask).last_hidden_state)
    assert all(layer.attention.qkv_proj.down.any() for stack in relaxed.core.recurrences for layer in stack.layers)
    # A number of recurrences in place of the plan's.
    plain, relaxed = (load_encoder(str(folder), "0 (1)x2", num_recurrences=4, **keys) for keys in ({}, RELAXED))
    with torch.no_grad():
        assert torch.equal(plain(ids, mask).last_hidden_state, relaxed(ids, mask).last_hidden_state)


def test_an_adapted_encoder_keeps_what_its_recurrences_have_of_their_own(made: Made, tmp_path: Path) -> None:
    _, folder = made()
    stirred_apart(folder)
    ids, mask = rows(0)
    relaxed = load_encoder(str(folder), "0 (1 2)x3", recurrence_embedding=True, **RELAXED)
    assert not relaxed.core.recurrence_embedding.weight.any()
    with torch.no_grad():
        relaxed.core.recurrence_embedding.weight.normal_(generator=torch.Generator().manual_seed(0))
        relaxed.save_pretrained(tmp_path / "adapted")
        again = load_encoder(str(tmp_path / "adapted"))
        assert torch.equal(relaxed(ids, mask).last_hidden_state, again(ids, mask).last_hidden_state)
    load_encoder(str(folder), "0 (1 2)x3").save_pretrained(tmp_path / "plain")
    with pytest.raises(ConfigurationError, match=r"was adapted without 'core.recurrences.0.*give recurrence_norms and"):
        load_encoder(str(tmp_path / "plain"), recurrence_norms=True)
    # Without any, it starts with none to add.
    assert not load_encoder(str(tmp_path / "plain"), recurrence_embedding=True).core.recurrence_embedding.weight.any()


def low_rank_table(folder: Path, rank: int) -> None:
    """Gives the encoder a token table that a mean and ``rank`` directions make up, but for the padding's row."""
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(4)
    table = torch.randn(40, rank, generator=generator) @ torch.randn(rank, 16, generator=generator) + 0.5
    weights["embeddings.word_embeddings.weight"] = table
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_narrow_table_that_holds_the_encoders_computes_what_it_does(made: Made) -> None:
    """Outputs on padded and packed rows, and gradients: of the factors by the chain rule from those of the table."""
    _, folder = made()
    low_rank_table(folder, 5)
    whole, narrow = load_encoder(str(folder), "0 (2 1)x2 3"), load_encoder(str(folder), "0 (2 1)x2 3", embedding_size=5)
    assert narrow.embeddings.token.weight.shape == (40, 5)
    ids, mask = rows(0)
    real, weights = mask.bool(), torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(2)) * mask[:, :, None]
    found = [model(ids, mask).last_hidden_state for model in (whole, narrow)]
    torch.testing.assert_close(found[1][real], found[0][real], rtol=1e-5, atol=1e-5)
    packed = narrow(ids[real][None], row_lengths=mask.sum(1)).last_hidden_state[0]
    torch.testing.assert_close(packed, found[0][real], rtol=1e-5, atol=1e-5)
    for states in found:
        (states * weights).sum().backward()
    wanted, table, up = whole.embeddings.token.weight.grad, narrow.embeddings.token, narrow.embeddings.projection
    assert wanted is not None
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(table.weight.grad, wanted @ up.weight, **close)
    torch.testing.assert_close(up.weight.grad, wanted.T @ table.weight, **close)
    torch.testing.assert_close(up.bias.grad, wanted.sum(0), **close)
    others = dict(whole.named_parameters())
    for name, parameter in narrow.named_parameters():
        if "embeddings.token." not in name and "projection" not in name:
            torch.testing.assert_close(parameter.grad, others[name].grad, **close, msg=lambda m, n=name: f"{n}: {m}")


def test_an_adapted_encoder_keeps_its_narrow_table_or_is_given_one(made: Made, tmp_path: Path) -> None:
    _, folder = made()
    ids, mask = rows(0)
    narrow = load_encoder(str(folder), "0 (1)x2", embedding_size=6)
    narrow.save_pretrained(tmp_path / "narrow")
    load_encoder(str(folder), "0 (1)x2").save_pretrained(tmp_path / "plain")
    again = load_encoder(str(tmp_path / "narrow"))
    later = load_encoder(str(tmp_path / "plain"), embedding_size=6)
    with torch.no_grad():
        wanted, *found = (model(ids, mask).last_hidden_state for model in (narrow, again, later))
    assert all(torch.equal(wanted, each) for each in found)
    with pytest.raises(ConfigurationError, match=r"'embeddings.token.weight' of shape \(40, 6\), and the model has"):
        load_encoder(str(tmp_path / "narrow"), embedding_size=4)
    with pytest.raises(ConfigurationError, match=r"'embedding_size' is 17, and the token table .* allowed: 1 to 16$"):
        load_encoder(str(folder), embedding_size=17)


def test_older_names_and_prefixes_are_read(made: Made) -> None:
    theirs, folder = made()
    ids, mask = rows(0)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, values in load_file(folder / "model.safetensors").items():
        ending = next((ending for ending in old if name.endswith(ending)), "")
        renamed["bert." + name.removesuffix(ending) + old.get(ending, "")] = values
    save_file(renamed, folder / "model.safetensors")
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=mask).last_hidden_state[mask.bool()]
        torch.testing.assert_close(load_encoder(str(folder))(ids, mask).last_hidden_state[mask.bool()], wanted)


def test_what_cannot_be_used_says_why(made: Made, tmp_path: Path) -> None:
    _, folder = made()
    with pytest.raises(ConfigurationError, match=r"the model has one of shape \(48, 16\)|sizes and parts"):
        load_encoder(str(folder), hidden_size=32, num_attention_heads=2)
    with pytest.raises(ConfigurationError, match=r"has no weight 'final_norm.weight'"):
        load_encoder(str(folder), final_norm=True)
    weights = load_file(folder / "model.safetensors")
    kept = {name: values for name, values in weights.items() if ".2.output" not in name}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks weight 'encoder.layer.2.output.dense.weight'"):
        load_encoder(str(folder))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="incomplete or damaged safetensors file"):
        load_encoder(str(folder))


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
