"""Servers for tests: real sockets, and engines whose answers and pace a test chooses."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recurra import Classifier
from recurra.deployment.engines.computation import Computation, Depth, Engine
from recurra.deployment.export.manifest import CalibrationRecord
from recurra.deployment.serving.application import Application
from recurra.deployment.serving.limits import ApiKeys, ServerLimits
from recurra.deployment.serving.models import ServedModel, describe_model
from recurra.deployment.serving.observation import EventLog
from recurra.deployment.serving.server import Server, listen, make_server
from recurra.models.exits.rules import ConfidenceRule, ExitRule
from recurra.models.exits.thresholds import depths_under

HASH = "0" * 64
PATIENCE_S = 30.0
BY_HAND = Computation(engine="test", storage_precision="fp32", compute_precision="fp32", device="cpu")
HEAD = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def eventually(holds: Callable[[], object]) -> None:
    """Waits until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def until_closed(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            found += part
    return found


def mark(text: str) -> float:
    """A number that no other text has."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4], "big") / 2**31


@dataclass
class SlowEngine(Engine):
    """Logits that tell texts apart, computed while ``open`` is set; texts with ``spoil`` in them fail."""

    computation = BY_HAND
    open: threading.Event = field(default_factory=threading.Event)
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    batches: list[list[str]] = field(default_factory=list)
    error: type[BaseException] = ValueError

    def logits(self, texts: Sequence[str], batch_size: int) -> np.ndarray:
        self.begun.release()
        assert self.open.wait(60)
        self.batches.append(list(texts))
        if any("spoil" in text for text in texts):
            raise self.error(f"cannot compute {list(texts)}")
        return np.array([[mark(text), 0.0] for text in texts], dtype=np.float32)


def slow_model(name: str = "slow") -> tuple[ServedModel, SlowEngine]:
    """A model on a `SlowEngine`, which is still shut."""
    engine = SlowEngine()
    classifier = Classifier(engine, ["no", "yes"])
    described = describe_model(name, classifier, content_hash=HASH, kind="run", size_bytes=1, run_id="r")
    return ServedModel(classifier, described), engine


def prompt_model(name: str = "slow") -> tuple[ServedModel, SlowEngine]:
    """One that answers at once."""
    model, engine = slow_model(name)
    engine.open.set()
    return model, engine


@dataclass
class DeepEngine(Engine):
    """A model of several recurrences that is the surer the deeper it goes; texts are told apart as by `SlowEngine`."""

    computation = BY_HAND
    depth: Depth = field(default_factory=lambda: Depth((1, 3), 4, 2))

    def logits_by_recurrence(self, texts: Sequence[str], batch_size: int) -> dict[int, np.ndarray]:
        most = self.depth.num_recurrences
        marks = np.array([[mark(text), *[0.0] * (self.depth.labels - 1)] for text in texts], dtype=np.float32)
        return {number: marks * number * 2 / most for number in self.depth.output_after}

    def logits(self, texts: Sequence[str], batch_size: int) -> np.ndarray:
        return self.logits_by_recurrence(texts, batch_size)[self.depth.num_recurrences]

    def leave_early(self, texts: Sequence[str], batch_size: int, rule: ExitRule) -> tuple[np.ndarray, np.ndarray]:
        outputs = self.logits_by_recurrence(texts, batch_size)
        depths = depths_under(rule, outputs)
        return np.stack([outputs[depth][row] for row, depth in enumerate(depths.tolist())]), depths


def deep_model(name: str, labels: Sequence[str], *, threshold: float | None = None, exits: bool = True) -> ServedModel:
    """A model on a `DeepEngine`, with a calibrated rule if a threshold is given."""
    engine = DeepEngine(Depth((1, 3) if exits else (), 4, len(labels)))
    rule = None if threshold is None else ConfidenceRule.constant(threshold).plain()
    record = CalibrationRecord(exits=[1, 3], asked=0.99, source="rows", rows=864, rule=rule, agreement=0.9931)
    classifier = Classifier(engine, labels, calibration=record if exits else None)
    described = describe_model(name, classifier, content_hash=HASH, kind="onnx", size_bytes=2**20, run_id="r")
    return ServedModel(classifier, described)


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and code of an answer that is no result."""
        assert self.headers["content-type"] == "application/json", self.headers
        assert set(self.json) == {"error"} and set(self.json["error"]) == {"code", "message"}
        assert isinstance(self.json["error"]["message"], str)
        return self.status, self.json["error"]["code"]


def probabilities(predictions: Sequence[dict[str, Any]]) -> np.ndarray:
    """Those of a result's predictions, ``(texts, labels)``."""
    return np.array([list(one["probabilities"].values()) for one in predictions])


@dataclass
class Running:
    """A server that runs in a thread."""

    port: int
    log: io.StringIO
    server: Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, body: Any, path: str = "/v1/classify", **headers: str) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path, raw, {"Content-Type": "application/json", **headers})

    def classify(self, text: Any, **more: Any) -> Any:
        """The prediction of a text, or those of a list of them, by the first model that answers."""
        answer = self.post({"text": text, **more})
        assert answer.status == 200, answer.body
        predictions = answer.json["results"][0]["predictions"]
        return predictions[0] if isinstance(text, str) else predictions

    def raw(self, *parts: bytes, wait_s: float = 0.0) -> bytes:
        """Sends bytes as they are, waits before the last, and reads until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            for part in parts[:-1]:
                connection.sendall(part)
            time.sleep(wait_s)
            connection.sendall(parts[-1])
            return until_closed(connection)

    def events(self, name: str = "request") -> list[dict[str, Any]]:
        return [event for line in self.log.getvalue().splitlines() if (event := json.loads(line))["event"] == name]


@contextlib.contextmanager
def running(
    models: Sequence[ServedModel],
    limits: ServerLimits | None = None,
    key: str | Sequence[str] | None = None,
    examples: Sequence[str] = (),
) -> Iterator[Running]:
    """Serves models on a free port; a key or several."""
    limits = limits or ServerLimits()
    stream, ready = io.StringIO(), threading.Event()
    log = EventLog(stream)
    keys = ApiKeys([key] if isinstance(key, str) else key) if key else None
    application = Application(models, limits, keys=keys, log=log, examples=examples)
    with listen("127.0.0.1", 0) as taken:
        server = make_server(application, limits, log, started=ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
        thread.start()
        try:
            assert ready.wait(30)
            yield Running(taken.getsockname()[1], stream, server)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@contextlib.contextmanager
def prompt_server(limits: ServerLimits | None = None, key: str | Sequence[str] | None = None) -> Iterator[Running]:
    """Serves a model that answers at once."""
    model, _ = prompt_model()
    with running([model], limits, key) as server:
        yield server
