"""`python -m bench.slices`: a thousand devices as ResourceSlices, published and repaired, and what the client costs.

The embedded API server is a process of its own, reached over TLS, and the publisher another: its memory is what a
driver pays for a client of the API server. The result is only reported, never a failure.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path

from bench import table
from bench.table import Bar, Row

__all__ = ["main"]

COUNT = 1_000
_NODE, _TOKEN, _DRIVER = "node-1", "bench", "gpu.example.com"
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_ROWS = [
    Row(f"{COUNT:,} devices published", "publish_ms", "ms", Bar(1000), 0),
    Row(f"{COUNT:,} devices published: requests", "publish_requests", "", digits=0),
    Row("one of them changed", "change_ms", "ms", Bar(1000), 0),
    Row("one of them changed: requests", "change_requests", "", digits=0),
    Row("all slices deleted → back", "wipe_ms", "ms", Bar(1000), 0),
    Row("RSS: Python and the event loop", "bare_mib", "MiB"),
    Row("RSS: with TLS, client and publisher", "client_mib", "MiB"),
    Row(f"RSS: with {COUNT:,} devices published", "published_mib", "MiB", Bar(45)),
    Row("threads", "threads", "", digits=0),
]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.slices", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one repeat")
    parser.add_argument("--repeat", type=int, metavar="N", help="repeats (default 5, quick 1)")
    parser.add_argument("--publish", nargs=2, metavar=("PORT", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.publish:
        print(json.dumps(asyncio.run(_publish(*options.publish))))
        return 0
    samples: dict[str, list[float]] = {}
    for _ in range(options.repeat or (1 if options.quick else 5)):
        with _api_server() as (port, directory):
            command = [sys.executable, "-m", "bench.slices", "--publish", str(port), directory]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
        for key, value in json.loads(done.stdout).items():
            samples.setdefault(key, []).append(value)
    print(table.render(_ROWS, samples, None))
    return 0


@contextmanager
def _api_server() -> Iterator[tuple[int, str]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        command = [sys.executable, "-m", "bench.cluster", "--serve", "1", directory]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline() or 0), directory
        finally:
            process.terminate()
            process.wait()


async def _publish(port: str, directory: str) -> dict[str, float]:
    measured: dict[str, float] = {"bare_mib": _status("VmRSS") / 1024}
    from plugwright.dra.resource_slices.publisher import SlicePublisher
    from plugwright.dra.resource_slices.slices import PoolContent
    from plugwright.kube.access import ClusterAccess, HttpConnection
    from plugwright.kube.api_client import ApiClient
    from plugwright.kube.credentials import Credentials

    class Counted(ClusterAccess):
        requests = 0

        def send(
            self, connection: HttpConnection, method: str, path: str, body: object = None, kind: str = ""
        ) -> HTTPResponse:
            self.requests += "watch=true" not in path
            return super().send(connection, method, path, body, kind)

    access = Counted(f"https://127.0.0.1:{port}", Credentials(_TOKEN, Path(directory, "ca.crt")))
    api = ApiClient(access)
    publisher = SlicePublisher(api, _DRIVER, _NODE)
    publishing = asyncio.create_task(publisher.run())
    await api.get(f"/api/v1/nodes/{_NODE}")
    measured["client_mib"] = _status("VmRSS") / 1024
    devices = tuple(
        {
            "name": f"gpu-{number}",
            "attributes": {
                "model": {"string": "Mock-A100"},
                "index": {"int": number},
                "id": {"string": f"gpu-{number}"},
            },
            "capacity": {"memory": {"value": "40Gi"}},
        }
        for number in range(COUNT)
    )
    for name, content in (
        ("publish", PoolContent(devices)),
        ("change", PoolContent((*devices[:-1], {"name": "changed"}))),
    ):
        before, begun = access.requests, time.perf_counter()
        publisher.content.publish(content)
        await publisher.published.until(lambda published, content=content: published == content)  # type: ignore[misc]
        measured[f"{name}_ms"] = (time.perf_counter() - begun) * 1000
        measured[f"{name}_requests"] = access.requests - before
    measured |= {"published_mib": _status("VmRSS") / 1024, "threads": _status("Threads")}
    slices, _ = await api.list(_SLICES)
    begun = time.perf_counter()
    await api.delete(_SLICES)
    while len((await api.list(_SLICES))[0]) < len(slices):
        await asyncio.sleep(0.01)
    measured["wipe_ms"] = (time.perf_counter() - begun) * 1000
    publishing.cancel()
    api.close()
    return measured


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


if __name__ == "__main__":
    sys.exit(main())
