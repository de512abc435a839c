"""A server in the long run: many clients, exports replaced meanwhile, every answer held against the engine's own.

The server is a process of its own, as users start it. What a client gets must be right for the model whose hash it
names. Memory, handles and threads are read from ``/proc`` once a second.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
from benchmarks.load import Client

from faults.figures import Account, Figure
from faults.forked import Child
from faults.jobs import Workshop
from server_process import started

CLIENTS = 64
MOST_GROWTH = 0.02
# In less time what is made on first use is still being made.
_LONG_S = 300.0
_NAMES = ("fp32", "int8")
_QUESTIONS = 96
_REPLACED_EVERY_S = 3.0
_PATIENCE_S = 60.0
# Answers are off by what rounding does where texts share a batch, and models by more than ten times that.
_MOST_ERROR = 1e-4
_LEAST_DIFFERENCE = 1e-3
# Of the time, before memory is compared: what is made on first use is made then.
_WARM_UP = 0.1
_MODEL = "hidden_size: 64\nnum_attention_heads: 2\nintermediate_size: 128\nnum_core_layers: 1\nnum_recurrences: 3\n"


class Question(NamedTuple):
    """A request, and the probabilities that it gets under each name, by hash of the model."""

    body: str
    wanted: dict[str, dict[str, list[list[float]]]]


class Sample(NamedTuple):
    """The server at a moment."""

    memory: float
    handles: float
    threads: float


def soak_server(workshop: Workshop, dice: random.Random, seconds: float) -> Account:
    """Asks a server for so long and replaces its exports meanwhile."""
    place = workshop.root / "soak"
    place.mkdir()
    sources = _make_exports(workshop, place)
    # A child computes them, for this process starts no threads.
    written = place / "questions.json"
    workshop.succeeds(Child(lambda: _write_questions(written, sources), workshop.scratch()).end())
    questions = [Question(*row) for row in json.loads(written.read_text(encoding="utf-8"))]
    for name in _NAMES:
        shutil.copytree(sources[name][0], place / name)
    # Answers are held to those of a text alone, and an int8 batch shares a scale.
    options = ["--port", "0", "--threads", "1", "--quiet", "--max-wait-s", "30", "--timeout-s", "60", "--alone"]
    serve = [sys.executable, "-m", "recurra", "serve", *(f"{name}={place / name}" for name in _NAMES), *options]
    with started(serve) as (process, said):
        soak = _Soak(place, sources, questions, process, int(urlsplit(said["url"]).port or 0), dice)
        asyncio.run(soak.run(seconds))
        process.terminate()
        log = process.communicate(timeout=_PATIENCE_S)[1]
    soak.failures += log.splitlines()[:20]
    if process.returncode != 0:
        soak.failures.append(f"the server ended with {process.returncode}")
    return Account(soak.figures(seconds), soak.failures)


def _make_exports(workshop: Workshop, place: Path) -> dict[str, list[Path]]:
    """Two exports for each name, of models that were trained differently."""
    model = place / "model.yaml"
    model.write_text(_MODEL, encoding="utf-8")
    found: dict[str, list[Path]] = {name: [] for name in _NAMES}
    for seed in ("0", "1"):
        run = str(place / f"run-{seed}")
        train = ["train", "--data", "demo", "--threads", "1", "--no-latency", "--quiet", "max_epochs=1"]
        train += ["--model", str(model), "--seed", seed, "--cache-dir", str(place / "cache"), "--output", run]
        workshop.succeeds(workshop.run(train))
        for name in _NAMES:
            found[name].append(place / f"{name}-{seed}")
            export = ["export", run, "--format", "onnx", "--precision", name, "--quiet", "--output"]
            workshop.succeeds(workshop.run([*export, str(found[name][-1])]))
    return found


def _write_questions(path: Path, sources: dict[str, list[Path]]) -> int:
    from recurra import Classifier
    from recurra.data.configuration import DataConfig
    from recurra.data.corpora import load_dataset
    from recurra.deployment.serving.models import hash_model

    models = {name: {hash_model(one): Classifier.open(one, threads=1) for one in sources[name]} for name in _NAMES}
    texts = load_dataset(DataConfig(name="demo")).splits["test"].texts
    rows: list[Question] = []
    dice = random.Random(0)
    while len(rows) < _QUESTIONS:
        number = len(rows)
        chosen = dice.choices(texts, k=(1, 1, 2, 8)[number % 4])
        wanted = {
            name: {hashed: model.predict_proba(chosen).tolist() for hashed, model in opened.items()}
            for name, opened in models.items()
        }
        if min(np.abs(np.subtract(*two.values())).min() for two in wanted.values()) < _LEAST_DIFFERENCE:
            continue
        # Some are explained, which asks the models once for each word.
        body = {"text": chosen, "model": list(_NAMES) if number % 3 else _NAMES[number % 2], "explain": not number % 16}
        rows.append(Question(json.dumps(body), wanted))
    path.write_text(json.dumps(rows), encoding="utf-8")
    return 0


@dataclass
class _Soak:
    """One run, and what its clients saw."""

    place: Path
    sources: dict[str, list[Path]]
    questions: Sequence[Question]
    process: subprocess.Popen[str]
    port: int
    dice: random.Random
    over: bool = False
    answered: int = 0
    reloads: int = 0
    slowest_reload_s: float = 0.0
    milliseconds: list[float] = field(default_factory=list)
    hashes: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def run(self, seconds: float) -> None:
        """Asks, replaces and samples for so long."""
        clients = [self._ask(random.Random(number)) for number in range(CLIENTS)]
        tasks = [asyncio.create_task(one) for one in (self._sample(), self._replace(), *clients)]
        await asyncio.sleep(seconds)
        self.over = True
        await asyncio.gather(*tasks)

    async def _ask(self, dice: random.Random) -> None:
        client = Client("127.0.0.1", self.port)
        while not self.over:
            question = dice.choice(self.questions)
            began = time.perf_counter()
            try:
                asked = client.ask("POST", "/v1/classify", question.body.encode())
                status, body = await asyncio.wait_for(asked, _PATIENCE_S)
            except (OSError, TimeoutError) as error:
                self.lost.append(f"{time.time():.3f}: {error!r}")
                client.close()
                continue
            self.milliseconds.append(1000 * (time.perf_counter() - began))
            wrong = [f"{status}: {body[:300]!r}"] if status != 200 else self._wrong(question, body)
            self.wrong += wrong
            self.answered += not wrong
            if dice.random() < 0.05:
                client.close()
        client.close()

    def _wrong(self, question: Question, body: bytes) -> list[str]:
        wrong = []
        for result in json.loads(body)["results"]:
            name, hashed = result["model"], result["content_hash"]
            self.hashes[hashed] += 1
            found = [list(one["probabilities"].values()) for one in result["predictions"]]
            wanted = question.wanted[name].get(hashed, [])
            if np.shape(found) != np.shape(wanted) or not np.allclose(found, wanted, rtol=0, atol=_MOST_ERROR):
                wrong.append(f"{name}, {hashed}, says {found}")
        return wrong

    async def _replace(self) -> None:
        """Replaces one export after the other by the model that does not answer now, and looks who answers then."""
        for number in itertools.count(1):
            await asyncio.sleep(_REPLACED_EVERY_S * self.dice.uniform(0.5, 1.5))
            if self.over:
                return
            name, following = _NAMES[number % 2], (number + 1) // 2 % 2
            place, fresh, old = (self.place / f"{prefix}{name}" for prefix in ("", "fresh-", "old-"))
            shutil.copytree(self.sources[name][following], fresh)
            place.rename(old)
            fresh.rename(place)
            shutil.rmtree(old)
            began = time.perf_counter()
            self.process.send_signal(signal.SIGHUP)
            hashed = list(self.questions[0].wanted[name])[following]
            while (loaded := await self._loaded(name)) != hashed:
                if time.perf_counter() - began > _PATIENCE_S:
                    self.failures.append(f"reload {number} of {name}: {loaded} answers")
                    return
                await asyncio.sleep(0.05)
            self.slowest_reload_s = max(self.slowest_reload_s, time.perf_counter() - began)
            self.reloads += 1

    async def _loaded(self, name: str) -> str:
        client = Client("127.0.0.1", self.port)
        _, body = await asyncio.wait_for(client.ask("GET", "/health/ready"), _PATIENCE_S)
        client.close()
        return str(next(one["content_hash"] for one in json.loads(body)["models"] if one["name"] == name))

    async def _sample(self) -> None:
        process = Path(f"/proc/{self.process.pid}")
        while not self.over:
            pages = int((process / "statm").read_text().split()[1])
            handles, threads = (len(list((process / folder).iterdir())) for folder in ("fd", "task"))
            self.samples.append(Sample(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, handles, threads))
            await asyncio.sleep(1.0)

    def figures(self, seconds: float) -> list[Figure]:
        """What was found, with its bounds."""
        kept = self.samples[int(_WARM_UP * len(self.samples)) + 1 :] or self.samples
        quarter = max(1, len(kept) // 4)
        first, last = (
            Sample(*map(statistics.median, zip(*part, strict=True))) for part in (kept[:quarter], kept[-quarter:])
        )
        most_mib = first.memory * (1 + MOST_GROWTH) if seconds >= _LONG_S else None
        self.failures += [*self.wrong[:20], *self.lost[:20]]
        found = [
            Figure("soak", f"answers to {CLIENTS} clients, each compared", self.answered, least=1),
            Figure("soak", "lost answers", len(self.lost), most=0),
            Figure("soak", "wrong answers", len(self.wrong), most=0),
            Figure("soak", "99 of 100 answers within", statistics.quantiles(self.milliseconds, n=100)[98], "ms"),
            Figure("soak", "exports taken up", self.reloads, least=1),
            Figure("soak", "models that answered", len(self.hashes), least=2 * len(_NAMES)),
            Figure("soak", "slowest reload", self.slowest_reload_s, "s", most=_PATIENCE_S),
            Figure("soak", "memory, first quarter after the warm-up", first.memory, "MiB"),
            Figure("soak", "memory, last quarter", last.memory, "MiB", most=most_mib),
        ]
        for name in ("handles", "threads"):
            before, after = getattr(first, name), getattr(last, name)
            found.append(Figure("soak", f"{name}, first quarter", before))
            found.append(Figure("soak", f"{name}, last quarter", after, most=before + 1))
        return found
