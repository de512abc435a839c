"""Training state without pickle: whole or not counted, and a damaged file is one clear line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from recurra.core.errors import CheckpointError
from recurra.training.checkpoint import (
    latest_checkpoint,
    load_optimizer,
    load_random_state,
    load_schedule,
    mark_complete,
    save_optimizer,
    save_random_state,
    save_schedule,
)


def test_only_marked_checkpoints_count_and_the_newest_by_number(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "nowhere") is None
    for step in (9, 10, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    assert latest_checkpoint(tmp_path) is None
    mark_complete(tmp_path / "checkpoint-9", 9)
    mark_complete(tmp_path / "checkpoint-10", 10)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(())), random.gauss(0, 1)]

    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.gauss(0, 1)
        save_random_state(tmp_path, 0)
        wanted = draw()
        draw()
        load_random_state(tmp_path, 0)
        assert draw() == wanted
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])


def test_each_accelerator_gets_its_own_state_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states, restored = [torch.tensor([device]) for device in range(12)], list[torch.Tensor]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 12)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", restored.extend)
    save_random_state(tmp_path, 0)
    load_random_state(tmp_path, 0)
    assert restored == states


def test_a_schedule_comes_back_with_its_infinities(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD([weight], lr=1.0), patience=0)
    assert schedule.state_dict()["best"] == float("inf")
    save_schedule(tmp_path / "schedule.json", schedule.state_dict())
    assert load_schedule(tmp_path / "schedule.json") == json.loads(json.dumps(schedule.state_dict()))


LOADS: dict[str, Callable[[Path], object]] = {
    "optimizer.safetensors": load_optimizer,
    "schedule.json": load_schedule,
    "random-0.safetensors": lambda path: load_random_state(path.parent, 0),
    "random-0.json": lambda path: load_random_state(path.parent, 0),
}


@pytest.mark.parametrize("name", LOADS)
def test_a_damaged_file_is_one_clear_line(name: str, tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    save_optimizer(tmp_path / "optimizer.safetensors", torch.optim.AdamW([weight]).state_dict())
    save_schedule(tmp_path / "schedule.json", {"best": 1.0})
    save_random_state(tmp_path, 0)
    path = tmp_path / name
    for content in (path.read_bytes()[:8], b"\x80\x04garbage" * 9, None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(CheckpointError) as caught:
            LOADS[name](path)
        assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_random_state_of_another_shape_is_damaged(tmp_path: Path) -> None:
    save_random_state(tmp_path, 0)
    path = tmp_path / "random-0.json"
    for damage in ({"python": [3, [1], None]}, {"python": None}, {"numpy": ["MT19937", [1], 0, 0, 0.0]}):
        whole = path.read_text(encoding="utf-8")
        path.write_text(json.dumps({**json.loads(whole), **damage}), encoding="utf-8")
        with pytest.raises(CheckpointError, match="random state 0"):
            load_random_state(tmp_path, 0)
        path.write_text(whole, encoding="utf-8")


def test_resuming_with_more_processes_than_before_says_so(tmp_path: Path) -> None:
    save_random_state(tmp_path, 0)
    with pytest.raises(CheckpointError, match="resume with as many processes as it was started with"):
        load_random_state(tmp_path, 1)
