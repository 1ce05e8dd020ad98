"""/healthz, /readyz and /metrics tell the truth, also while plugin code blocks the event loop."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.processes import Node, Running, ended, python, running
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.misbehaving_kubelet import MisbehavingKubelet

from plugwright import ConfigError, Settings, serving
from plugwright.errors import PeerRefused

STUCK = """
import sys
import time
from pathlib import Path
from plugwright import Allocation, Device, Limits, Plugin, Settings, run

class Stuck(Plugin):
    resource = "example.com/stuck"

    async def discover(self):
        yield [Device("one")]

    async def allocate(self, devices):
        while not Path(sys.argv[2]).exists():
            time.sleep(0.01)
        return Allocation()

run(Stuck(), settings=Settings(kubelet_dir=sys.argv[1], listen="127.0.0.1:0", limits=Limits(loop_step=0.3)))
"""
AGAIN = """
import asyncio
import sys
from plugwright import Settings, serving

async def main(root, port):
    for _ in range(5):
        async with serving(settings=Settings(kubelet_dir=root, listen=f"127.0.0.1:{port}")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.0\\r\\n\\r\\n")
            print((await reader.read()).decode().splitlines()[-1])
            writer.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""
NO_ADDRESSES = ["9400", ":9400", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", "localhost:http"]

Answer = tuple[int, str]
Samples = dict[tuple[str, ...], float]


async def get(daemon: Running, path: str) -> Answer:
    """The status and the text of a page."""
    address = (await daemon.err.until("answering probes")).rpartition("address=")[2]
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body


async def until(daemon: Running, path: str, accept: Callable[[Answer], bool]) -> Answer:
    """The first answer that is accepted: a page tells nobody that it has changed."""
    async with asyncio.timeout(60):
        while not accept(answer := await get(daemon, path)):
            await asyncio.sleep(0.02)
    return answer


async def metrics(daemon: Running) -> Samples:
    """Every sample, by its name and the values of its labels."""
    status, text = await get(daemon, "/metrics")
    assert status == 200
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def node(root: Path) -> Node:
    node = Node(root)
    node.configure(gpu={"count": 3})
    return node


async def test_ready_means_that_the_kubelet_has_a_stream_open(root: Path, node: Node) -> None:
    kubelet = MisbehavingKubelet(root)
    kubelet.watch_lists = False
    async with node.daemon("--listen", "127.0.0.1:0") as daemon:
        waiting = f"mock/gpu: waiting no kubelet.sock in {root}/device-plugins\n"
        await until(daemon, "/readyz", lambda answer: answer == (503, waiting))
        assert await get(daemon, "/healthz") == (200, "ok\n")
        assert await get(daemon, "/") == (404, "pages: /healthz, /readyz, /metrics\n")
        await kubelet.start()
        unwatched = "mock/gpu: no stream open\n"
        await until(daemon, "/readyz", lambda answer: answer == (503, unwatched))
        kubelet.watch_lists = True
        await kubelet.restart()
        await until(daemon, "/readyz", lambda answer: answer == (200, "ok\n"))
        await kubelet.stop()


async def test_metrics_count_what_happened(kubelet: ObservedKubelet, node: Node) -> None:
    async with node.daemon("--listen", "127.0.0.1:0") as daemon:
        gpu = await kubelet.endpoint("mock/gpu", 3)
        await until(daemon, "/readyz", lambda answer: answer == (200, "ok\n"))
        first, *_ = gpu.devices
        await node.ask("mock", "fail", first)
        await kubelet.health("mock/gpu", first, "Unhealthy")
        await gpu.client.allocate(list(gpu.devices)[1:])
        with pytest.raises(PeerRefused):
            await gpu.client.allocate([first])
        found = await metrics(daemon)
        assert found["plugwright_devices", "Healthy", "mock/gpu"] == 2
        assert found["plugwright_devices", "Unhealthy", "mock/gpu"] == 1
        assert found["plugwright_calls_total", "Allocate", "ok", "mock/gpu"] == 1
        assert found["plugwright_calls_total", "Allocate", "refused", "mock/gpu"] == 1
        assert found["plugwright_calls_total", "GetDevicePluginOptions", "ok", "mock/gpu"] == 1
        assert found["plugwright_call_duration_seconds_count", "Allocate", "mock/gpu"] == 2
        assert found["plugwright_call_duration_seconds_bucket", "+Inf", "Allocate", "mock/gpu"] == 2
        assert found["plugwright_call_duration_seconds_sum", "Allocate", "mock/gpu"] > 0
        assert found["plugwright_registrations_total", "ok", "mock/gpu"] == 1
        assert found["plugwright_registrations_total", "failed", "mock/gpu"] == 0
        assert found["plugwright_streams", "mock/gpu"] == 1
        assert found["plugwright_seconds_without_stream", "mock/gpu"] == 0
        assert found["plugwright_discovery_failures_total", "mock/gpu"] == 0
        assert found["plugwright_lists_refused_total", "mock/gpu"] == 0
        assert ("plugwright_stalls_total",) in found


async def test_metrics_show_that_the_kubelet_is_gone_or_refuses(misbehaving: MisbehavingKubelet, node: Node) -> None:
    async with node.daemon("--listen", "127.0.0.1:0") as daemon:
        await misbehaving.endpoint("mock/gpu", 3)
        misbehaving.refuse = "not today"
        await misbehaving.restart()
        await misbehaving.until(lambda _: len(misbehaving.requests) > 1)
        await until(daemon, "/readyz", lambda answer: answer == (503, "mock/gpu: refused not today (UNKNOWN)\n"))
        found = await metrics(daemon)
        assert found["plugwright_registrations_total", "failed", "mock/gpu"] >= 1
        assert found["plugwright_streams", "mock/gpu"] == 0
        assert found["plugwright_seconds_without_stream", "mock/gpu"] > 0


async def test_health_names_the_code_that_blocks_the_event_loop(kubelet: ObservedKubelet, tmp_path: Path) -> None:
    released = tmp_path / "released"
    async with running(python("-c", STUCK, kubelet.paths.root, released)) as daemon:
        assert await get(daemon, "/healthz") == (200, "ok\n")
        stuck = await kubelet.endpoint("example.com/stuck")
        call = asyncio.create_task(stuck.client.allocate(["one"]))
        blocked = (503, "allocate() of example.com/stuck blocks the event loop\n")
        await until(daemon, "/healthz", lambda answer: answer == blocked)
        released.touch()
        await call
        await until(daemon, "/healthz", lambda answer: answer == (200, "ok\n"))
        assert (await metrics(daemon))["plugwright_stalls_total",] >= 1


@pytest.mark.parametrize("address", NO_ADDRESSES)
async def test_an_invalid_address_is_refused(settings: Settings, address: str) -> None:
    with pytest.raises(ConfigError, match=f"address to listen on must be HOST:PORT .*, got {address!r}"):
        async with serving(settings=replace(settings, listen=address)):
            pytest.fail("served")


async def test_an_address_in_use_is_refused(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:{}".format(*taken.getsockname()[1:])
        with pytest.raises(ConfigError, match=f"cannot listen on {address}: Address already in use"):
            async with serving(settings=replace(settings, listen=address)):
                pytest.fail("served")


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_an_address_may_be_of_ipv6(node: Node) -> None:
    async with node.daemon("--listen", "[::1]:0") as daemon:
        assert await get(daemon, "/healthz") == (200, "ok\n")


async def test_the_port_is_closed_when_serving_ends(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = await ended(python("-c", AGAIN, root, port))
    assert (done.code, done.out) == (0, "ok\n" * 5), done.err
