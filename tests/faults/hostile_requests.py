"""Hostile requests, by schema and below it, with a good client between them that must get its answer."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from faults.hostile import Case, Target, Verdict
from faults.mutations import mutate_bytes, mutate_value, to_json
from recurra.deployment.serving.limits import ServerLimits
from served import HEAD, Running, deep_model, mark, prompt_model, running

# Small, so that what is beyond them comes up, and no case has to wait for them long.
LIMITS = ServerLimits(max_texts=8, max_characters=2000, max_body_bytes=32_768, body_timeout_s=1.0, timeout_s=5.0)
MOST_GOOD_S = 5.0
_GOOD = "a good text"
_EVERY = 5
# Without a byte from the server, until the client says that it has no more to send.
_PAUSES_S = (0.0001, 0.02)
_PATIENCE_S = 9.0
_BODIES: list[Any] = [
    {"text": "a"},
    {"text": ["a", "b", "c"], "model": "slow"},
    {"text": ["a"], "model": ["slow", "deep"], "abstain_below": 0.9},
    {"text": "a", "model": "deep", "exit_rule": "calibrated", "recurrences": True},
    {"text": ["\u00e4\u6f22\U0001f600", ""], "exit_rule": None},
]
_CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
_REQUESTS = [
    HEAD + b'Content-Length: 13\r\n\r\n{"text": "a"}',
    HEAD + _CHUNKED + b'd\r\n{"text": "a"}\r\n0\r\n\r\n',
    HEAD + _CHUNKED + b'5;a=b\r\n{"tex\r\n8\r\nt": "a"}\r\n0\r\nX-A: b\r\n\r\n',
    HEAD + b'Expect: 100-continue\r\nContent-Length: 13\r\n\r\n{"text": "a"}',
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/models/slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /metrics HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    b"GET /health/ready HTTP/1.1\r\nHost: x\r\n\r\nGET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_TOLD = (b"Traceback", b'File "', b"site-packages")


@contextlib.contextmanager
def _requests(_: Path, *, raw: bool) -> Iterator[Case]:
    models = [prompt_model()[0], deep_model("deep", ["no", "yes"], threshold=0.8)]
    numbers, seen = itertools.count(1), 0
    with running(models, LIMITS) as server:

        def case(dice: random.Random, _: Path) -> Verdict:
            nonlocal seen
            data = mutate_bytes(dice, dice.choice(_REQUESTS), most=3) if raw else _by_schema(dice)
            answer = _exchange(server.port, data, dice.choice(_PAUSES_S) if raw else _PATIENCE_S)
            wrong = _broken_rule(answer, raw=raw)
            if next(numbers) % _EVERY == 0:
                wrong = wrong or _good_client(server)
            written = server.log.getvalue()
            bad = [line for line in written[seen:].splitlines() if '"level": "error"' in line or '"error"' in line[:60]]
            seen = len(written)
            if bad:
                wrong = wrong or f"the log says {bad[0][:900]}"
            outcome = "answered" if b"200" in _STATUS.findall(answer) else "refused"
            return Verdict(outcome, f"{wrong}; {data[:400]!r}" if wrong else "")

        yield case


def _by_schema(dice: random.Random) -> bytes:
    body = to_json(mutate_value(dice, dice.choice(_BODIES), most=3))
    if dice.random() < 0.3:
        body = mutate_bytes(dice, body)
    return HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _exchange(port: int, data: bytes, pause_s: float) -> bytes:
    """Sends bytes and reads until the server closes; after a pause without an answer we say that no more come."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), _PATIENCE_S) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(data)
        connection.settimeout(pause_s)
        while True:
            try:
                part = connection.recv(65536)
            except TimeoutError:
                if pause_s == _PATIENCE_S:
                    raise
                pause_s = _PATIENCE_S
                connection.settimeout(pause_s)
                connection.shutdown(socket.SHUT_WR)
                continue
            if not part:
                break
            found += part
    return found


def _broken_rule(answer: bytes, *, raw: bool) -> str:
    statuses = [int(status) for status in _STATUS.findall(answer)]
    if answer and not answer.startswith(b"HTTP/1.1 "):
        return f"no HTTP comes back: {answer[:200]!r}"
    if not raw and not statuses:
        return "a whole request got no answer"
    if any(status >= 500 for status in statuses):
        return f"it answers {statuses}: {answer[-300:]!r}"
    told = next((word for word in _TOLD if word in answer and b"text/html" not in answer), None)
    return f"it tells of its inside: {told!r}" if told else ""


def _good_client(server: Running) -> str:
    start = time.perf_counter()
    label = server.classify(_GOOD)["label"]
    took = time.perf_counter() - start
    if label != ("no" if mark(_GOOD) > 0 else "yes"):
        return f"the good client got {label}"
    return f"the good client waited {took:.1f} s" if took > MOST_GOOD_S else ""


REQUEST_TARGETS = [
    Target("requests by schema", partial(_requests, raw=False), 40),
    Target("requests below it", partial(_requests, raw=True), 40),
]
