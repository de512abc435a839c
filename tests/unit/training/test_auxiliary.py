"""Labels of another task first: the encoder is shared, the classifier's own head is not touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recurra.core.progress import Reporter
from recurra.training.fit import classifier_beside, train_auxiliary
from recurra.training.protocols import ProtocolConfig
from tiny import tiny_model, tiny_split

SPLIT = tiny_split(rows=64, seed=3)
FIVE = replace(SPLIT, labels=np.array([SPLIT[row]["input_ids"][1] * 5 // 40 for row in range(64)], dtype=np.int64))


def protocol(**values: Any) -> ProtocolConfig:
    settings = {"learning_rate": 1e-2, "batch_size": 16, "max_epochs": 1, "early_stopping_patience": 0}
    return ProtocolConfig(**{"name": "test", **settings, "auxiliary_epochs": 8, "schedule": "constant", **values})


def train(model: Any, folder: Path) -> bool:
    return train_auxiliary(
        model, FIVE, protocol(), folder, seed=0, precision="fp32", change_inputs=None, reporter=Reporter(quiet=True)
    )


def test_a_classifier_beside_another_has_its_encoder_and_a_head_of_its_own() -> None:
    model = tiny_model(exits=[1], heads="separate")
    beside = classifier_beside(model, 5)
    assert beside.model is model.model
    ids = torch.randint(3, 40, (2, 6))
    assert beside(ids).logits.shape == (2, 5) and model(ids).logits.shape == (2, 2)
    assert (model.config.num_labels, model.config.vocab_size) == (2, 40)


def test_the_encoder_learns_the_other_task_and_the_head_stays(tmp_path: Path) -> None:
    model = tiny_model(hidden_dropout=0.0)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert not train(model, tmp_path)
    after = model.cpu().state_dict()
    for name in ("classifier.weight", "classifier.bias"):
        assert torch.equal(after[name], before[name])
    # A linear map of the encoder's first states tells the five classes apart far better than chance, or the fresh one.
    states = []
    with torch.no_grad():
        for row in (FIVE[index] for index in range(len(FIVE))):
            ids = torch.tensor(row["input_ids"][None].astype("int64"))
            states.append(model.eval().model(ids).last_hidden_state[0, 0])
    features = torch.cat([torch.stack(states), torch.ones(len(FIVE), 1)], dim=1).double()
    targets = torch.nn.functional.one_hot(torch.from_numpy(FIVE.labels), 5).double()
    fitted = features @ torch.linalg.lstsq(features, targets).solution
    assert float((fitted.argmax(1).numpy() == FIVE.labels).mean()) > 0.75


def test_what_is_done_is_taken_up(tmp_path: Path) -> None:
    first, second = tiny_model(), tiny_model(seed=7)
    train(first, tmp_path)
    assert train(second, tmp_path)
    ours, theirs = first.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
