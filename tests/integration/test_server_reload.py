"""Models that are replaced under a running server: no request is lost, none is answered by two of them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import io
import os
import shutil
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import uvicorn

import recurra.deployment.serving.server as server_module
from recurra import Classifier
from recurra.core.best_run import BEST_NAME, BestRunRecord
from recurra.core.errors import CheckpointError
from recurra.core.files import atomic_folder
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.deployment.serving.limits import ServerLimits
from recurra.deployment.serving.models import ModelSource, ServedModel, hash_model, open_models
from recurra.deployment.serving.observation import EventLog
from recurra.deployment.serving.server import Server
from reviews import review_rows, train_linear
from served import PATIENCE_S, Running, eventually, mark, probabilities, running, slow_model

TEXTS = [text for text, _ in review_rows(6, seed=3)]
# Whatever else the machine does, nothing is turned away here.
PATIENT = ServerLimits(max_wait_s=60, timeout_s=60)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two exports that give other probabilities for every text."""
    found = []
    for rows in (120, 240):
        root = tmp_path_factory.mktemp(f"rows-{rows}")
        export_run(train_linear(root, rows), root / "export", ExportOptions("safetensors", "fp32"))
        found.append(root / "export")
    return found


def replace(folder: Path, source: Path) -> None:
    """As ``recurra export --overwrite`` does."""
    with atomic_folder(folder, replace=True) as fresh:
        shutil.copytree(source, fresh, dirs_exist_ok=True)


@pytest.fixture
def folder(exports: list[Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(exports[0], tmp_path / "served"))


def answering(server: Running) -> dict[str, str]:
    return {one["name"]: one["content_hash"] for one in server.get("/health/ready").json["models"]}


def reload(server: Running, times: int = 1) -> list[dict[str, Any]]:
    """Asks for it and waits for what the log says of it."""
    before = len(server.events("reload"))
    server.server.reload()
    eventually(lambda: len(server.events("reload")) >= before + times)
    return server.events("reload")[before:]


def test_no_request_is_lost_nor_answered_by_two_models(exports: list[Path], folder: Path) -> None:
    wanted = {hash_model(one): Classifier.open(one).predict_proba(TEXTS) for one in exports}
    first, second = wanted.values()
    assert len(wanted) == 2 and (np.abs(first - second).max(axis=1) > 1e-4).all()
    over, seen = threading.Event(), set()

    def ask(server: Running, number: int) -> int:
        answered = 0
        while not over.is_set():
            answer = server.post({"text": TEXTS, "model": ["one", "two"], "explain": number % 2 == 0})
            assert answer.status == 200, answer.body
            for result in answer.json["results"]:
                expected = wanted[result["content_hash"]]
                np.testing.assert_allclose(probabilities(result["predictions"]), expected, atol=1e-6)
                seen.add(result["content_hash"])
                answered += 1
        return answered

    models = open_models({"one": folder, "two": folder}, threads=1)
    with running(models, PATIENT) as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask, server, number) for number in range(4)]
        try:
            for number in range(1, 5):
                replace(folder, exports[number % 2])
                reload(server, 2)
                assert set(answering(server).values()) == {hash_model(exports[number % 2])}
        finally:
            over.set()
        assert min(client.result(PATIENCE_S) for client in clients) >= 2
        page = server.get("/metrics").body.decode()
    assert seen == set(wanted)
    assert 'recurra_reloads_total{model="one",outcome="taken_up"} 4.0' in page
    assert f'recurra_model_info{{content_hash="{hash_model(exports[0])}",model="one"}} 1.0' in page
    assert page.count("recurra_model_info{") == 2


def truncate(folder: Path) -> None:
    file = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    os.truncate(file, file.stat().st_size - 1)


def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("batches-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


# What is done to the folder, or to this process, and what is said of it.
BROKEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "truncated": (truncate, "truncated or changed"),
    "without its manifest": (lambda folder: (folder / "export.json").unlink(), "is not a run folder"),
    "another's manifest": (lambda folder: (folder / "export.json").write_text("{}"), "is not an export of ours"),
    "a pickle": (lambda folder: (folder / "more.pkl").write_bytes(b"\x80\x04."), "a pickle"),
    "nothing": (shutil.rmtree, "does not exist"),
    "no threads": (no_threads, "RuntimeError"),
}


def test_what_is_broken_does_not_take_over(exports: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(open_models({"one": folder})) as server:
        for number, (broken, (damage, message)) in enumerate(BROKEN.items(), start=1):
            before, better = answering(server), exports[number % 2]
            replace(folder, better)
            with monkeypatch.context() as patched:
                damage(patched if damage is no_threads else folder)
                (said,) = reload(server)
            assert said["level"] == "error" and message in str(said), broken
            assert said["content_hash"] == before["one"] and answering(server) == before
            assert server.post({"text": TEXTS[0]}).json["results"][0]["content_hash"] == before["one"]
            failed = f'recurra_reloads_total{{model="one",outcome="failed"}} {number}.0'
            assert failed.encode() in server.get("/metrics").body
            if folder.exists():
                replace(folder, better)
            else:
                shutil.copytree(better, folder)
            assert [reload(server)[0]["message"] for _ in range(2)] == ["another model", "unchanged"]
            assert answering(server) == {"one": hash_model(better)} != before
            assert server.post({"text": TEXTS[0]}).json["results"][0]["content_hash"] == hash_model(better)


@dataclass(frozen=True)
class NextModel(ModelSource):
    """A source whose next model a test chooses."""

    models: list[ServedModel] = field(default_factory=list)
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go_on: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def open(self, known: str = "") -> ServedModel | None:
        self.begun.release()
        assert self.go_on.acquire(timeout=PATIENCE_S)
        return self.models.pop(0) if self.models else None


def sourced(source: NextModel, hashed: str) -> tuple[ServedModel, Any]:
    model, engine = slow_model()
    described = msgspec.structs.replace(model.description, content_hash=hashed)
    return ServedModel(model.classifier, described, source), engine


def test_what_was_begun_ends_on_the_old_model_which_is_then_forgotten() -> None:
    source = NextModel("slow", Path("nowhere"))
    (old, old_engine), (new, new_engine) = sourced(source, "old"), sourced(source, "new")
    source.models.append(new)
    new_engine.open.set()
    models = [old]
    with running(models, ServerLimits(batch_texts=1)) as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.post, {"text": ["a b", "c"], "explain": True})
        assert old_engine.begun.acquire(timeout=PATIENCE_S)
        source.go_on.release()
        reload(server)
        after = server.post({"text": "later"}).json["results"][0]
        assert after["content_hash"] == "new" and not first.done()
        old_engine.open.set()
        result = first.result(PATIENCE_S).json["results"][0]
        assert result["content_hash"] == "old" and len(result["predictions"][0]["words"]) == 2
        odds = [mark(text) for text in ("a b", "c")]
        shares = probabilities(result["predictions"])[:, 0]
        np.testing.assert_allclose(shares, 1 / (1 + np.exp(-np.array(odds))), atol=1e-6)
        assert [text for batch in old_engine.batches for text in batch][:2] == ["a b", "c"]
        forgotten = weakref.ref(old_engine)
        models.clear()
        del old, old_engine
        eventually(lambda: gc.collect() >= 0 and forgotten() is None)


def test_a_reload_that_panics_does_not_end_reloading() -> None:
    class Panic(BaseException):
        """As a tokenizer's."""

    source = NextModel("slow", Path("nowhere"))
    models = [sourced(source, name)[0] for name in ("first", "second")]
    source.models.extend(models[1:])
    with running(models[:1]) as server, pytest.MonkeyPatch.context() as patch:
        begun = threading.Event()

        def panic(*_: object) -> None:
            begun.set()
            raise Panic

        patch.setattr(NextModel, "open", panic)
        server.server.reload()
        assert begun.wait(PATIENCE_S)
        patch.undo()
        source.go_on.release(1_000)
        # The panic may still be on its way when the next request comes; it is then asked for again.
        eventually(lambda: server.server.reload() or answering(server) == {"slow": "second"})


def test_who_asks_during_a_reload_has_one_after_it() -> None:
    source = NextModel("slow", Path("nowhere"))
    models = [sourced(source, name)[0] for name in ("first", "second", "third")]
    source.models.extend(models[1:])
    with running(models[:1]) as server:
        server.server.reload()
        assert source.begun.acquire(timeout=PATIENCE_S)
        for _ in range(5):
            server.server.reload()
        time.sleep(0.05)
        source.go_on.release(2)
        eventually(lambda: answering(server) == {"slow": "third"})
        eventually(lambda: len(server.events("reload")) == 2)
        # Five requests are one more reload, and no third.
        assert source.begun.acquire(timeout=PATIENCE_S) and not source.begun.acquire(timeout=0.1)


@pytest.mark.parametrize("gone", [False, True])
def test_a_hangup_is_a_reload_unless_the_terminal_is_gone(monkeypatch: pytest.MonkeyPatch, *, gone: bool) -> None:
    reading, writing = os.openpty()
    reloads: list[int] = []

    def reload() -> None:
        reloads.append(1)

    # Its own standard error is back before the terminal's end is closed: all later tests write to it.
    with os.fdopen(writing, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        server = Server(uvicorn.Config(lambda: None, log_config=None), reload, EventLog(io.StringIO()))

        async def hang_up() -> None:
            server.begin()
            with server.capture_signals():
                if gone:
                    os.close(reading)
                os.kill(os.getpid(), signal.SIGHUP)
                for _ in range(4):
                    await asyncio.sleep(0)

        asyncio.run(hang_up())
    assert (len(reloads), server.should_exit) == ((0, True) if gone else (1, False))
    if not gone:
        os.close(reading)


def test_a_hangup_while_models_are_loaded_waits_for_the_start(
    exports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reloads: list[bool] = []

    def open_under_a_hangup(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGHUP)
        return open_models(*arguments, **options)

    monkeypatch.setattr(server_module, "open_models", open_under_a_hangup)
    monkeypatch.setattr(Server, "reload", lambda server: reloads.append(server.started))
    # Without a handler of its own the signal would end the tests.
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server_module.serve([str(exports[0])], PATIENT, port=0, started=lambda _: signal.raise_signal(signal.SIGTERM))
        assert reloads == [True] and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, earlier)


def test_what_is_replaced_while_it_is_read_is_read_again(
    exports: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, read = 1, Classifier.open

    def open_and_replace(path: Path, **options: Any) -> Classifier:
        nonlocal left
        found = read(path, **options)
        if left:
            left -= 1
            replace(folder, exports[1] if hash_model(folder) == hash_model(exports[0]) else exports[0])
        return found

    monkeypatch.setattr(Classifier, "open", open_and_replace)
    model = ModelSource("one", folder).open()
    assert model is not None and model.description.content_hash == hash_model(exports[1])
    found = model.classifier.predict_proba(TEXTS)
    np.testing.assert_allclose(found, Classifier.from_export(exports[1]).predict_proba(TEXTS), atol=1e-6)
    left = 9
    with pytest.raises(CheckpointError, match="was replaced 3 times while it was read; try again"):
        ModelSource("one", folder).open()


def test_a_comparison_stands_for_the_run_that_it_recommends_by_now(exports: list[Path], tmp_path: Path) -> None:
    source = ModelSource("best", tmp_path)
    known = ""
    for export, name in zip(exports, "ab", strict=True):
        run = Path(shutil.copytree(export.parent / "linear", tmp_path / "runs" / name))
        BestRunRecord(folder=f"runs/{name}", model="linear", seed=0, why="so").write(tmp_path / BEST_NAME)
        model = source.open(known)
        assert model is not None and name in model.note
        assert model.description.content_hash == hash_model(run) != known
        known = hash_model(run)
    assert source.open(known) is None
