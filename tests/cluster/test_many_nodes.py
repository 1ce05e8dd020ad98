"""Many nodes in one process: what they share, and what changes cost that were missed."""

import threading
from pathlib import Path

from tests.cluster.embedding import embedded

from plugwright.apiserver.kinds import CONFIG_MAPS
from plugwright.apiserver.store import ObjectKey

MANY = 9_000  # more changes than the store's history has


def descriptors(kind: str = "") -> int:
    return sum(kind in path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


async def test_nodes_share_threads_and_one_inotify_and_have_few_descriptors_each() -> None:
    before, threads = descriptors(), threading.active_count()
    async with embedded(nodes=5) as lab:
        for name in lab.cluster.nodes:
            await lab.offered(node=name)
        assert threading.active_count() - threads <= 2  # one for stalls of plugins, one for files
        assert descriptors("inotify") == 1
        assert descriptors() - before <= 5 * 8  # five of each, a connection that is about to end, and the cluster's


async def test_a_burst_that_overruns_the_history_loses_no_pod() -> None:
    async with embedded(nodes=2) as lab:
        await lab.offered(node="node-1")
        lab.create("before", {"mock/gpu": "1"})
        for number in range(MANY):
            key = ObjectKey(CONFIG_MAPS.qualified, "default", f"c{number}")
            lab.store.create(key, {"metadata": {"name": key.name, "namespace": "default"}})
        lab.create("after", {"mock/gpu": "1"})
        await lab.phase("before")
        await lab.phase("after")
