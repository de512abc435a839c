"""Tokens that leave early while a text is generated, against decoding from its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from recurra import RecurraForCausalLM
from recurra.core.errors import ConfigurationError
from recurra.models.cache import RecurraCache
from recurra.models.exits.rules import ConfidenceRule, ExitRule, confidence
from references.exiting_decoder import decode
from references.exits import stops
from relaxed import RELAXED
from tiny import language_model, stir

CRT: dict[str, Any] = {"num_recurrences": 4, "exits": [1, 3], "max_position_embeddings": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "crt": CRT,
    "tied heads, kernel 4": {**CRT, "heads": "tied", "kernel_size": 4},
    "kernel 1": {**CRT, "kernel_size": 1},
    "rotary, pre-norm, separate heads": {
        **CRT, "position": "rotary", "norm_placement": "pre", "final_norm": True, "heads": "separate",
    },
    "two layers, injection, scale": {**CRT, "num_core_layers": 2, "input_injection": "add", "residual_scale": 0.5},
    "relaxed": {**CRT, **RELAXED, "position": "rotary"},
    "no convolution": {**CRT, "feed_forward": "linear"},
    "SwiGLU": {**CRT, "feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0},
}  # fmt: skip
# Rotary models turn queries and keys in FP32 whatever the states' type.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
LENGTHS = [9, 4, 7]


def model_of(variant: str) -> RecurraForCausalLM:
    model = language_model(**VARIANTS[variant]).double().eval()
    stir(model, spread=0.4)
    return model


def left_padded(lengths: list[int]) -> tuple[Tensor, Tensor]:
    width = max(lengths)
    ids = torch.randint(0, 11, (len(lengths), width), generator=torch.Generator().manual_seed(1))
    return ids, (torch.arange(width) >= width - torch.tensor(lengths)[:, None]).long()


def middle_rule(model: RecurraForCausalLM, ids: Tensor, quantile: float = 0.6) -> ConfidenceRule:
    """A threshold that some tokens reach at the first exit, some later, and some never."""
    with torch.no_grad():
        output = model(ids, output_exits=True)
    return ConfidenceRule.constant(float(confidence(output.exit_logits[0]).quantile(quantile)) * (1 - 1e-9))


@torch.no_grad()
def step_by_step(
    model: RecurraForCausalLM, ids: Tensor, mask: Tensor, prompt: int, rule: ExitRule | None, cache: RecurraCache
) -> tuple[Tensor, Tensor, list[int]]:
    """Logits and recurrences of a prompt's last token and all later ones, and the rows computed in each recurrence."""
    logits, depths, rows = [], [], []
    handle = model.model.core.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    for start, end in [(0, prompt), *((place, place + 1) for place in range(prompt, ids.shape[1]))]:
        output = model(ids[:, start:end], mask[:, :end], past_key_values=cache, exit_rule=rule, logits_to_keep=1)
        logits.append(output.logits[:, 0])
        depth = output.exited_after
        depths.append(torch.full((len(ids),), 4) if depth is None else depth)
    handle.remove()
    return torch.stack(logits, 1), torch.stack(depths, 1), rows


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_row_of_a_batch_is_decoded_as_defined(variant: str) -> None:
    model = model_of(variant)
    ids, mask = left_padded(LENGTHS)
    weights = dict(model.named_parameters())
    rule = middle_rule(model, ids)
    # Two tokens of the shortest row are left to be decoded one by one.
    prompt = max(LENGTHS) - 2
    cache = RecurraCache(model.config)
    logits, depths, rows = step_by_step(model, ids, mask, prompt, rule, cache)
    for row, length in enumerate(LENGTHS):
        with torch.no_grad():
            wanted, deep = decode(
                ids[row, max(LENGTHS) - length :].tolist(),
                weights,
                model.config,
                lambda said, at: stops(rule.plain(), said, at),
                prompt=length - 2,
            )
        torch.testing.assert_close(logits[row], torch.stack(wanted[-3:]), **TOLERANCE)
        assert depths[row].tolist() == [4, *deep[-2:]]
    assert rows == [3] * 4 + [
        int((step >= number).sum()) for step in depths.T[1:] for number in range(1, int(step.max()) + 1)
    ]


def test_greedy_generation_follows_the_definition_and_counts_what_was_taken() -> None:
    model = model_of("crt")
    ids = torch.tensor([[3, 1, 4, 1]])
    rule = middle_rule(model, torch.randint(0, 11, (4, 12), generator=torch.Generator().manual_seed(0)))
    cache = RecurraCache(model.config)
    said = model.generate(
        ids, max_new_tokens=12, do_sample=False, pad_token_id=0, exit_rule=rule, past_key_values=cache
    )
    with torch.no_grad():
        logits, depths = decode(
            said[0, :-1].tolist(),
            dict(model.named_parameters()),
            model.config,
            lambda said, at: stops(rule.plain(), said, at),
            prompt=4,
        )
    assert said[0, 4:].tolist() == [int(each.argmax()) for each in logits[3:]]
    assert sorted(cache.exit_counts.elements()) == sorted(depths[4:])
    assert len(set(depths[4:])) > 1


def test_without_a_cache_the_last_position_decides_for_the_row() -> None:
    model = model_of("crt")
    ids, mask = left_padded(LENGTHS)
    rule = middle_rule(model, ids)
    said = model.generate(
        ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0, exit_rule=rule, use_cache=False
    )
    with torch.no_grad():
        for place in range(9, 14):
            seen = torch.cat((mask, torch.ones(3, place - 9, dtype=torch.long)), 1)
            output = model(said[:, :place], seen, exit_rule=rule, logits_to_keep=1)
            assert torch.equal(output.logits[:, -1].argmax(-1), said[:, place])


def test_a_stock_cache_cannot_fill_in_what_is_skipped() -> None:
    model = model_of("SwiGLU")
    with pytest.raises(ConfigurationError, match="an exit rule came with a DynamicCache; give a RecurraCache"):
        model(torch.tensor([[1]]), past_key_values=DynamicCache(), exit_rule=ConfidenceRule())
