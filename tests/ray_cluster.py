"""A Ray cluster on this machine: ``python ray_cluster.py``. Prints its address; each line it reads is the number of a
process, and the node that this process belongs to is killed.

The head has no cores, so that every run is on one of three nodes that can be killed. A process of its own keeps Ray's
threads and warnings out of the tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from ray.cluster_utils import Cluster

STORE_BYTES = 80 * 2**20


def ancestors(pid: int) -> Iterator[int]:
    """The process and all that it descends from."""
    while pid > 1:
        yield pid
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        pid = int(stat.rpartition(")")[2].split()[1])


def main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's workers step back behind everything else on the machine; beside other tests they would hardly get a turn.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's own spelling
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES},
    )
    try:
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES) for _ in range(3)]
        cluster.wait_for_nodes()
        sys.stdout.write(f"{cluster.address}\n")
        sys.stdout.flush()
        for line in sys.stdin:
            family = list(ancestors(int(line)))
            (node,) = (node for node in nodes if node.all_processes["raylet"][0].process.pid in family)
            # Its workers end with a machine; left alone they notice a moment later, and may be done, or tell, by then.
            workers = family[: family.index(node.all_processes["raylet"][0].process.pid)][::-1]
            for worker in workers:
                os.kill(worker, signal.SIGSTOP)
            nodes.remove(node)
            cluster.remove_node(node, allow_graceful=False)
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
            sys.stdout.write("killed\n")
            sys.stdout.flush()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
