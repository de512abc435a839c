"""The parts of the bench about language models run, and compare models of equal FLOPs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from benchmarks import generation, language, language_models
from benchmarks.lockstep import Job
from benchmarks.measures import Measure, Setting

from recurra.models.presets import language_flops, preset


class Here:
    """A competitor in this process."""

    def __init__(self, build: Any, job: Job) -> None:
        self._call = build(job)

    def call(self, index: int) -> dict[str, Any]:
        """As `benchmarks.lockstep.Competitor.call`."""
        start = time.perf_counter()
        value = self._call(index)
        return {"ms": (time.perf_counter() - start) * 1e3, "value": value}


def in_process(part: Any, monkeypatch: pytest.MonkeyPatch, *, run: str = "") -> list[Measure]:
    """Measures a part in quick mode."""

    @contextlib.contextmanager
    def competitors(_: Setting, jobs: Mapping[str, Job]) -> Iterator[dict[str, Here]]:
        yield {name: Here(part.build, job) for name, job in jobs.items()}

    monkeypatch.setattr(Setting, "competitors", competitors)
    monkeypatch.setattr(part, "ask", lambda job: part.build(job)(0), raising=False)
    return part.measure(Setting("", (), 1, quick=True, run=run))


def test_decoding_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    *against, cached, memory = in_process(generation, monkeypatch)
    assert [each.target for each in (*against, cached)] == [1.2, None, None, 1.2, None, None, 8.0]
    assert all(each.ours > 0 and each.other > 0 for each in (*against, cached))
    assert all(each.result == pytest.approx(each.ours / each.other) for each in against)
    assert memory.result == pytest.approx(100 * memory.ours / memory.other)


def test_training_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "LOSS_PRESET", "crt-tiny")
    found = in_process(language, monkeypatch)
    assert [each.target for each in found if each.target is not None] == [1.2, 100.0]
    assert all(each.ours >= 0 and each.other >= 0 for each in found)
    assert found[0].result == pytest.approx(found[0].ours / found[0].other)


@pytest.mark.parametrize(("name", "training"), [("crt-tiny", True), ("crt-small", False), ("crt-deep", True)])
def test_gpt2_has_our_flops_a_token(name: str, training: bool) -> None:
    config = preset(name)
    theirs = language_models.gpt2_of_equal_flops(config, 256, training=training)
    own = language_flops(config, 256, with_exits=training) / 256
    other = language_models.gpt2_flops(theirs.n_embd, theirs.n_layer, theirs.vocab_size, 256)
    assert other == pytest.approx(own, rel=0.1)
    assert theirs.n_embd == 64 * theirs.n_head


def test_flops_of_gpt2_are_those_of_its_matrices() -> None:
    model = language_models.gpt2("crt-tiny", 64, training=False, vocab_size=50)
    config = model.config
    matrices = sum(part.numel() for name, part in model.transformer.h.named_parameters() if part.dim() == 2)
    scores = 4 * config.n_embd * (64 + 1) / 2 * config.n_layer
    expected = 2 * (matrices + config.n_embd * 50) + scores
    assert language_models.gpt2_flops(config.n_embd, config.n_layer, 50, 64) == pytest.approx(expected)
