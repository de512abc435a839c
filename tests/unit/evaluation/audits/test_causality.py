"""Audits of language models: what is causal and ignores padding passes, and every leak is found with its reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foreign import tiny_gpt2
from recurra import RecurraForCausalLM, preset
from recurra.core.record import AuditResult
from recurra.evaluation.audits.causality import audit_causality, audit_language_padding, reach_ahead
from recurra.evaluation.audits.invariance import TOLERANCE
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
def test_every_head_of_every_variant_is_causal(variant: str) -> None:
    audits = by_head(audit_causality(stirred(**VARIANTS[variant]), rows=1, tokens=12, long_tokens=48))
    assert list(audits) == ["exit-1", "exit-2", "final"]
    assert {audit.status for audit in audits.values()} == {"passed"}
    assert all(audit.value == 0 and audit.details["exchanged_tokens"] == 13 for audit in audits.values())


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in ("linear", "SwiGLU")])
def test_every_head_leaks_as_far_as_its_shape_can_read(variant: str) -> None:
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


# The large one with other heads is the same body again.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name.startswith("crt-deep-") else name for name in LANGUAGE_PRESETS],
)
def test_every_preset_is_causal_at_its_real_width_and_depth(name: str) -> None:
    """With few words, which the body does not know of; 'recurra audit model crt-deep' takes the real vocabulary."""
    deep = name.startswith("crt-deep")
    values = {"bos_token_id": None, "eos_token_id": None, "vocab_size": 64}
    model = RecurraForCausalLM(preset(name, **values))
    audits = audit_causality(model, rows=1, tokens=4 if deep else 12, long_tokens=20 if deep else 40)
    assert [audit.status for audit in audits] == ["passed"] * (1 + len(model.config.exits))


@pytest.mark.parametrize(
    ("values", "recurrences", "reach"),
    [
        ({"dilations": [1, 2, 4, 8], "num_cycles": 8, "embedding_cycles": 3, "num_recurrences": 8}, None, 247),
        ({"dilations": [1, 2, 4, 8], "num_cycles": 8, "embedding_cycles": 3, "num_recurrences": 8}, 2, 67),
        ({"dilations": [3], "num_cycles": 2, "embedding_cycles": 0, "num_prelude_layers": 1}, None, 18),
        ({"dilations": [1], "num_cycles": 1, "embedding_cycles": 0, "kernel_size": 5}, 1, 2),
        ({"causal_convolution": True}, None, 0),
        ({"causal": False}, None, None),
    ],
)
def test_the_theoretical_reach(values: dict[str, Any], recurrences: int | None, reach: int | None) -> None:
    config = language_config(**{"causal_convolution": False, "exits": [], **values})
    assert reach_ahead(config, recurrences) == reach


def test_a_gpt2_passes() -> None:
    (audit,) = audit_causality(tiny_gpt2(), rows=1, tokens=12)
    assert (audit.name, audit.status) == ("causality.final", "passed")
    assert audit.details["theoretical_reach_tokens"] is None


class PeeksAhead(nn.Module):
    """A GPT-2 whose predictions carry a little of the token three later."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_gpt2()
        self.config = self.inner.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        output = self.inner(input_ids, attention_mask=attention_mask, **kwargs)
        later = input_ids.roll(-3, dims=1).float()
        later[:, -3:] = 0
        output.logits = output.logits + 1e-4 * later[:, :, None]
        return output


def test_a_small_leak_in_a_model_that_is_not_ours_is_found() -> None:
    (audit,) = audit_causality(PeeksAhead(), rows=1, tokens=12)
    assert (audit.status, audit.value) == ("failed", 3.0)
    assert "3 ahead; logits change by up to" in audit.summary and "shape" not in audit.summary


class SaysNothing(nn.Module):
    """Constant logits, which no token can change."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.config = tiny_gpt2().config
        self.value = value

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return type("Output", (), {"logits": torch.full((*input_ids.shape, 40), self.value)})


@pytest.mark.parametrize(("value", "said"), [(0.5, "the model reads nothing"), (float("nan"), "are not finite")])
def test_a_model_that_says_nothing_does_not_pass(value: float, said: str) -> None:
    (audit,) = audit_causality(SaysNothing(value), rows=1, tokens=6)
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
}


def states(audits: list[AuditResult]) -> dict[str, str]:
    return {audit.name: audit.status for audit in audits}


@pytest.mark.parametrize("variant", PADDED)
def test_padding_changes_neither_logits_nor_losses(variant: str) -> None:
    audits = audit_language_padding(stirred(**PADDED[variant]))
    assert states(audits) == {"padding.logits": "passed", "padding.loss": "passed"}
    assert len(audits[0].details["by_case"]) == len(audits[1].details["by_case"]) == 4


def test_a_gpt2_passes_with_its_loss_judged_on_the_right() -> None:
    audits = audit_language_padding(tiny_gpt2())
    assert states(audits) == {"padding.logits": "passed", "padding.loss": "passed"}
    assert set(audits[1].details["by_case"]) == {"padding tokens, right", "masked tokens, right"}
    for audit in audits:
        details = audit.details
        assert details["largest_difference"] == max(details["by_case"].values()) > 0
        assert audit.value == details["largest_difference"] / details["scale"] and details["precision"] == "fp32"
        assert audit.threshold == TOLERANCE


class IgnoresMask(RecurraForCausalLM):
    """Knows nothing of padding."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        return super().forward(input_ids, None, **kwargs)


class CountsPadding(RecurraForCausalLM):
    """Right logits, and a loss over every position: the published defect."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        output = super().forward(input_ids, attention_mask, **kwargs)
        if "labels" in kwargs:
            logits = super().forward(input_ids, attention_mask).logits[:, :-1]
            output.loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten())
        return output


class LosesItself(RecurraForCausalLM):
    """Right logits, and a loss that padding turns into no number."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        output = super().forward(input_ids, attention_mask, **kwargs)
        if "labels" in kwargs and not attention_mask.all():
            output.loss = torch.tensor(torch.nan)
        return output


@pytest.mark.parametrize(
    ("kind", "logits"), [(LosesItself, "passed"), (IgnoresMask, "failed"), (CountsPadding, "passed")]
)
def test_models_that_are_broken_in_one_way_fail_there(kind: type[RecurraForCausalLM], logits: str) -> None:
    audits = audit_language_padding(stirred(kind, exits=[]))
    assert states(audits) == {"padding.logits": logits, "padding.loss": "failed"}
    loss = audits[1]
    if kind is LosesItself:
        assert (loss.value, loss.threshold) == (None, TOLERANCE) and "not finite" in loss.summary
    else:
        assert loss.value > 1e-3


def test_convolutions_that_read_padding_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PaddedRows, "convolve", lambda self, states, convolution: convolution(states))
    logits, _ = audit_language_padding(stirred(**CRT))
    assert logits.status == "failed" and "left" in logits.summary
