"""``recurra serve`` through the real command line: without torch, ended, killed, started again, and misused."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from recurra import Classifier
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions, read_manifest
from recurra.deployment.serving.limits import ServerLimits
from recurra.deployment.serving.models import open_models
from reviews import review_rows, snapshot
from served import running
from server_process import ask, started

TEXTS = [text for text, _ in review_rows(20, seed=8)]
PROGRAM = """
import sys
from recurra.cli.main import main
code = main(["serve", *sys.argv[1:]])
heavy = sorted({"torch", "transformers", "onnx", "sklearn", "ray"} & set(sys.modules))
sys.exit(f"imported {heavy}" if heavy else code)
"""


@pytest.fixture
def exported(onnx_exports: dict[str, Path]) -> Path:
    return onnx_exports["fp32"]


def test_alone_int8_answers_do_not_depend_on_what_others_ask(onnx_exports: dict[str, Path]) -> None:
    folder = onnx_exports["int8"]
    texts = [*TEXTS, "great " * 20, ""]
    classifier = Classifier.open(folder, threads=1)
    wanted = [classifier.predict_proba([text])[0].tolist() for text in texts]
    # The test would show nothing if they did not depend on the batch.
    assert not np.array_equal(classifier.predict_proba(texts), wanted)
    models = open_models({"int8": folder}, threads=2)
    # So many one by one that all threads share them.
    rounds = 2
    with running(models, ServerLimits(alone=True)) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [server.post({"text": text}).json["results"][0] for text in texts * rounds]
        answers += pool.map(lambda text: server.post({"text": text}).json["results"][0], texts * 2)
    found = [list(answer["predictions"][0]["probabilities"].values()) for answer in answers]
    assert found == wanted * (rounds + 2)
    assert {answer["batch_texts"] for answer in answers} == {1}


def serving(*arguments: object) -> list[object]:
    return [sys.executable, "-W", "error", "-c", PROGRAM, *arguments]


def test_an_onnx_export_is_served_without_torch_replaced_by_a_signal_and_ends_well(
    run: Path, exported: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "small"))
    with started(serving(folder, "--port", 0, "--threads", 1)) as (process, said):
        assert said["models"] == ["small"] and urlsplit(said["url"]).hostname == "127.0.0.1"
        status, answer = ask(said["url"], {"text": TEXTS})
        rows = answer["results"][0]["predictions"]
        found = np.array([list(row["probabilities"].values()) for row in rows])
        assert status == 200
        np.testing.assert_allclose(found, Classifier.open(exported).predict_proba(TEXTS), atol=1e-5)
        before = answer["results"][0]
        export_run(run, folder, ExportOptions("onnx", "fp32", overwrite=True))
        process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 30
        while (after := ask(said["url"], {"text": TEXTS})[1]["results"][0])["content_hash"] == before["content_hash"]:
            assert time.monotonic() < end
        assert after["content_hash"] == read_manifest(folder).content_hash
        assert after["predictions"] == before["predictions"]
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        events = [json.loads(line) for line in err.splitlines()]
        assert [event["event"] for event in events if event["event"] != "request"] == ["ready", "reload", "stopped"]
        (reload,) = (event for event in events if event["event"] == "reload")
        assert (reload["before"], reload["content_hash"]) == (before["content_hash"], after["content_hash"])
        assert TEXTS[0] not in err


def test_a_server_killed_under_load_starts_again_on_its_port(exported: Path) -> None:
    before = snapshot(exported)
    begun = threading.Event()

    def client(url: str) -> list[int]:
        """Asks until the connection breaks; what was answered before was answered well."""
        statuses = []
        while True:
            try:
                statuses.append(ask(url, {"text": TEXTS})[0])
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                return statuses
            begun.set()

    with (
        started(serving(exported, "--port", 0, "--threads", 1)) as (process, said),
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        answers = [pool.submit(client, said["url"]) for _ in range(8)]
        assert begun.wait(60)
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
        assert {status for answer in answers for status in answer.result(60)} == {200}
    assert snapshot(exported) == before
    with started(serving(exported, "--port", urlsplit(said["url"]).port, "--threads", 1)) as (_, again):
        assert again["url"] == said["url"] and ask(again["url"], {"text": TEXTS[0]})[0] == 200


def test_mistakes_are_one_line(exported: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "does not exist" in refused("serve", tmp_path / "nothing", "--port", 0)
    assert "two models are called 'fp32'" in refused("serve", exported, exported, "--port", 0)
    real = tmp_path / "real name"
    real.mkdir()
    assert "'real name' cannot name a model" in refused("serve", real, "--port", 0)
    assert "cannot listen on '203.0.113.1'" in refused("serve", exported, "--host", "203.0.113.1", "--port", 0)
    assert "cannot read the API key" in refused("serve", exported, "--api-key-file", tmp_path / "none")
    assert "has no examples" in refused("serve", exported, "--examples", tmp_path / "none")
    assert "'100' is not a rate; give 1 to 999999 requests" in refused("serve", exported, "--rate-limit", "100")


def test_a_missing_extra_names_what_installs_it(
    exported: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("server", "application"):
        monkeypatch.delitem(sys.modules, f"recurra.deployment.serving.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    assert "the server needs the package msgspec; pip install 'recurra[serve]'" in refused("serve", exported)
