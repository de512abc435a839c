"""A Ray cluster on this machine: ``python ray_cluster.py``. Prints its address; kills a node for each line it reads.

The head has no cores, so that every run is on one of two nodes that can be killed. A process of its own keeps Ray's
threads and warnings out of the tests.
"""

from __future__ import annotations

import os
import sys

from ray.cluster_utils import Cluster

STORE_BYTES = 80 * 2**20


def main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's workers step back behind everything else on the machine; beside other tests they would hardly get a turn.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's own spelling
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES},
    )
    try:
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES) for _ in range(2)]
        cluster.wait_for_nodes()
        sys.stdout.write(f"{cluster.address}\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            sys.stdout.write("killed\n")
            sys.stdout.flush()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
