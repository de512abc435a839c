"""Logits of many rows, in the order of the rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recurra.core.errors import ConfigurationError
from recurra.models.inference import check_precision, predict_logits
from tiny import tiny_model


def test_rows_come_back_in_their_own_order_whatever_the_batches() -> None:
    model = tiny_model().train()
    ids = torch.randint(1, 40, (5, 6))
    batches = [(np.array(rows), {"input_ids": ids[rows]}) for rows in ([3, 0], [4], [1, 2])]
    logits = predict_logits(model, batches, 5)
    assert model.training
    with torch.no_grad():
        wanted = model.eval()(ids).logits.numpy()
    np.testing.assert_allclose(logits, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="an accelerator computes FP16")
def test_fp16_is_refused_on_a_cpu() -> None:
    with pytest.raises(ConfigurationError, match="precision 'fp16' needs an accelerator"):
        check_precision("fp16")


@pytest.mark.parametrize("supported", [True, False])
def test_where_bf16_is_missing_fp16_is_named(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported or including_emulation)
    assert [check_precision(name) for name in ("fp32", "fp16")] == ["fp32", "fp16"]
    if supported:
        assert check_precision("bf16") == "bf16"
        return
    with pytest.raises(ConfigurationError, match="bf16' is not supported by this accelerator; use fp16, whose loss is"):
        check_precision("bf16")
