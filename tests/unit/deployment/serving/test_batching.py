"""Batches over many requests: everyone gets their own results, in bounded time, from a bounded queue."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recurra.deployment.engines.computation import Classified, softmax
from recurra.deployment.serving.bodies import Extras, answer
from recurra.deployment.serving.limits import Refusal, ServerLimits
from recurra.deployment.serving.models import Batcher
from recurra.deployment.serving.observation import EventLog
from served import mark, slow_model


class Bench:
    """A batcher on a slow model, and what it did."""

    def __init__(self, *, workers: int = 1, **limits: object) -> None:
        model, self.engine = slow_model()
        self.failures: list[BaseException] = []
        ask = partial(answer, model.classifier)
        self.batcher = Batcher("slow", ask, ServerLimits(**limits), workers=workers, failed=self.failures.append)
        self.batcher.start()

    def ask(self, *texts: str, **options: bool) -> Future[Any]:
        return self.batcher.submit(list(texts), Extras(), **options)

    def refused(self, *texts: str) -> Refusal:
        with pytest.raises(Refusal) as caught:
            self.ask(*texts)
        return caught.value

    def hold(self) -> None:
        """Makes the thread busy with one text; what comes now waits."""
        self.ask("first")
        assert self.engine.begun.acquire(timeout=20)

    def end(self) -> None:
        self.engine.open.set()
        self.batcher.stop()


def assert_own(future: Future[Any], *texts: str) -> None:
    wanted = softmax(np.array([[mark(text), 0.0] for text in texts], dtype=np.float32))
    np.testing.assert_array_equal(future.result(20).answers.probabilities, wanted)


@pytest.fixture
def make() -> Iterator[type[Bench]]:
    made: list[Bench] = []

    def factory(**limits: object) -> Bench:
        made.append(Bench(**limits))
        return made[-1]

    yield factory
    for bench in made:
        bench.end()


KINDS = [Extras(), Extras(exits=True), Extras(recurrences=True)]
SOME_TEXTS = st.lists(st.text(alphabet="abc", min_size=1, max_size=3), min_size=1, max_size=5)


@settings(max_examples=25)
@given(
    requests=st.lists(st.tuples(SOME_TEXTS, st.sampled_from(KINDS)), max_size=12),
    batch_texts=st.integers(1, 8) | st.just(64),
    alone=st.booleans(),
)
def test_everyone_gets_their_own_and_what_is_asked_differently_is_not_computed_together(
    requests: list[tuple[list[str], Extras]], batch_texts: int, alone: bool
) -> None:
    begun, may_go = threading.Semaphore(0), threading.Event()
    batches: list[tuple[list[str], Extras]] = []

    def ask(texts: list[str], extras: Extras) -> Classified:
        begun.release()
        assert may_go.wait(20)
        batches.append((texts, extras))
        # Whose answer it is can be told from what was asked.
        return Classified(np.array([[mark(text), KINDS.index(extras)] for text in texts]))

    batcher = Batcher("extras", ask, ServerLimits(batch_texts=batch_texts, alone=alone))
    batcher.start()
    batcher.submit(["first"], Extras())
    assert begun.acquire(timeout=20)
    futures = [batcher.submit(texts, extras) for texts, extras in requests]
    may_go.set()
    for (texts, extras), future in zip(requests, futures, strict=True):
        computed = future.result(20)
        assert computed.answers.probabilities.tolist() == [[mark(text), KINDS.index(extras)] for text in texts]
        assert computed.batch_texts >= len(texts) and computed.waited_ms >= 0
    batcher.stop()
    del batches[0]
    in_order = [(text, extras) for texts, extras in requests for text in texts]
    assert [(text, extras) for texts, extras in batches for text in texts] == in_order
    # Above the bound only where one request is: requests are never cut.
    assert all(len(batch[0]) <= batch_texts or batch in requests for batch in batches)
    if alone:
        assert batches == requests
    elif len(in_order) <= batch_texts:
        changes = sum(one[1] != two[1] for one, two in itertools.pairwise(requests))
        assert len(batches) == (changes + 1 if requests else 0)


def test_as_many_batches_at_once_as_there_are_workers(make) -> None:
    bench = make(alone=True, workers=3, max_wait_s=60.0)
    futures = [bench.ask(f"text {number}") for number in range(7)]
    for _ in range(3):
        assert bench.engine.begun.acquire(timeout=20)
    assert not bench.engine.begun.acquire(timeout=0.1) and bench.batcher.waiting_texts == 4
    bench.engine.open.set()
    for number, future in enumerate(futures):
        assert_own(future, f"text {number}")
    # What is being computed is counted down again, by each of them.
    bench.end()
    assert (bench.batcher.waiting_texts, bench.batcher._computing_texts) == (0, 0)
    assert not any(thread.is_alive() for thread in bench.batcher._threads)


def test_the_queue_has_an_end_and_workers_share_the_wait(make) -> None:
    bench = make(max_waiting_texts=5)
    bench.hold()
    futures = [bench.ask("a", "b") for _ in range(2)]
    for _ in range(50):
        refused = bench.refused("c", "d")
    assert (refused.status, refused.headers) == (429, {"Retry-After": "1"})
    futures.append(bench.ask("e"))
    assert bench.batcher.waiting_texts == 5
    # What belongs to a request that was let in is let in too.
    futures.append(bench.ask("f", "g", admitted=True))
    bench.engine.open.set()
    assert [len(future.result(20).answers.probabilities) for future in futures] == [2, 2, 1, 2]
    assert bench.ask("c", "d").result(20).answers.probabilities.shape == (2, 2)
    busy = make(alone=True, workers=2, max_wait_s=3.0)
    busy.batcher._seconds_a_text = 1.5
    for text in "abcd":
        busy.ask(text)
    with pytest.raises(Refusal) as caught:
        for _ in range(3):
            busy.ask("e")
    assert caught.value.headers == {"Retry-After": "4"}


def test_what_nobody_waits_for_is_not_computed(make) -> None:
    bench = make(timeout_s=0.05)
    bench.hold()
    cancelled, late = bench.ask("cancelled"), bench.ask("late")
    assert cancelled.cancel()
    time.sleep(0.1)
    bench.engine.open.set()
    with pytest.raises(TimeoutError):
        late.result(20)
    with pytest.raises(CancelledError):
        cancelled.result(20)
    assert bench.ask("next").result(20)
    assert bench.engine.batches == [["first"], ["next"]]


@pytest.mark.parametrize("error", [ValueError, type("PanicException", (BaseException,), {})])
def test_a_text_that_fails_spoils_its_own_request_only(make, error: type[BaseException]) -> None:
    bench = make(batch_texts=8)
    bench.engine.error = error
    bench.hold()
    first, spoiled, last = bench.ask("a"), bench.ask("b", "spoil"), bench.ask("c", "d")
    bench.engine.open.set()
    assert_own(first, "a")
    assert_own(last, "c", "d")
    with pytest.raises(Refusal) as caught:
        spoiled.result(20)
    assert caught.value.status == 500 and "spoil" not in caught.value.message
    assert [type(error) for error in bench.failures] == [error]
    assert bench.batcher.ready


def test_a_failure_that_cannot_be_logged_is_answered_and_the_next_request_too() -> None:
    log = EventLog(Mock(write=Mock(side_effect=OSError(28, "No space left on device"))))

    def fail(texts: list[str], extras: Extras) -> Classified:
        raise ValueError

    batcher = Batcher("model", fail, ServerLimits(), failed=lambda error: log.failure("computation", error))
    batcher.start()
    for _ in range(2):
        with pytest.raises(Refusal):
            batcher.submit(["a"], Extras()).result(20)
    batcher.stop()


def test_the_end_finishes_what_was_accepted(make) -> None:
    bench = make(batch_texts=1)
    bench.hold()
    futures = [bench.ask(f"text {number}") for number in range(5)]
    ending = threading.Thread(target=bench.batcher.stop)
    ending.start()
    while bench.batcher.ready:
        time.sleep(0.001)
    assert bench.refused("too late").status == 503
    bench.engine.open.set()
    assert [future.result(20).batch_texts for future in futures] == [1] * 5
    ending.join(20)
    assert not ending.is_alive()


def test_where_a_request_says_that_texts_stop_is_no_finding_of_a_rule() -> None:
    observed: list[object] = []
    batcher = Batcher(
        "model",
        lambda texts, _: Classified(np.ones((len(texts), 1)), np.ones(len(texts), dtype=np.int64)),
        ServerLimits(),
        observe=lambda _, __, after: observed.append(after),
    )
    batcher.start()
    for extras in (Extras(exits=True), Extras(exits=True, exit_after=1), Extras(exits=True, occluded=True)):
        batcher.submit(["a", "b"], extras).result(20)
    batcher.stop()
    assert observed == [[1, 1], None, None]
