"""Loss by position in a window, against a loop over the text and against a model that reads ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from foreign import tiny_gpt2
from recurra.core.record import FINAL_HEAD
from recurra.data.language.tokenization import EncodedText
from recurra.evaluation.perplexity import PositionLoss, evaluate_perplexity, loss_by_position

VOCABULARY = 40


def encoded(lengths: list[int]) -> EncodedText:
    ids = np.random.default_rng(0).integers(1, VOCABULARY, sum(lengths)).astype(np.int32)
    return EncodedText(ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), 0, words=50, num_bytes=300)


@torch.no_grad()
def naive(model: Any, text: np.ndarray, context: int, stride: int) -> dict[int, list[float]]:
    """Nats of each token by position: one call a token, the windows laid by hand."""
    read = [0, *text.tolist()]
    found: dict[int, list[float]] = {}
    for token in range(len(text)):
        start = 0
        while start + context <= token:
            start += stride
        logits = model(input_ids=torch.tensor([read[start : token + 1]])).logits[0, -1].double()
        found.setdefault(token - start, []).append(-float(logits.log_softmax(-1)[text[token]]))
    return found


@pytest.mark.parametrize(("packed", "stride"), [(True, None), (True, 3), (False, None), (False, 1)])
def test_each_position_has_the_mean_of_a_loop_over_the_text(packed: bool, stride: int | None) -> None:
    model, text = tiny_gpt2().eval(), encoded([25, 0, 14, 3])
    texts = [text.joined] if packed else [text.text(index) for index in range(len(text))]
    expected: dict[int, list[float]] = {}
    for each in texts:
        for position, nats in naive(model, each, 8, stride or 8).items():
            expected.setdefault(position, []).extend(nats)
    result = evaluate_perplexity(model, text, context=8, stride=stride, packed=packed, by_position=True)[FINAL_HEAD]
    found = result.positions
    assert found is not None and len(found.loss) == len(found.tokens) == 8
    assert list(found.tokens) == [len(expected.get(position, [])) for position in range(8)]
    for position, loss in enumerate(found.loss):
        assert loss == (pytest.approx(np.mean(expected[position]), rel=1e-4) if position in expected else None)
    assert found.mean(slice(None)) == pytest.approx(result.loss)
    but_last = [nats for position in range(7) for nats in expected.get(position, [])]
    assert found.mean(slice(0, 7)) == pytest.approx(np.mean(but_last), rel=1e-4)


def test_a_position_without_tokens_has_no_loss_and_no_weight() -> None:
    found = loss_by_position(np.array([1.0, 3.0, 5.0]), np.array([2, 2, 0]), 4)
    assert found == PositionLoss((5.0, None, 2.0, None), (1, 0, 2, 0))
    assert (found.mean(slice(None)), found.mean(slice(1, 2)), found.mean(slice(1, None))) == (3.0, None, 2.0)
    assert found.plain() == {"loss": [5.0, None, 2.0, None], "tokens": [1, 0, 2, 0]}
