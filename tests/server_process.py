"""``recurra serve`` in a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

READY_S = 90


@contextlib.contextmanager
def started(
    command: Sequence[object], environment: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server that is ready, with what it said on standard output; it is killed at the end."""
    process = subprocess.Popen(
        [*map(str, command), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(environment or os.environ),
    )  # fmt: skip
    watchdog = threading.Timer(READY_S, process.kill)
    watchdog.start()
    try:
        lines = []
        assert process.stdout is not None
        while (line := process.stdout.readline()) and line != "}\n":
            lines.append(line)
        assert lines, process.communicate()[1]
        yield process, json.loads("".join(lines) + "}")
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def ask(url: str, body: object, path: str = "/v1/classify", **headers: str) -> tuple[int, Any]:
    """Posts JSON; returns status and answer."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=30)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
