"""What a small encoder learns: states, relations as MiniLMv2 defines them, and states after fewer passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

from recurra.core.errors import ConfigurationError
from recurra.data.passages import Passages, PassageSource
from recurra.models.adaptation.convert import load_encoder
from recurra.training.general_distillation import LOSS, TERMS, GeneralDistillation, relation_divergence
from tiny_encoder import write_tiny_encoder

HEADS, HEAD_DIM, LENGTHS = 2, 4, (5, 3)
Projected = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def by_definition(student: Projected, teacher: Projected) -> float:
    """Equations 5 and 6 of the paper, a head and a position at a time, with weights of 1 for the three relations."""
    width, total = HEADS * HEAD_DIM, 0.0
    for part in range(3):
        divergences = []
        for row, length in enumerate(LENGTHS):
            for head in range(HEADS):
                start = part * width + head * HEAD_DIM
                given, wanted = (
                    softmax(vectors @ vectors.T / np.sqrt(HEAD_DIM), axis=-1)
                    for vectors in (each[row, :length, start : start + HEAD_DIM] for each in (student, teacher))
                )
                divergences += (wanted * np.log(wanted / given)).sum(-1).tolist()
        total += float(np.mean(divergences))
    return total


def test_relations_are_those_of_the_definition_and_padding_is_none() -> None:
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(2, len(LENGTHS), max(LENGTHS), 3 * HEADS * HEAD_DIM)).astype(np.float32)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    found = relation_divergence(torch.from_numpy(student), torch.from_numpy(teacher), mask.long(), HEADS)
    assert found.item() == pytest.approx(by_definition(student, teacher), rel=1e-5) and found.item() > 0.1
    assert relation_divergence(*[torch.from_numpy(teacher)] * 2, mask.long(), HEADS).item() == 0


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_encoder(tmp_path_factory.mktemp("tiny") / "encoder", layers=3, initializer_range=0.3))


def teaching(encoder: str, loss: Sequence[str] = LOSS, **keys: Any) -> GeneralDistillation:
    lengths = [6, 9] * 40
    ids = np.random.default_rng(0).integers(5, 20, sum(lengths)).astype(np.int32)
    source = PassageSource("tiny", "", 80, 0, ids, np.cumsum([0, *lengths]))
    student, teacher = load_encoder(encoder, "0 (1)x2", **keys), load_encoder(encoder)
    return GeneralDistillation(student, teacher, (1, 2, 3), Passages([source], 0), 5000, in_tokens=True, loss=loss)


def test_queries_keys_and_values_are_those_of_the_last_layer_that_is_applied(encoder: str) -> None:
    training = teaching(encoder, ("relations",))
    ids, mask = training._batch_of([np.array([2, 7, 8, 3]), np.array([2, 9, 3])])
    with torch.no_grad():
        states, projected = training._states(training.student, ids, mask)
    assert projected is not None
    assert len(states) == 4
    projection = dict(training.student.named_modules())["core.block.layers.0.attention.qkv_proj"]
    # The states may have been computed in bf16.
    torch.testing.assert_close(projected.float(), projection(states[-2]), rtol=0.02, atol=0.02)


def test_a_loss_is_the_sum_of_its_terms(encoder: str) -> None:
    batch = [np.array([2, 7, 8, 3]), np.array([2, 9, 3])]
    losses = {}
    for terms in [*((term,) for term in TERMS), LOSS, TERMS]:
        training = teaching(encoder, terms)
        losses[terms] = training._compare(*training._batch_of(batch))[0].item()
    for terms, loss in losses.items():
        assert loss == pytest.approx(sum(losses[term,] for term in terms), rel=1e-5) and loss > 0
    with pytest.raises(ConfigurationError, match=r"unknown term of the loss 'relation' \(did you mean 'relations'"):
        teaching(encoder, ("relation",))
    with pytest.raises(ConfigurationError, match="no term of the loss is given"):
        teaching(encoder, ())


def test_relations_alone_are_learned(encoder: str) -> None:
    training = teaching(encoder, ("relations",))
    rows = [training._passages.row(0, row) for row in range(1, 60, 3)]
    ids, mask = training._batch_of(rows)
    before = training._compare(ids, mask)[0].item()
    for _ in range(20):
        training._step(rows)
    assert training._compare(ids, mask)[0].item() < 0.9 * before


def test_a_student_with_exits_learns_the_last_states_after_each_pass(
    encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = teaching(encoder, exits=[1])
    rows = [training._passages.row(0, row) for row in range(1, 60, 3)]
    ids, mask = training._batch_of(rows)
    stops: list[int | None] = []
    compare = GeneralDistillation._compare

    def seen(self: GeneralDistillation, *given: Any) -> Any:
        stops.append(given[2])
        return compare(self, *given)

    with torch.no_grad():
        before = [training._compare(ids, mask, stop)[0].item() for stop in (1, 2)]
        # As the student of one pass, whose last application learns the teacher's last layer.
        shallow = teaching(encoder)
        shallow.student, shallow._matched = load_encoder(encoder, "0 1").eval(), (1, 3)
        assert before[0] == pytest.approx(shallow._compare(ids, mask)[0].item(), rel=1e-5)
    monkeypatch.setattr(GeneralDistillation, "_compare", seen)
    for _ in range(20):
        training._step(rows)
    assert set(stops) == {1, 2}
    with torch.no_grad():
        after = [compare(training, ids, mask, stop)[0].item() for stop in (1, 2)]
    assert all(now < 0.9 * first for now, first in zip(after, before, strict=True))
