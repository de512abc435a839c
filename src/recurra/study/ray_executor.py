"""Executes the pending runs of a study on a Ray cluster: one task per run, retried when its node dies.

A task starts the same worker process as on one machine. Where the node sees the study's folder, the run works in it
and can be resumed by any other such node. Where it does not, the run works in a folder of the node, and its files
travel back when it is finished.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from recurra.core.errors import ConfigurationError, RecurraError, RunError, StorageError, UnavailableError
from recurra.core.files import atomic_path, locked_folder, write_text
from recurra.core.record import RECORD_NAME
from recurra.study.executor import EXECUTE, LOG_NAME, Executor, outcome_of, threads_of
from recurra.study.plan import ERROR_NAME, PlannedRun, claim_folder, note_failure, read_state, run_folder
from recurra.study.workers import Ended, Workers
from recurra.tasks.base import RunConfig
from recurra.tasks.study_data import Machine

AUTO = "auto"
CONNECT_S = 5.0
# Ray itself waits two minutes for a cluster that is not there.
HEALTH_S = 20.0


@dataclass(frozen=True)
class Cluster:
    """Address of a Ray cluster, and the resources of one run.

    Attributes:
        address: ``HOST:PORT`` of the cluster's head, or ``auto`` for the one that this machine belongs to.
        cpus: Cores of a run; also its threads, unless they are set.
        extra: Extra of this package that installs Ray, for the error message.
    """

    address: str = AUTO
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3
    extra: str = "study"

    def check(self) -> None:
        """Checks, in bounded time, that the cluster answers.

        Raises:
            ConfigurationError: If the address is invalid.
            UnavailableError: If Ray is not installed or the cluster does not answer.
        """
        _import_ray(self.extra)
        if self.address != AUTO:
            host, port = self._host_and_port()
            try:
                socket.create_connection((host, port), timeout=CONNECT_S).close()
            except OSError as error:
                reason = error.strerror or str(error)
                raise UnavailableError(self._unreachable(reason)) from error
        address = [] if self.address == AUTO else ["--address", self.address]
        # This runs in a process of its own, because Ray's client has no time limit and cannot be stopped.
        try:
            health_check = subprocess.run(
                [sys.executable, "-m", "ray.scripts.scripts", "health-check", *address],
                capture_output=True,
                timeout=HEALTH_S,
                check=False,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(self._unreachable(f"no answer within {HEALTH_S:.0f} s")) from error
        if health_check.returncode:
            raise UnavailableError(self._unreachable("no Ray cluster answers there"))

    @contextlib.contextmanager
    def connected(self) -> Iterator[ModuleType]:
        """Yields Ray, connected to the cluster; the connection ends with the block, the cluster keeps running.

        Raises:
            UnavailableError: If the cluster refuses the connection.
            ConfigurationError: If no node has the resources of a run.
        """
        ray = _import_ray(self.extra)
        with _stdout_on_stderr():
            try:
                ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError) as error:
                raise UnavailableError(self._unreachable(" ".join(str(error).split())[:200])) from error
            try:
                self._check_resources(ray)
                yield ray
            finally:
                ray.shutdown()

    def _check_resources(self, ray: ModuleType) -> None:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in nodes):
            return
        resources = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise ConfigurationError(
            f"a run or worker needs {self.cpus:g} CPUs and {self.gpus:g} GPUs, but no node of the cluster has both "
            f"({resources}); ask for less, or add a node"
        )

    def _host_and_port(self) -> tuple[str, int]:
        host, separator, port = self.address.rpartition(":")
        if not separator or not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigurationError(
                f"'{self.address}' is not the address of a Ray cluster; give HOST:PORT (6379 is usual), or auto on a "
                "machine of the cluster"
            )
        return host.strip("[]"), int(port)

    def _unreachable(self, reason: str) -> str:
        cluster = "of this machine" if self.address == AUTO else f"'{self.address}'"
        return (
            f"cannot reach the Ray cluster {cluster}: {reason}; start one with 'ray start --head', join it from this "
            f"machine with 'ray start --address HOST:PORT', or do without Ray"
        )


@contextlib.contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Redirects standard output to standard error: Ray and its C++ part print, and our result is one document."""
    sys.stdout.flush()
    saved_stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved_stdout, 1)
        os.close(saved_stdout)


def _import_ray(extra: str) -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UnavailableError(f"Ray is not installed; pip install 'recurra[{extra}]'") from error
    return ray


_TOKEN_PREFIX = ".shared-"
# A run that is started again waits this long for the process of the dead node to release the folder.
RELEASE_S = 60.0
_LEFT_BEHIND = frozenset({"checkpoints", ".lock", "progress.json"})


@dataclass(frozen=True)
class Answer:
    """Result from a node: how the worker ended, and the run's files unless they lie in the study's folder."""

    node: str
    ended: Ended
    files: dict[str, bytes] = field(default_factory=dict)


def run_on_node(config: dict[str, Any], folder: Path, machine: str, token: tuple[Path, str], cwd: Path) -> Answer:
    """Executes a run on the node that calls this.

    Args:
        config: Plain configuration of the run.
        folder: The run's folder as the study sees it.
        machine: The machine as JSON, with its threads set.
        token: A file in the study's folder and its content; a node that reads this content shares the folder.
        cwd: Working folder of the study, to which the names of a user's files are relative.
    """
    working_folder = cwd if cwd.is_dir() else None
    if _shares_folder(*token):
        _wait_for_release(folder)
        return Answer(socket.gethostname(), _work(folder, Machine.from_json(machine), working_folder))
    local_folder = Path(tempfile.mkdtemp(prefix="recurra-run-"))
    try:
        claim_folder(RunConfig.parse(config, source="run"), local_folder)
        ended = _work(local_folder, Machine.from_json(machine), working_folder)
        return Answer(socket.gethostname(), ended, _files_of(local_folder))
    finally:
        shutil.rmtree(local_folder, ignore_errors=True)


def _work(folder: Path, machine: Machine, cwd: Path | None) -> Ended:
    with Workers(0, machine.threads, cwd=cwd) as workers:
        return workers.call(EXECUTE, str(folder), machine=machine, log=folder / LOG_NAME)


def _shares_folder(path: Path, token: str) -> bool:
    try:
        return path.read_text(encoding="ascii") == token
    except (OSError, UnicodeDecodeError):
        return False


def _wait_for_release(folder: Path) -> None:
    deadline = time.monotonic() + RELEASE_S
    while time.monotonic() < deadline:
        try:
            with locked_folder(folder):
                return
        except StorageError:
            time.sleep(0.5)


def _files_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    names = {path: path.relative_to(folder) for path in paths}
    return {name.as_posix(): path.read_bytes() for path, name in names.items() if name.parts[0] not in _LEFT_BEHIND}


def collect(files: dict[str, bytes], folder: Path) -> None:
    """Writes a run's files into its folder, the record last: a run counts as done once it has one.

    Raises:
        StorageError: If a file cannot be written.
        RunError: If a name leads out of the folder.
    """
    for name in sorted(files, key=lambda name: name == RECORD_NAME):
        target = folder / name
        if not target.resolve().is_relative_to(folder.resolve()):
            raise RunError(f"a node sent a file '{name}' that does not belong in '{folder}'; it was not written")
        with atomic_path(target) as temporary:
            temporary.write_bytes(files[name])


class RayExecutor(Executor):
    """Runs on a Ray cluster.

    Args:
        machine: Data root and caches, the same paths on every node; its ``threads`` are those of one run, 0 takes its
            cores.
        cluster: Where to run; it chooses how many runs are under way if ``at_once`` is 0.
    """

    def __init__(self, output: Path, machine: Machine, at_once: int, cluster: Cluster, **options: Any) -> None:
        super().__init__(output, threads_of(_absolute(machine), max(1, int(cluster.cpus)), 1), at_once, **options)
        self.cluster = cluster
        self._references: dict[Future[Any], Any] = {}
        self._lost: Counter[str] = Counter()

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Connects, and leaves a token in the folder by which a node sees whether it shares it."""
        # The study holds the lock of its folder: a token there was left by a driver that was killed.
        for leftover in self.output.glob(f"{_TOKEN_PREFIX}*"):
            leftover.unlink(missing_ok=True)
        path, token = self.output.resolve() / f"{_TOKEN_PREFIX}{secrets.token_hex(8)}", secrets.token_hex(16)
        with self.cluster.connected() as self._ray:
            self._remote = self._ray.remote(run_on_node).options(
                num_cpus=self.cluster.cpus, num_gpus=self.cluster.gpus, max_retries=0, name="recurra run"
            )
            self._token = path, token
            write_text(path, token)
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def start(self, config: RunConfig) -> Future[Answer]:
        """Submits a run to the cluster."""
        folder = run_folder(self.output.resolve(), config)
        reference = self._remote.remote(config.plain(), folder, self.machine.to_json(), self._token, Path.cwd())
        future: Future[Answer] = reference.future()
        self._references[future] = reference
        return future

    def outcome(self, config: RunConfig, ended: Future[Answer]) -> PlannedRun | None:
        """The run as its folder shows it; None if its node died and it must be started again."""
        del self._references[ended]
        errors = self._ray.exceptions
        try:
            answer = ended.result()
            if answer.files:
                collect(answer.files, run_folder(self.output, config))
        except errors.RayTaskError as error:
            return self._failed(config, f"the node could not start it: {error.cause}", 1)
        except errors.RayError as error:
            # The record may have been written before the node died; then the run is not repeated.
            if (run := read_state(self.output, config)).state == "done":
                return run
            self._lost[config.run_id] += 1
            if self._lost[config.run_id] > self.cluster.retries:
                losses = f"lost {self._lost[config.run_id]} times with the node that ran it"
                return self._failed(config, f"{losses} ({type(error).__name__}); see Ray's logs", 1)
            self.reporter.say(f"{config.run_id}: its node died ({type(error).__name__}); it is started again")
            return None
        except RecurraError as error:
            return self._failed(config, str(error), error.exit_code)
        outcome = outcome_of(self.output, config, answer.ended)
        self.reporter.say(f"{config.run_id}: {outcome.state} on {answer.node}")
        return outcome

    def stop(self) -> None:
        """Cancels the runs on the cluster."""
        for reference in self._references.values():
            self._ray.cancel(reference, force=True)

    def _failed(self, config: RunConfig, reason: str, code: int) -> PlannedRun:
        folder = run_folder(self.output, config)
        note_failure(folder / ERROR_NAME, reason, kind="RunError", code=code)
        return PlannedRun(config, folder, "failed", reason, exit_code=code)


def _absolute(machine: Machine) -> Machine:
    """Makes paths absolute, because a worker has another working folder."""
    data_root = machine.data_root and machine.data_root.resolve()
    return replace(machine, data_root=data_root, cache_dir=machine.cache_dir and machine.cache_dir.resolve())
