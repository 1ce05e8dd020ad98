"""`python -m bench.cluster_server NODES DEVICES DIRECTORY`: the program of `plugwright up`, for benchmarks to measure.

The directory is made, and gets the cluster's state. The port of the API server is printed when it is ready. SIGUSR1
begins to measure pauses of the event loop; a second one writes the longest to the file `pauses`.
"""

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

from plugwright.cluster.up import program
from plugwright.cluster.up.state_directory import ClusterInfo, StateDirectory, UpOptions
from plugwright.config.node_plugins import NodePlugins

__all__ = ["RESOURCE", "main"]

RESOURCE = "mock/gpu"
_TICK = 0.005  # seconds


def main() -> None:
    nodes, devices, path = sys.argv[1:]
    directory = Path(path)
    config = directory.with_suffix(".yaml")
    config.write_text(f"resources:\n  - name: {RESOURCE}\n    mock: {{count: {devices}}}\n")

    def ready(info: ClusterInfo) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _Pauses(directory.with_suffix(".pauses")).switch)
        print(info.server.rpartition(":")[2], flush=True)

    # Not `kept`: what is measured is a cluster in memory.
    options, plugins = UpOptions(nodes=int(nodes)), NodePlugins(config)
    program.run(options, StateDirectory(directory, kept=False), plugins, program.UpCalls(ready))


class _Pauses:
    """Measures how long a turn of the event loop takes at most, in time that passes and in CPU time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._task: asyncio.Task[None] | None = None
        self._longest = [0.0, 0.0]

    def switch(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._measure())
        else:
            self._task.cancel()
            written = self._path.with_suffix(".new")
            written.write_text(json.dumps(self._longest))
            written.rename(self._path)

    async def _measure(self) -> None:
        while True:
            began, used = time.perf_counter(), time.process_time()
            await asyncio.sleep(_TICK)
            passed, cpu = time.perf_counter() - began - _TICK, time.process_time() - used
            self._longest = [max(self._longest[0], passed), max(self._longest[1], cpu)]


if __name__ == "__main__":
    main()
