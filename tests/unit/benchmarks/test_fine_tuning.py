"""The bench of a whole training: both sides train on the same rows, for as many steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import fine_tuning, models
from benchmarks.lockstep import Job

from recurra.data.encoding import EncodedSplit

STEPS, BATCH = 2, fine_tuning.PROTOCOL.batch_size


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> EncodedSplit:
    dice = np.random.default_rng(0)
    lengths = dice.integers(3, 9, size=3 * STEPS * BATCH)
    ids = dice.integers(5, 900, size=lengths.sum()).astype(np.int32)
    split = EncodedSplit(ids, np.cumsum([0, *lengths]), dice.integers(0, 2, len(lengths)))
    monkeypatch.setattr(fine_tuning.corpora, "Corpus", lambda _: type("Corpus", (), {"train": split})())
    return split


def test_all_train_on_the_same_rows(split: EncodedSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[torch.Tensor]] = {}

    def forward(model: Any, **inputs: Any) -> Any:
        seen[variant].append(inputs["labels"])
        return forwards[type(model)](model, **inputs)

    makers = {name: getattr(models, name) for name in ("ours", "bert")}
    forwards = {type(maker("baseline-tiny")): type(maker("baseline-tiny")).forward for maker in makers.values()}
    for kind in forwards:
        monkeypatch.setattr(kind, "forward", forward)
    rows = []
    picked = fine_tuning._picked
    monkeypatch.setattr(fine_tuning, "_picked", lambda *given: rows.append(picked(*given)) or rows[-1])
    for variant in (fine_tuning.OURS_FP32, fine_tuning.BERT, fine_tuning.BY_LENGTH, fine_tuning.LOOP):
        seen[variant] = []
        fine_tuning.build(Job("fine-tuning", variant, "baseline-tiny", "", 1, STEPS))(1)
    assert {len(batches) for batches in seen.values()} == {STEPS}
    ours, *others = (torch.cat(batches).sort().values for batches in seen.values())
    assert all(torch.equal(ours, theirs) for theirs in others) and len(ours) == STEPS * BATCH
    of_split = {bytes(split[index]["input_ids"]) for index in range(len(split))}
    for other in rows:
        np.testing.assert_array_equal(rows[0].input_ids, other.input_ids)
        assert {bytes(other[index]["input_ids"]) for index in range(len(other))} <= of_split
