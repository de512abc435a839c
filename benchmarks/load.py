"""Many clients at once against ``recurra serve``, beside the same engine in this process and a small FastAPI server.

    python -m benchmarks.load EXPORT [--seconds 5] [--clients 64] [--texts 1] [--data FILE]

The server runs in a process of its own and shares the cores with the clients, so that the share of the engine's
throughput that it reaches holds their cost too. Engine and server compute with the same number of threads, and the
engine is measured before and after the load: the better of the two counts. The best number of threads depends on what
else runs: compare with the fastest engine of any. A share above 1 says that the machine was busy meanwhile.

Overload is asked of a second server whose queue is made short (``overload_queue_texts``): the default queue has room
for every client here. ``overload_offered`` is what was sent, in multiples of what the first server answered.

``--peer`` measures one thing alone: texts a second beside ``benchmarks.fastapi_peer`` on the same ONNX export, for 1,
16 and 64 clients, both servers up, asked in turns three times; medians and their ratios. On a machine that is busy
with other work compare the processor time a text: whoever has more threads gets more of a core that is shared.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from recurra import Classifier
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.tables import stream_texts

BATCH_SIZES = (1, 8, 32, 64)
OVERLOAD = 4
PEER_CLIENTS = (1, 16, 64)
PEER_ROUNDS = 3


@dataclass
class Tally:
    """Answers that the clients of one phase got."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: dict[int, list[float]] = field(default_factory=dict)
    texts: int = 0
    broken: int = 0

    def note(self, status: int, seconds: float, texts: int) -> None:
        self.statuses[status] += 1
        self.seconds.setdefault(status, []).append(seconds)
        self.texts += texts if status == 200 else 0

    def percentile_ms(self, share: float, status: int = 200) -> float:
        return 1000 * float(np.percentile(self.seconds.get(status, [float("nan")]), share))


class Client(asyncio.Protocol):
    """One keep-alive connection; reads just as much HTTP as the server writes.

    A protocol and not streams: the client shares the cores with the server, and streams cost it three times as much.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.transport: asyncio.Transport | None = None
        self.received = b""
        self.answer: asyncio.Future[tuple[int, bytes]] | None = None

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, separator, rest = self.received.partition(b"\r\n\r\n")
        if not separator or self.answer is None or self.answer.done():
            return
        lower = head.lower()
        start = lower.index(b"content-length:") + len(b"content-length:")
        length = int(lower[start:].partition(b"\r")[0])
        if len(rest) < length:
            return
        self.received = rest[length:]
        if b"connection: close" in lower:
            self.close()
        self.answer.set_result((int(head[9:12]), rest[:length]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(exc or ConnectionResetError())

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        self.received, self.answer = b"", loop.create_future()
        if self.transport is None:
            self.transport, _ = await loop.create_connection(lambda: self, self.host, self.port)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        self.transport.write(head.encode() + b"\r\n" + body)
        return await self.answer

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
            self.transport = None


async def work(client: Client, bodies: Sequence[bytes], texts: int, end: float, *, tally: Tally, seed: int) -> None:
    """Sends one request after the other until the time is over."""
    rng = random.Random(seed)
    while time.monotonic() < end:
        started = time.monotonic()
        try:
            status, _ = await client.ask("POST", "/v1/classify", rng.choice(bodies))
        except OSError:
            tally.broken += 1
            client.close()
            continue
        tally.note(status, time.monotonic() - started, texts)
        if status == 429:
            # A client that is turned away waits before it comes back.
            await asyncio.sleep(0.05)
    client.close()


async def phase(where: tuple[str, int], bodies: Sequence[bytes], texts: int, clients: int, seconds: float) -> Tally:
    """Runs clients side by side for some seconds."""
    tally, end = Tally(), time.monotonic() + seconds
    await asyncio.gather(*(work(Client(*where), bodies, texts, end, tally=tally, seed=seed) for seed in range(clients)))
    return tally


async def resident_mib(where: tuple[str, int]) -> float:
    client = Client(*where)
    _, page = await client.ask("GET", "/metrics")
    client.close()
    line = next(line for line in page.decode().splitlines() if line.startswith("process_resident_memory_bytes "))
    return float(line.split()[1]) / 2**20


async def recovered_s(where: tuple[str, int], body: bytes) -> float:
    """Seconds until a request is accepted and answered again."""
    started = time.monotonic()
    client = Client(*where)
    while True:
        status, _ = await client.ask("POST", "/v1/classify", body)
        if status == 200:
            client.close()
            return time.monotonic() - started
        await asyncio.sleep(0.02)


def engine_rate(folder: Path, texts: Sequence[str], seconds: float, threads: int) -> tuple[float, int]:
    """Texts a second of the engine in this process, at its best batch, and that batch."""
    best = (0.0, 0)
    classifier = Classifier.open(folder, threads=threads)
    for size in BATCH_SIZES:
        rates: list[float] = []
        classifier.predict_proba(texts[:size])
        end = time.monotonic() + seconds / len(BATCH_SIZES)
        rng = random.Random(0)
        while time.monotonic() < end or not rates:
            batch = rng.choices(texts, k=size)
            started = time.monotonic()
            classifier.predict_proba(batch)
            rates.append(time.monotonic() - started)
        best = max(best, (size * len(rates) / sum(rates), size))
    return best


def start(options: argparse.Namespace, *more: str) -> tuple[subprocess.Popen[str], tuple[str, int], float]:
    """Starts a server; returns it, where it listens, and the seconds until it was ready."""
    command = [sys.executable, "-m", "recurra", "serve", str(options.folder), "--port", "0", "--json", "--quiet"]
    command += ["--threads", str(options.threads), *options.serve, *more]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    while (line := process.stdout.readline()) and line != "}\n":
        lines.append(line)
    if not lines:
        raise SystemExit(process.wait())
    url = urlsplit(json.loads("".join(lines) + "}")["url"])
    return process, (str(url.hostname), int(url.port or 0)), time.monotonic() - started


def start_peer(folder: Path, body: bytes) -> tuple[subprocess.Popen[str], tuple[str, int]]:
    """Starts the small server on a free port, and returns once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = ("127.0.0.1", free.getsockname()[1])
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.fastapi_peer", str(folder), str(where[1])], text=True)
    while process.poll() is None:
        with contextlib.suppress(OSError):
            asyncio.run(recovered_s(where, body))
            return process, where
        time.sleep(0.1)
    raise SystemExit(process.returncode)


def beside_peer(options: argparse.Namespace) -> dict[str, Any]:
    """Texts a second of ours and of the peer's server, in turns, by number of clients."""
    bodies = request_bodies(options, sample_texts(options.data, options.text_column))
    rows = {}
    with contextlib.ExitStack() as stack:
        ours, where, _ = start(options)
        stack.callback(_stop, ours)
        peer, peer_where = start_peer(options.folder, bodies[0])
        stack.callback(_stop, peer)
        servers = {"ours": (ours.pid, where), "peer": (peer.pid, peer_where)}
        for clients in PEER_CLIENTS:
            rates: dict[str, list[float]] = {name: [] for name in servers}
            cpu_ms: dict[str, list[float]] = {name: [] for name in servers}
            for name, (pid, address) in [*servers.items()] * PEER_ROUNDS:
                before = cpu_seconds(pid)
                tally = asyncio.run(phase(address, bodies, options.texts, clients, options.seconds))
                rates[name].append(tally.texts / options.seconds)
                cpu_ms[name].append(1000 * (cpu_seconds(pid) - before) / max(1, tally.texts))
            row = {f"{name}_texts_s": statistics.median(rates[name]) for name in servers}
            row |= {f"{name}_cpu_ms": statistics.median(cpu_ms[name]) for name in servers}
            row["ratio_texts_s"] = row["ours_texts_s"] / row["peer_texts_s"]
            row["ratio_cpu"] = row["ours_cpu_ms"] / row["peer_cpu_ms"]
            rows[str(clients)] = row
    return {"threads": options.threads, "clients": rows}


def _stop(process: subprocess.Popen[str]) -> int:
    """Ends a server; returns its exit code."""
    process.terminate()
    return process.wait(60)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def request_bodies(options: argparse.Namespace, texts: Sequence[str]) -> list[bytes]:
    rng = random.Random(1)
    return [json.dumps({"text": rng.choices(texts, k=options.texts)}).encode() for _ in range(512)]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measures start, engine, load and overload."""
    texts = sample_texts(options.data, options.text_column)
    bodies = request_bodies(options, texts)
    before_load = engine_rate(options.folder, texts, options.seconds, options.threads)
    process, where, ready_s = start(options)
    try:
        asyncio.run(phase(where, bodies, options.texts, options.clients, 1.0))
        before = asyncio.run(resident_mib(where))
        load = asyncio.run(phase(where, bodies, options.texts, options.clients, options.seconds))
        after = asyncio.run(resident_mib(where))
        rate = load.texts / options.seconds
    finally:
        code = _stop(process)
    engine, batch = max(before_load, engine_rate(options.folder, texts, options.seconds, options.threads))
    room = max(options.clients * options.texts // 2, options.texts)
    overload, recovery_s = overloaded(options, bodies, room)
    return {
        "threads": options.threads,
        "ready_s": ready_s,
        "engine_texts_s": engine,
        "engine_batch": batch,
        "server_texts_s": rate,
        "share_of_engine": rate / engine,
        "p50_ms": load.percentile_ms(50),
        "p99_ms": load.percentile_ms(99),
        "statuses": dict(load.statuses),
        "broken": load.broken,
        "memory_before_mib": before,
        "memory_after_mib": after,
        "overload_statuses": dict(overload.statuses),
        "overload_broken": overload.broken,
        "overload_queue_texts": room,
        "overload_offered": sum(overload.statuses.values()) * options.texts / options.seconds / rate,
        "overload_p99_accepted_ms": overload.percentile_ms(99),
        "overload_p99_refused_ms": overload.percentile_ms(99, 429),
        "recovery_s": recovery_s,
        "exit_code": code,
    }


def overloaded(options: argparse.Namespace, bodies: Sequence[bytes], room: int) -> tuple[Tally, float]:
    """Sends more than a server's queue has room for; returns the tally, and the seconds until it accepts again."""
    process, where, _ = start(options, "--max-waiting-texts", str(room))
    try:
        tally = asyncio.run(phase(where, bodies, options.texts, OVERLOAD * options.clients, options.seconds))
        recovery_s = asyncio.run(recovered_s(where, bodies[0]))
    finally:
        _stop(process)
    return tally, recovery_s


def sample_texts(file: Path | None, column: str) -> list[str]:
    """Texts of a file, or of the demo corpus."""
    if file is None:
        return load_dataset(DataConfig(name="demo")).splits["test"].texts
    return [text for chunk in stream_texts(str(file), column, 4096) for text in chunk]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("folder", type=Path, help="a run or an export")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--texts", type=int, default=1, help="texts of a request")
    parser.add_argument("--threads", type=int, default=0, help="of engine and server alike; 0 takes all cores")
    parser.add_argument("--data", type=Path, help="file of texts; default: the demo corpus")
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--peer", action="store_true", help="measure beside a small FastAPI server instead")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="further options of recurra serve")
    options = parser.parse_args()
    print(json.dumps((beside_peer if options.peer else measure)(options), indent=1))


if __name__ == "__main__":
    main()
