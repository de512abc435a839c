"""An existing Ray cluster: which one, what a run needs of it, whether it answers. Only this module imports Ray."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from recurra.core.errors import ConfigurationError, UnavailableError

AUTO = "auto"
CONNECT_S = 5.0
# Ray itself waits two minutes for a cluster that is not there.
HEALTH_S = 20.0


@dataclass(frozen=True)
class Wording:
    """How the command that uses the cluster calls things, for messages.

    Attributes:
        unit: What one piece of work is called.
        needs: Options that say what it needs.
        switch: Option that asked for a cluster.
        extra: Extra that installs Ray for it.
    """

    unit: str = "a run"
    needs: str = "--run-cpus or --run-gpus"
    switch: str = "--executor ray"
    extra: str = "study"


@dataclass(frozen=True)
class Cluster:
    """Where to run, and what one run needs.

    Attributes:
        address: ``HOST:PORT`` of the cluster's head, or ``auto`` for the one that this machine belongs to.
        cpus: Cores of a run; also its threads, unless they are set.
        gpus: Accelerators of a run.
        retries: How often a run is started again after its node died.
        wording: How the command calls these.
    """

    address: str = AUTO
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3
    wording: Wording = Wording()

    def check(self) -> None:
        """Finds out, in bounded time, whether the cluster answers.

        Raises:
            ConfigurationError: If the address is none.
            UnavailableError: If Ray is not installed or the cluster does not answer.
        """
        _import_ray(self.wording.extra)
        if self.address != AUTO:
            host, port = self._host_and_port()
            try:
                socket.create_connection((host, port), timeout=CONNECT_S).close()
            except OSError as error:
                reason = error.strerror or str(error)
                raise UnavailableError(self._unreachable(reason)) from error
        address = [] if self.address == AUTO else ["--address", self.address]
        # In a process of its own: Ray's client can neither be given a time limit nor be stopped.
        try:
            done = subprocess.run(
                [sys.executable, "-m", "ray.scripts.scripts", "health-check", *address],
                capture_output=True,
                timeout=HEALTH_S,
                check=False,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(self._unreachable(f"no answer within {HEALTH_S:.0f} s")) from error
        if done.returncode:
            raise UnavailableError(self._unreachable("no Ray cluster answers there"))

    @contextlib.contextmanager
    def connected(self) -> Iterator[ModuleType]:
        """Gives Ray, connected to the cluster; the connection ends with the block, the cluster stays.

        Raises:
            UnavailableError: If the cluster does not take this machine.
            ConfigurationError: If no node has what a run needs.
        """
        with _output_kept_free():
            yield from self._connected(_import_ray(self.wording.extra))

    def _connected(self, ray: ModuleType) -> Iterator[ModuleType]:
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
        have = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise ConfigurationError(
            f"{self.wording.unit} needs {self.cpus:g} CPUs and {self.gpus:g} GPUs, and no node of the cluster has both "
            f"({have}); lower {self.wording.needs}, or add a node"
        )

    def _host_and_port(self) -> tuple[str, int]:
        host, separator, port = self.address.rpartition(":")
        if not separator or not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigurationError(
                f"'{self.address}' is no address of a Ray cluster; give HOST:PORT (6379 is usual), "
                "or auto on a machine of the cluster"
            )
        return host.strip("[]"), int(port)

    def _unreachable(self, reason: str) -> str:
        what = "of this machine" if self.address == AUTO else f"'{self.address}'"
        return (
            f"cannot reach the Ray cluster {what}: {reason}; start one with 'ray start --head', join it from this "
            f"machine with 'ray start --address HOST:PORT', or leave out {self.wording.switch}"
        )


@contextlib.contextmanager
def _output_kept_free() -> Iterator[None]:
    """Sends what is printed to standard error: Ray and its C++ part print, and our result is one document."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _import_ray(extra: str) -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UnavailableError(f"Ray is not installed; pip install 'recurra[{extra}]'") from error
    return ray
