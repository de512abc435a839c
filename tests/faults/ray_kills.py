"""A study on a Ray cluster whose driver is killed at random; what it leaves equals what the local executor leaves.

Driver and workers are started as users start them, so that each kill costs seconds of imports, and there are few.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from faults.figures import Account, Budget, Figure
from faults.jobs import JOBS, OUTPUT, Workshop
from faults.kills import Twins
from faults.twins import differences, left_by

_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_PATIENCE_S = 240.0
# Of starts behind a kill: the cluster still ends what the killed driver had begun.
_STARTS = 5
_TESTS = Path(__file__).parents[1]


def kill_drivers(workshop: Workshop, twins: Twins, dice: random.Random, kills: int, budget: Budget) -> Account:
    """Kills the driver of a study so often, up to twice in a row, and starts it again until it is done."""
    account = Account()
    wanted, _ = twins.of(JOBS["study"])
    done: Counter[str] = Counter()
    with _cluster() as address:
        start = time.perf_counter()
        _finish(workshop, address, wanted, account, [])
        seconds = time.perf_counter() - start
        while done.total() < kills and budget.is_left:
            story: list[str] = []
            place = workshop.place(JOBS["study"])
            for _ in range(min(dice.randint(1, 2), kills - done.total())):
                number, moment = dice.choice(_SIGNALS), dice.uniform(0, seconds)
                process = _start(workshop, address, place)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(moment)
                    break
                process.send_signal(number)
                process.communicate(timeout=_PATIENCE_S)
                done[number.name] += 1
                story.append(f"{number.name} after {moment:.1f} s")
            _finish(workshop, address, wanted, account, story, place)
    account.figures += [
        Figure("kills", "of study on a Ray cluster", done.total(), least=kills),
        Figure("kills", "studies on a cluster that left something else than local ones", len(account.failures), most=0),
    ]
    return account


@contextlib.contextmanager
def _cluster() -> Iterator[str]:
    command = [sys.executable, str(_TESTS / "ray_cluster.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS.parent / "src"), *sys.path[:1]])}
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=environment
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            said.seek(0)
            raise RuntimeError(f"the Ray cluster did not start: {said.read()[-2_000:]}")
        yield address
        process.stdin.close()
        process.wait(timeout=60)


def _start(workshop: Workshop, address: str, place: Path) -> subprocess.Popen[str]:
    arguments = ["study", "run", workshop.given / "study.yaml", "--output", place / OUTPUT, "--no-latency", "--quiet"]
    arguments += ["--threads", "1", "--executor", "ray", "--address", address]
    return subprocess.Popen(
        [sys.executable, "-m", "recurra", *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _finish(
    workshop: Workshop, address: str, wanted: dict[str, object], account: Account, story: list[str],
    place: Path | None = None,
) -> None:  # fmt: skip
    place = place or workshop.place(JOBS["study"])
    for _ in range(_STARTS):
        process = _start(workshop, address, place)
        said = process.communicate(timeout=_PATIENCE_S)[1]
        if process.returncode == 0:
            break
        if "in use by another process" not in said:
            break
        time.sleep(2)
    wrong = differences(left_by(place), wanted) if process.returncode == 0 else [f"{process.returncode}: {said[-900:]}"]
    if wrong:
        account.failures.append(f"study on a Ray cluster, {story}: {wrong[:4]}")
    else:
        shutil.rmtree(place)
