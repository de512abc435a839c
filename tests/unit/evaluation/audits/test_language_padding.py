"""The padding audit passes what ignores padding, and finds what reads or counts it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from foreign import tiny_gpt2
from recurra import RecurraForCausalLM
from recurra.core.record import AuditResult
from recurra.evaluation.audits.causality import audit_language_padding
from recurra.evaluation.audits.invariance import TOLERANCE
from recurra.models.rows import PaddedRows
from tiny import language_config, stir

CRT: dict[str, Any] = {"num_recurrences": 3, "exits": [1, 2]}
VARIANTS: dict[str, dict[str, Any]] = {
    "conv+linear": CRT,
    "conv": {**CRT, "feed_forward": "conv"},
    "depthwise": {**CRT, "feed_forward": "depthwise"},
    "leaking": {**CRT, "causal_convolution": False},
    "rotary": {**CRT, "position": "rotary", "norm_placement": "pre", "final_norm": True},
    "SwiGLU, tied": {"feed_forward": "swiglu", "num_cycles": 1, "embedding_cycles": 0, "heads": "tied"},
}


def stirred(kind: type[RecurraForCausalLM] = RecurraForCausalLM, **values: Any) -> RecurraForCausalLM:
    model = kind(language_config(**values))
    stir(model)
    return model


def states(audits: list[AuditResult]) -> dict[str, str]:
    return {audit.name: audit.status for audit in audits}


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_changes_neither_logits_nor_losses(variant: str) -> None:
    audits = audit_language_padding(stirred(**VARIANTS[variant]))
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


def test_a_loss_that_is_no_number_fails() -> None:
    logits, loss = audit_language_padding(stirred(LosesItself, exits=[]))
    assert (logits.status, loss.status, loss.value, loss.threshold) == ("passed", "failed", None, TOLERANCE)
    assert "not finite" in loss.summary


def test_a_model_that_ignores_the_mask_fails_both() -> None:
    audits = audit_language_padding(stirred(IgnoresMask, **CRT))
    assert states(audits) == {"padding.logits": "failed", "padding.loss": "failed"}


def test_a_loss_that_counts_padding_fails() -> None:
    audits = audit_language_padding(stirred(CountsPadding, exits=[]))
    assert states(audits) == {"padding.logits": "passed", "padding.loss": "failed"}
    assert audits[1].value > 1e-3


def test_convolutions_that_read_padding_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PaddedRows, "convolve", lambda self, states, convolution: convolution(states))
    logits, _ = audit_language_padding(stirred(**CRT))
    assert logits.status == "failed" and "left" in logits.summary
