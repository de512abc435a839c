"""Audits of language models: what is causal and ignores padding passes, and every leak is found with its reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foreign import tiny_gpt2
from recurra import RecurraForCausalLM, preset
from recurra.core.record import AuditResult
from recurra.evaluation.audits.models import TOLERANCE, audit_causality, audit_language_padding, reach_ahead
from recurra.models.names import LANGUAGE_PRESETS
from recurra.models.rows import PaddedRows
from tiny import language_config, language_model, stir

CRT: dict[str, Any] = {"num_recurrences": 3, "exits": [1, 2], "max_position_embeddings": 128}
VARIANTS: dict[str, dict[str, Any]] = {
    "shared heads": CRT,
    "separate heads": {**CRT, "heads": "separate"},
    "tied heads": {**CRT, "heads": "tied"},
    "conv": {**CRT, "feed_forward": "conv"},
    "linear": {**CRT, "feed_forward": "linear"},
    "depthwise": {**CRT, "feed_forward": "depthwise"},
    "kernel 5": {**CRT, "kernel_size": 5, "num_cycles": 1},
    "pre-norm RMS, rotary, final norm": {
        **CRT, "norm": "rms", "norm_placement": "pre", "position": "rotary", "final_norm": True,
    },
    "no norm": {**CRT, "norm": "none"},
    "two layers, prelude": {**CRT, "num_core_layers": 2, "num_prelude_layers": 1, "num_cycles": 1},
    "SwiGLU": {**CRT, "feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0},
}  # fmt: skip


def by_head(audits: list[AuditResult]) -> dict[str, AuditResult]:
    return {audit.name.removeprefix("causality."): audit for audit in audits}


def stirred(kind: type[RecurraForCausalLM] = RecurraForCausalLM, **values: Any) -> RecurraForCausalLM:
    model = kind(language_config(**values))
    stir(model)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_head_of_every_variant_is_causal_and_a_leak_reaches_as_far_as_its_shape(variant: str) -> None:
    audits = by_head(audit_causality(stirred(**VARIANTS[variant]), rows=1, tokens=12, long_tokens=48))
    assert list(audits) == ["exit-1", "exit-2", "final"]
    assert {audit.status for audit in audits.values()} == {"passed"}
    assert all(audit.value == 0 and audit.details["exchanged_tokens"] == 13 for audit in audits.values())
    if variant in ("linear", "SwiGLU"):
        return
    # The furthest token comes through the outermost tap of every convolution: with few channels FP32 may lose it.
    model = stirred(**VARIANTS[variant], causal_convolution=False, hidden_size=64)
    audits = by_head(audit_causality(model, rows=1, tokens=12))
    for head, recurrences in (("exit-1", 1), ("exit-2", 2), ("final", 3)):
        audit, reach = audits[head], reach_ahead(model.config, recurrences)
        assert audit.status == "failed" and audit.value == audit.details["reach_tokens"] == reach
        position, reads = audit.details["position"], audit.details["reads"]
        assert reads - position == reach and audit.details["largest_difference"] > 0
        assert f"the prediction at position {position} reads token {reads}, {reach} ahead" in audit.summary
        assert f"its shape can read {reach} ahead" in audit.summary


@pytest.mark.parametrize(
    "name",
    # The large one with other heads is the same body again.
    [pytest.param(name, marks=pytest.mark.slow) if name.startswith("crt-deep-") else name for name in LANGUAGE_PRESETS],
)
def test_every_preset_is_causal_at_its_real_width_and_depth(name: str) -> None:
    """With few words, which the body does not know of; 'recurra audit model crt-deep' takes the real vocabulary."""
    tokens, long_tokens = (4, 20) if name.startswith("crt-deep") else (12, 40)
    model = RecurraForCausalLM(preset(name, bos_token_id=None, eos_token_id=None, vocab_size=64))
    audits = audit_causality(model, rows=1, tokens=tokens, long_tokens=long_tokens)
    assert [audit.status for audit in audits] == ["passed"] * (1 + len(model.config.exits))


def test_the_theoretical_reach() -> None:
    deep = {"dilations": [1, 2, 4, 8], "num_cycles": 8, "embedding_cycles": 3, "num_recurrences": 8}
    for values, recurrences, reach in (
        (deep, None, 247),
        (deep, 2, 67),
        ({"dilations": [3], "num_cycles": 2, "embedding_cycles": 0, "num_prelude_layers": 1}, None, 18),
        ({"causal_convolution": True}, None, 0),
        ({"causal": False}, None, None),
    ):
        config = language_config(**{"causal_convolution": False, "exits": [], **values})
        assert reach_ahead(config, recurrences) == reach


class NotOurs(nn.Module):
    """A GPT-2 of which a test changes the logits."""

    def __init__(self, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = tiny_gpt2()
        self.config, self.change = self.inner.config, change

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        output = self.inner(input_ids, attention_mask=attention_mask, **kwargs)
        output.logits = self.change(output.logits, input_ids)
        return output


def peeking(logits: Tensor, input_ids: Tensor) -> Tensor:
    """A little of the token three later."""
    later = input_ids.roll(-3, dims=1).float()
    later[:, -3:] = 0
    return logits + 1e-4 * later[:, :, None]


def saying(value: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda logits, _: torch.full_like(logits, value)


def test_of_models_that_are_not_ours_a_small_leak_is_found_and_silence_is_no_pass() -> None:
    (audit,) = audit_causality(tiny_gpt2(), rows=1, tokens=12)
    assert (audit.name, audit.status) == ("causality.final", "passed")
    assert audit.details["theoretical_reach_tokens"] is None
    (audit,) = audit_causality(NotOurs(peeking), rows=1, tokens=12)
    assert (audit.status, audit.value) == ("failed", 3.0)
    assert "3 ahead; logits change by up to" in audit.summary and "shape" not in audit.summary
    for value, said in ((0.5, "the model reads nothing"), (float("nan"), "are not finite")):
        (audit,) = audit_causality(NotOurs(saying(value)), rows=1, tokens=6)
        assert audit.status == "failed" and said in audit.summary


def test_batch_norms_read_the_future_in_training_alone() -> None:
    model = language_model(norm="batch")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    audits = {audit.name: audit for audit in audit_causality(model)}
    heads = [f"exit-{number}" for number in model.config.exits] + ["final"]
    assert [audits[f"causality.{head}"].status for head in heads] == ["passed"] * len(heads)
    for head in heads:
        audit = audits[f"causality.training.{head}"]
        assert audit.status == "failed" and audit.details["position"] == 0
        # From the first position to the last: nothing of the row is out of reach.
        assert audit.value == audit.details["reads"] > 20
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any("training" in name for name in (a.name for a in audit_causality(tiny_gpt2())))


PADDED: dict[str, dict[str, Any]] = {
    "conv+linear": CRT,
    "conv": {**CRT, "feed_forward": "conv"},
    "depthwise": {**CRT, "feed_forward": "depthwise"},
    "leaking": {**CRT, "causal_convolution": False},
    "rotary": {**CRT, "position": "rotary", "norm_placement": "pre", "final_norm": True},
    "SwiGLU, tied": {"feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0, "heads": "tied"},
    "GPT-2": {},
}


@pytest.mark.parametrize("variant", PADDED)
def test_padding_changes_neither_logits_nor_losses(variant: str) -> None:
    model = tiny_gpt2() if variant == "GPT-2" else stirred(**PADDED[variant])
    logits, loss = audit_language_padding(model)
    assert (logits.name, loss.name) == ("padding.logits", "padding.loss")
    assert len(logits.details["by_case"]) == 4
    # Of others the loss is judged on the right alone.
    cases = [f"{kind} tokens, {side}" for kind in ("padding", "masked") for side in ("right", "left")]
    assert [*loss.details["by_case"]] == (cases[::2] if variant == "GPT-2" else cases)
    for audit in (logits, loss):
        details = audit.details
        assert audit.status == "passed" and audit.threshold == TOLERANCE and details["precision"] == "fp32"
        assert details["largest_difference"] == max(details["by_case"].values())
        assert audit.value == details["largest_difference"] / details["scale"]


class Broken(RecurraForCausalLM):
    """A model that pads wrongly in one way."""

    way = ""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        output = super().forward(input_ids, None if self.way == "ignores the mask" else attention_mask, **kwargs)
        if self.way == "loses itself" and "labels" in kwargs and not attention_mask.all():
            output.loss = torch.tensor(torch.nan)
        if self.way == "counts padding" and "labels" in kwargs:
            # Right logits, and a loss over every position: the published defect.
            logits = super().forward(input_ids, attention_mask).logits[:, :-1]
            output.loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten())
        return output


@pytest.mark.parametrize("way", ["loses itself", "ignores the mask", "counts padding", "convolves padding"])
def test_models_that_are_broken_in_one_way_fail_there(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "convolves padding":
        monkeypatch.setattr(PaddedRows, "convolve", lambda self, states, convolution: convolution(states))
    model = stirred(Broken, exits=[])
    model.way = way
    logits, loss = audit_language_padding(model)
    assert logits.status == ("failed" if way in ("ignores the mask", "convolves padding") else "passed")
    if way == "convolves padding":
        assert "left" in logits.summary
        return
    assert loss.status == "failed"
    if way == "loses itself":
        assert (loss.value, loss.threshold) == (None, TOLERANCE) and "not finite" in loss.summary
    else:
        assert loss.value > 1e-3
