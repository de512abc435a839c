"""Sessions of ONNX Runtime: every row once, in threads of its own or shared, and a second model only for long texts."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as some

from recurra.core.errors import CheckpointError, UnavailableError
from recurra.deployment.onnx import sessions as onnx_sessions
from recurra.deployment.onnx.sessions import (
    LONE,
    LONG_TEXT,
    SHORTEST,
    SMALL_BATCH,
    TOKENS_OF_A_CALL,
    Sessions,
    require_onnxruntime,
)

LONG = LONG_TEXT["int8"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Threads of each session that was opened; a session is its number."""
    threads: list[int] = []

    def open_session(path: Path, count: int) -> int:
        threads.append(count)
        return len(threads)

    monkeypatch.setattr(onnx_sessions, "open_session", open_session)
    return threads


def ran(sessions: Sessions, lengths: list[int], budget: int = 2048) -> list[tuple[Any, list[int]]]:
    """Sessions and rows, as they came."""
    found = sessions.run(np.array(lengths), budget, lambda session, rows: (session, rows.tolist()))
    return [answer for rows, answer in found if rows.tolist() == answer[1]]


def alone(sessions: Sessions, times: int, tokens: int = 20) -> list[int]:
    """The sessions that computed a text of so many tokens."""
    return [sessions.alone(np.array([tokens]), lambda session: session) for _ in range(times)]


def test_fp32_shares_what_comes_alone_and_no_batch(opened: list[int]) -> None:
    sessions = Sessions(Path("model.onnx"), "fp32", 3)
    assert ran(sessions, [20]) == [(1, [0])] and opened == [3]
    assert ran(sessions, [500, 20, 30]) == [(2, [0]), (2, [2, 1])]
    assert len(ran(sessions, [60] * 100, 600)) == 25
    assert opened == [3, 1]


@given(some.lists(some.integers(0, 300), min_size=1, max_size=8), some.sampled_from([1, 64, 10**6]))
def test_no_other_batches_of_rows_by_length_cost_less(lengths: list[int], budget: int) -> None:
    with patch.object(onnx_sessions, "open_session"):
        batches = Sessions(Path("model.onnx"), "int8", 1).cut(np.array(lengths), budget)
    assert sorted(row for rows in batches for row in rows.tolist()) == list(range(len(lengths)))
    order = sorted(lengths, reverse=True)
    assert [lengths[row] for rows in batches for row in rows] == order

    def cost(sizes: Sequence[int]) -> float:
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        tokens = [size * max(1, order[start]) for start, size in zip(starts, sizes, strict=True)]
        fits = all(size == 1 or of <= min(budget, SMALL_BATCH) for size, of in zip(sizes, tokens, strict=True))
        return sum(tokens) + TOKENS_OF_A_CALL * len(sizes) if fits else math.inf

    chosen = itertools.product([0, 1], repeat=len(order) - 1)
    cuts = (itertools.compress(range(1, len(order)), each) for each in chosen)
    ways = ([end - start for start, end in itertools.pairwise([0, *at, len(order)])] for at in cuts)
    assert cost([len(rows) for rows in batches]) == min(map(cost, ways)) < math.inf


def test_int8_computes_small_batches_side_by_side(opened: list[int]) -> None:
    sessions = Sessions(Path("model.onnx"), "int8", 2)
    meeting = threading.Barrier(2, timeout=20)
    # Two batches are computed at the same time, or this would wait for ever.
    found = sessions.run(np.full(16, 32), 10**6, lambda session, rows: (meeting.wait(), session, rows.tolist())[1:])
    assert [answer for _, answer in found] == [(1, list(range(8))), (1, list(range(8, 16)))]
    assert opened == [1]
    # A smaller budget than suits the threads is kept.
    assert [len(rows) for rows in sessions.cut(np.full(12, 32), 64)] == [2] * 6
    assert [len(rows) for rows in sessions.cut(np.full(12, 32), 10**6)] == [12 - SMALL_BATCH // 32, SMALL_BATCH // 32]


def test_a_long_text_alone_and_few_texts_of_as_many_tokens_have_all_threads(opened: list[int]) -> None:
    sessions = Sessions(Path("model.onnx"), "int8", 2)
    assert ran(sessions, [LONG - 1]) == [(1, [0])]
    assert ran(sessions, [LONG // 8 - 1] * 8) == [(1, [*range(8)])]
    assert ran(sessions, [LONG]) == [(2, [0])] == ran(sessions, [LONG])
    assert ran(sessions, [LONG] * 2) == [(1, [0]), (1, [1])]
    assert ran(sessions, [LONG // 8] * 8) == [(2, [*range(8)])]
    assert opened == [1, 2]


def test_short_texts_take_all_threads_once_they_keep_coming_alone(opened: list[int]) -> None:
    sessions = Sessions(Path("model.onnx"), "int8", 2)
    assert alone(sessions, LONE + 2) == [1] * LONE + [2] * 2 and opened == [1, 2]
    assert alone(sessions, 1, SHORTEST - 1) == [1]
    assert sessions.alone(np.array([20]), lambda _: alone(sessions, 1, LONG)) == [1]
    # Another was computed beside it, so the count begins again.
    assert alone(sessions, LONE + 1) == [1] * LONE + [2]


def test_a_text_beside_others_has_one_thread(opened: list[int]) -> None:
    sessions = Sessions(Path("model.onnx"), "int8", 2)
    alone(sessions, LONE)
    meeting = threading.Barrier(2, timeout=20)

    def compute(session: int) -> int:
        meeting.wait()
        return session

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(lambda _: sessions.alone(np.array([20]), compute), range(2))) == [1, 2]
    assert alone(sessions, LONE + 1) == [1] * LONE + [2]


def test_what_cannot_be_loaded_again_stays_as_it_is(opened: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(Path("model.onnx"), "int8", 2)
    monkeypatch.setattr(onnx_sessions, "open_session", Mock(side_effect=CheckpointError("no memory")))
    with pytest.warns(RuntimeWarning, match="all texts use the model that is loaded: no memory"):
        assert alone(sessions, 1, LONG) == [1]
    assert alone(sessions, 1, LONG) == [1]


def test_another_model_in_the_same_place_is_not_taken_for_it(opened: list[int], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"one")
    replaced, removed, kept = (Sessions(path, "int8", 2) for _ in range(3))
    assert ran(kept, [LONG]) == [(4, [0])]
    (tmp_path / "other").write_bytes(b"two")
    (tmp_path / "other").rename(path)
    assert ran(replaced, [LONG]) == [(1, [0])]
    path.unlink()
    assert ran(removed, [LONG]) == [(2, [0])] and ran(kept, [LONG]) == [(4, [0])]
    assert opened == [1, 1, 1, 2]


def test_a_runtime_that_computes_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1.25.0", "2.0.0"):
        monkeypatch.setattr(onnxruntime, "__version__", version)
        assert require_onnxruntime() is onnxruntime
    for version in ("1.24.4", "1.9.0"):
        monkeypatch.setattr(onnxruntime, "__version__", version)
        with pytest.raises(
            UnavailableError, match=r"at least 1\.25 is needed: pip install --upgrade 'recurra\[onnx\]'"
        ):
            require_onnxruntime()
