"""A server in the long run: many clients, exports replaced meanwhile, every answer held against the engine's own.

The server is a process of its own, as users start it. What a client gets must be right for the model whose hash it
names. Memory, handles and threads are read from ``/proc`` once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.load import Client

from faults.figures import Account, Figure
from faults.forked import Child
from faults.jobs import Workshop

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


@dataclass(frozen=True)
class Question:
    """A request, and the probabilities that each model gives it, by hash of the model."""

    body: bytes
    wanted: dict[str, list[list[float]]]


@dataclass
class Sample:
    """The server at a moment."""

    second: float
    memory_mib: float
    handles: int
    threads: int


@dataclass
class Tally:
    """What clients saw."""

    answered: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    milliseconds: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    hashes: Counter[str] = field(default_factory=Counter)


def soak_server(workshop: Workshop, dice: random.Random, seconds: float) -> Account:
    """Asks a server for so long and replaces its exports meanwhile."""
    place = workshop.root / "soak"
    place.mkdir()
    sources = _make_exports(workshop, place)
    questions = _make_questions(workshop, place, sources)
    for name in _NAMES:
        shutil.copytree(sources[name][0], place / name)
    with _serving(place) as (process, port):
        run = _Soak(place, sources, questions, process, port, dice)
        asyncio.run(run.run(seconds))
        process.terminate()
        code = process.wait(_PATIENCE_S)
    return run.account(seconds, code)


def _make_exports(workshop: Workshop, place: Path) -> dict[str, list[Path]]:
    """Two exports for each name, of models that were trained differently."""
    model = place / "model.yaml"
    model.write_text(
        "hidden_size: 64\nnum_attention_heads: 2\nintermediate_size: 128\nnum_core_layers: 1\nnum_recurrences: 3\n",
        encoding="utf-8",
    )
    quiet = ["--threads", 1, "--no-latency", "--quiet"]
    found: dict[str, list[Path]] = {name: [] for name in _NAMES}
    for seed in (0, 1):
        run = place / f"run-{seed}"
        train = ["train", "--data", "demo", "--model", model, "--seed", seed, "--cache-dir", place / "cache", *quiet]
        commands = [[*train, "--output", run, "max_epochs=1"]]
        for name in _NAMES:
            found[name].append(place / f"{name}-{seed}")
            precision = ["--format", "onnx", "--precision", name, "--output", found[name][-1], "--quiet"]
            commands.append(["export", run, *precision])
        for arguments in commands:
            ended = workshop.run(arguments)
            if ended.code != 0:
                raise RuntimeError(f"{arguments}: {ended.err}")
    return found


def _make_questions(workshop: Workshop, place: Path, sources: dict[str, list[Path]]) -> list[Question]:
    """Requests with their answers; a child computes them, for this process starts no threads."""
    ended = Child(lambda: _write_questions(place / "questions.json", sources), workshop.scratch()).end()
    if ended.code != 0:
        raise RuntimeError(ended.err)
    rows = json.loads((place / "questions.json").read_text(encoding="utf-8"))
    return [Question(**{**row, "body": row["body"].encode()}) for row in rows]


def _write_questions(path: Path, sources: dict[str, list[Path]]) -> int:
    from recurra import Classifier
    from recurra.data.configuration import DataConfig
    from recurra.data.corpora import load_dataset
    from recurra.deployment.serving.models import hash_model

    models = {name: {hash_model(one): Classifier.open(one, threads=1) for one in sources[name]} for name in _NAMES}
    texts = load_dataset(DataConfig(name="demo")).splits["test"].texts
    rows: list[dict[str, object]] = []
    dice = random.Random(0)
    while len(rows) < _QUESTIONS:
        number = len(rows)
        chosen = dice.choices(texts, k=(1, 1, 2, 8)[number % 4])
        opened = itertools.chain(*(models[name].items() for name in _NAMES))
        wanted = {hashed: model.predict_proba(chosen).tolist() for hashed, model in opened}
        pairs = [[wanted[hashed] for hashed in models[name]] for name in _NAMES]
        if min(abs(one[0] - other[0]) for pair in pairs for one, other in zip(*pair, strict=True)) < _LEAST_DIFFERENCE:
            continue
        # Some are explained, which asks the models once for each word.
        body = {"text": chosen, "model": list(_NAMES) if number % 3 else _NAMES[number % 2], "explain": not number % 16}
        rows.append({"body": json.dumps(body), "wanted": wanted})
    path.write_text(json.dumps(rows), encoding="utf-8")
    return 0


@contextlib.contextmanager
def _serving(place: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    folders = [f"{name}={place / name}" for name in _NAMES]
    options = ["--port", "0", "--threads", "1", "--json", "--quiet", "--max-wait-s", "30", "--timeout-s", "60"]
    # Answers are held to those of a text alone, and an int8 batch shares a scale.
    options.append("--alone")
    with (place / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "recurra", "serve", *folders, *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            lines = []
            while (line := process.stdout.readline()) and line != "}\n":
                lines.append(line)
            yield process, int(urlsplit(json.loads("".join(lines) + "}")["url"]).port or 0)
        finally:
            process.kill()
            process.wait()


class _Soak:
    """One run."""

    def __init__(
        self,
        place: Path,
        sources: dict[str, list[Path]],
        questions: Sequence[Question],
        process: subprocess.Popen[str],
        port: int,
        dice: random.Random,
    ) -> None:
        self._place, self._sources, self._questions = place, sources, questions
        self._process, self._where, self._dice = process, ("127.0.0.1", port), dice
        self._hashes = {
            name: [json.loads((one / "export.json").read_bytes())["content_hash"] for one in sources[name]]
            for name in _NAMES
        }
        self._over = False
        self.tally = Tally()
        self.samples: list[Sample] = []
        self.failures: list[str] = []
        self.reloads = 0
        self.slowest_reload_s = 0.0

    async def run(self, seconds: float) -> None:
        """Asks, replaces and samples for so long."""
        others = [asyncio.create_task(one) for one in (self._sample(), self._replace())]
        clients = [asyncio.create_task(self._ask(random.Random(number))) for number in range(CLIENTS)]
        await asyncio.sleep(seconds)
        self._over = True
        await asyncio.gather(*others, *clients)

    async def _ask(self, dice: random.Random) -> None:
        client = Client(*self._where)
        while not self._over:
            question = dice.choice(self._questions)
            started = time.perf_counter()
            try:
                answer = await asyncio.wait_for(client.ask("POST", "/v1/classify", question.body), _PATIENCE_S)
            except (OSError, TimeoutError) as error:
                self.tally.lost.append(f"{time.time():.3f}: {error!r}")
                client.close()
                continue
            self.tally.milliseconds.append(1000 * (time.perf_counter() - started))
            self._check(question, *answer)
            if dice.random() < 0.05:
                client.close()
        client.close()

    def _check(self, question: Question, status: int, body: bytes) -> None:
        tally = self.tally
        tally.statuses[status] += 1
        if status != 200:
            tally.wrong.append(f"{status}: {body[:300]!r}")
            return
        for result in json.loads(body)["results"]:
            wanted = question.wanted.get(result["content_hash"])
            if wanted is None or result["content_hash"] not in self._hashes[result["model"]]:
                tally.wrong.append(f"{result['model']} is {result['content_hash']}")
                continue
            found = [list(one["probabilities"].values()) for one in result["predictions"]]
            if (error := _most_error(found, wanted)) > _MOST_ERROR:
                tally.wrong.append(f"{result['model']} {result['content_hash'][:12]} is off by {error}")
            tally.hashes[result["content_hash"]] += 1
        tally.answered += 1

    async def _replace(self) -> None:
        """Replaces one export after the other by the model that does not answer now, and looks who answers then."""
        for number in itertools.count(1):
            await asyncio.sleep(_REPLACED_EVERY_S * self._dice.uniform(0.5, 1.5))
            if self._over:
                return
            name, following = _NAMES[number % 2], (number + 1) // 2 % 2
            self._put(name, following)
            started = time.perf_counter()
            self._process.send_signal(signal.SIGHUP)
            while await self._loaded(name) != self._hashes[name][following]:
                if time.perf_counter() - started > _PATIENCE_S:
                    self.failures.append(f"reload {number} of {name}: {await self._loaded(name)} answers")
                    return
                await asyncio.sleep(0.05)
            self.slowest_reload_s = max(self.slowest_reload_s, time.perf_counter() - started)
            self.reloads += 1

    def _put(self, name: str, which: int) -> None:
        """Puts an export in the place of another, by renaming."""
        place, fresh, old = (self._place / f"{prefix}{name}" for prefix in ("", "fresh-", "old-"))
        shutil.copytree(self._sources[name][which], fresh)
        place.rename(old)
        fresh.rename(place)
        shutil.rmtree(old)

    async def _get(self, path: str) -> bytes:
        client = Client(*self._where)
        try:
            return (await asyncio.wait_for(client.ask("GET", path), _PATIENCE_S))[1]
        finally:
            client.close()

    async def _loaded(self, name: str) -> str:
        models = json.loads(await self._get("/health/ready"))["models"]
        return next(one["content_hash"] for one in models if one["name"] == name)

    async def _sample(self) -> None:
        process = Path(f"/proc/{self._process.pid}")
        page, started = os.sysconf("SC_PAGE_SIZE"), time.perf_counter()
        while not self._over:
            memory = int((process / "statm").read_text().split()[1]) * page / 2**20
            threads = len(list((process / "task").iterdir()))
            handles = len(list((process / "fd").iterdir()))
            self.samples.append(Sample(time.perf_counter() - started, memory, handles, threads))
            await asyncio.sleep(1.0)

    def account(self, seconds: float, code: int) -> Account:
        """What was found, held against the bounds."""
        tally = self.tally
        kept = [sample for sample in self.samples if sample.second > _WARM_UP * seconds]
        quarter = len(kept) // 4
        first, last = kept[:quarter], kept[-quarter:]
        log = [json.loads(line) for line in (self._place / "log").read_text(encoding="utf-8").splitlines()]
        failures = [*self.failures, *tally.wrong[:20], *tally.lost[:20]]
        failures += [json.dumps(event) for event in log][:20]
        if code != 0:
            failures.append(f"the server ended with {code}")

        def median(samples: Sequence[Sample], name: str) -> float:
            return statistics.median([getattr(sample, name) for sample in samples] or [float("nan")])

        memory = [median(part, "memory_mib") for part in (first, last)]
        most_mib = memory[0] * (1 + MOST_GROWTH) if seconds >= _LONG_S else None
        figures = [
            Figure("soak", "of asking", seconds, "s"),
            Figure("soak", f"answers to {CLIENTS} clients, each compared", tally.answered, least=1),
            Figure("soak", "lost answers", len(tally.lost), most=0),
            Figure("soak", "wrong answers", len(tally.wrong), most=0),
            Figure("soak", "99 of 100 answers within", statistics.quantiles(tally.milliseconds, n=100)[98], "ms"),
            Figure("soak", "exports taken up", self.reloads, least=1),
            Figure("soak", "models that answered", len(tally.hashes), least=2 * len(_NAMES)),
            Figure("soak", "slowest reload", self.slowest_reload_s, "s", most=_PATIENCE_S),
            Figure("soak", "memory, first quarter after the warm-up", memory[0], "MiB"),
            Figure("soak", "memory, last quarter", memory[1], "MiB", most=most_mib),
            Figure("soak", "most memory", max(sample.memory_mib for sample in self.samples), "MiB"),
        ]
        for name in ("handles", "threads"):
            before = median(first, name)
            figures.append(Figure("soak", f"{name}, first quarter", before))
            figures.append(Figure("soak", f"{name}, last quarter", median(last, name), most=before + 1))
        return Account(figures, failures)


def _most_error(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]]) -> float:
    """The largest difference; infinite if they are not of one shape."""
    if [len(row) for row in found] != [len(row) for row in wanted]:
        return math.inf
    pairs = zip(itertools.chain(*found), itertools.chain(*wanted), strict=True)
    return max((abs(one - other) for one, other in pairs), default=0.0)
