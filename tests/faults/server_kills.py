"""A server that is killed while it answers: answers are whole and right, and it can be started again at once."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from faults.figures import Account, Budget, Figure
from faults.forked import Child, command
from faults.jobs import Workshop

_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_READY_S = 30.0
# From the signal to the end of a server that has one request under way.
_MOST_STOPPING_S = 15.0
TEXTS = ("the film was great", "the plot was awful and the score too", "a scene", "", "bright and warm " * 40)


def kill_servers(workshop: Workshop, dice: random.Random, kills: int, budget: Budget) -> Account:
    """Kills a server so often, each time with a request under way.

    Who is killed outright answers nothing or all. Who is asked to stop answers what it had accepted, and ends.
    """
    account = Account()
    models = [f"run={workshop.given / 'run'}", f"onnx={workshop.given / 'onnx'}"]
    wanted: list[Any] | None = None
    done: Counter[str] = Counter()
    answers, slowest_start, slowest_stop = 0, 0.0, 0.0
    port = _free_port()
    while done.total() < kills and budget.is_left:
        start = time.perf_counter()
        child = Child(command(["serve", *models, "--port", port, "--threads", 1, "--quiet"]), workshop.scratch())
        if not _is_ready(child, port):
            account.failures.append(f"server {done.total()} on port {port} did not start: {child.end(1).err[-600:]!r}")
            break
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_READY_S)) as connection:
            found = _ask(connection, TEXTS)
            slowest_start = max(slowest_start, time.perf_counter() - start)
            wanted = wanted or found
            if found != wanted:
                account.failures.append(f"server {done.total()} answers {found}, the first one {wanted}")
            for _ in range(dice.randint(0, 5)):
                answers += _ask(connection, TEXTS) == wanted
            number = dice.choice(_SIGNALS)
            connection.request("POST", "/v1/classify", _body(TEXTS), {"Content-Type": "application/json"})
            time.sleep(dice.uniform(0, 0.02))
            child.send(number)
            start = time.perf_counter()
            done[number.name] += 1
            try:
                last = _predictions(connection.getresponse())
            except (OSError, http.client.HTTPException):
                last = None
        ended = child.end(_MOST_STOPPING_S)
        slowest_stop = max(slowest_stop, time.perf_counter() - start)
        answers += last == wanted
        if last != wanted and (last is not None or number is not signal.SIGKILL):
            account.failures.append(f"server {done.total()}, {number.name}: its last answer is {last}, not {wanted}")
        if "Traceback" in ended.err or (number is not signal.SIGKILL and ended.code not in (0, 130, -number)):
            account.failures.append(f"server {done.total()}, {number.name}: {ended.code}, {ended.err[-600:]!r}")
    account.figures += [
        Figure("kills", "of serve, each while it answered", done.total(), least=kills),
        Figure("kills", "answers of servers, equal to the first one's", answers),
        Figure("kills", "servers that answered wrongly or did not come back", len(account.failures), most=0),
        Figure("kills", "slowest start of a server on the port of the killed one", slowest_start, "s", most=_READY_S),
        Figure("kills", "slowest end of a server", slowest_stop, "s", most=_MOST_STOPPING_S),
    ]
    return account


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _is_ready(child: Child, port: int) -> bool:
    end = time.perf_counter() + _READY_S
    while time.perf_counter() < end and not child.wait(0.01):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    return False


def _body(texts: Sequence[str]) -> bytes:
    return json.dumps({"text": list(texts), "model": ["run", "onnx"]}).encode()


def _ask(connection: http.client.HTTPConnection, texts: Sequence[str]) -> list[Any]:
    connection.request("POST", "/v1/classify", _body(texts), {"Content-Type": "application/json"})
    return _predictions(connection.getresponse())


def _predictions(response: http.client.HTTPResponse) -> list[Any]:
    body = json.loads(response.read())
    assert response.status == 200, body
    return [result["predictions"] for result in body["results"]]
