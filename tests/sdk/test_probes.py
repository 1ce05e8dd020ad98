"""/healthz, /readyz and /metrics tell the truth, also while plugin code blocks the event loop."""

import asyncio
import json
import os
import re
import resource
import socket
import ssl
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.processes import Node, Running, ended, python, running
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.misbehaving_kubelet import MisbehavingKubelet

from plugwright import ConfigError, Device, Plugin, Settings, serving
from plugwright.errors import HardwareMissing, PeerRefused, PluginError
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.daemon_status import is_ready
from plugwright.sdk.probes import is_own_node, serve_probes

STUCK = """
import sys
import time
from pathlib import Path
from plugwright import Allocation, Device, Limits, Plugin, Settings, run

LIMITS = Limits(loop_step=0.3, heartbeat=0.3)

class Stuck(Plugin):
    resource = "example.com/stuck"

    async def discover(self):
        yield [Device("one")]

    async def allocate(self, devices):
        while not Path(sys.argv[2]).exists():
            time.sleep(0.01)
        return Allocation()

run(Stuck(), settings=Settings(kubelet_dir=sys.argv[1], listen="127.0.0.1:0", limits=LIMITS))
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


async def address_of(daemon: Running) -> str:
    return (await daemon.err.until("answering probes")).rpartition("address=")[2]


async def get(daemon: Running, path: str) -> Answer:
    """The status and the text of a page."""
    return await page(await address_of(daemon), path)


async def page(address: str, path: str, token: str = "", context: ssl.SSLContext | None = None) -> Answer:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(f"GET {path} HTTP/1.0\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    try:
        head, _, body = (await reader.read()).decode(errors="replace").partition("\r\n\r\n")
    except ConnectionError:
        head, body = "", ""
    finally:
        writer.transport.abort()
    return (int(head.split()[1]), body) if head.startswith("HTTP/") else (0, "")


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
        assert found["plugwright_calls_total", "Allocate", "failed", "mock/gpu"] == 0  # so that increase() sees one
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
        assert found["plugwright_log_lines_dropped_total",] == 0


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
        await until(daemon, "/healthz", lambda answer: answer[0] == 503)
        status, text = await get(daemon, "/healthz")
        assert status == 503
        assert re.fullmatch(r"event loop blocked for [\d.]+ s at <string>:17 in allocate\n", text)
        released.touch()
        await call
        await until(daemon, "/healthz", lambda answer: answer == (200, "ok\n"))
        assert (await metrics(daemon))["plugwright_stalls_total",] >= 1


OWN_TASK = """
import asyncio
import sys
import time
from pathlib import Path
from plugwright import Device, Limits, Plugin, Settings, run

async def background():
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)

class Blocking(Plugin):
    resource = "example.com/blocking"

    async def discover(self):
        yield [Device("one")]
        self.task = asyncio.create_task(background())
        await asyncio.Event().wait()

run(Blocking(), settings=Settings(kubelet_dir=sys.argv[1], listen="127.0.0.1:0", limits=Limits(heartbeat=0.3)))
"""


async def test_health_sees_a_task_that_plugin_code_started_by_itself(root: Path, tmp_path: Path) -> None:
    released = tmp_path / "released"
    async with running(python("-c", OWN_TASK, root, released)) as daemon:
        _, text = await until(daemon, "/healthz", lambda answer: answer[0] == 503)
        assert re.fullmatch(r"event loop blocked for [\d.]+ s at <string>:10 in background\n", text)
        await until(daemon, "/readyz", lambda answer: answer[0] == 503)  # other pages are answered too
        released.touch()
        await until(daemon, "/healthz", lambda answer: answer == (200, "ok\n"))


async def test_a_daemon_that_starts_or_stops_is_not_ready(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "plugwright")
    daemon = Daemon(replace(settings, listen="127.0.0.1:0"))
    with serve_probes(daemon):
        [address] = [vars(record)["address"] for record in caplog.records if "address" in vars(record)]
        assert await page(address, "/readyz") == (503, "starting or stopping\n")
        async with daemon.running([]):
            assert await page(address, "/readyz") == (200, "ok\n")
        assert await page(address, "/readyz") == (503, "starting or stopping\n")


class Missing(Plugin):
    resource = "example.com/missing"

    async def discover(self) -> AsyncIterator[list[Device]]:
        raise HardwareMissing("no driver")
        yield []  # type: ignore[unreachable]  # makes it a generator


class Empty(Plugin):
    resource, empty_reason = "example.com/empty", "nothing matches"

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield []


class Failing(Plugin):
    resource = "example.com/failing"

    async def discover(self) -> AsyncIterator[list[Device]]:
        raise PluginError("the driver does not answer")
        yield []  # type: ignore[unreachable]  # makes it a generator


async def test_readiness_names_the_reason_of_each_resource(
    kubelet: ObservedKubelet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "plugwright")
    daemon = Daemon(replace(settings, listen="127.0.0.1:0"))
    with serve_probes(daemon):
        [address] = [vars(record)["address"] for record in caplog.records if "address" in vars(record)]
        missing, empty = Missing(), Empty()
        async with daemon.running([missing, empty]):
            await daemon.resource(missing.resource).discovery.idle.until(bool)
            await kubelet.endpoint(empty.resource, 0)
            await daemon.changed.until(lambda: all(map(is_ready, daemon.resources.values())))
            detail = f"{empty.resource}: no devices: nothing matches\n{missing.resource}: idle: no driver\n"
            assert await page(address, "/readyz") == (200, f"ok\n{detail}")
            await daemon.apply([missing, Failing()])
            await daemon.resource(Failing.resource).discovery.failing.until(bool)
            status, text = await page(address, "/readyz")
            waiting = f"{Failing.resource}: starting the driver does not answer\n"
            assert (status, text) == (503, f"{waiting}{missing.resource}: idle: no driver\n")


def memory(daemon: Running, name: str = "VmRSS:") -> int:
    """In KiB."""
    [line] = [line for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1])


async def test_enormous_heads_neither_keep_a_probe_waiting_nor_grow_the_daemon(node: Node) -> None:
    """Sixteen times 98 fields of 64 KiB were 100 MiB."""

    async def flood(host: str, port: int) -> None:
        _, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(b"GET / HTTP/1.1\r\n")
            for number in range(98):
                writer.write(f"x-{number}: ".encode() + b"y" * 65536 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            pass  # as it should
        finally:
            writer.transport.abort()

    async with node.daemon("--listen", "127.0.0.1:0") as daemon:
        host, _, port = (await address_of(daemon)).rpartition(":")
        await metrics(daemon)  # whatever is loaded late is loaded
        before = memory(daemon, "VmHWM:")
        for _ in range(3):
            floods = asyncio.gather(*(flood(host, int(port)) for _ in range(16)))
            assert await get(daemon, "/healthz") == (200, "ok\n")
            await floods
        assert memory(daemon, "VmHWM:") - before < 8 * 1024


async def test_ten_thousand_connections_cost_neither_probes_nor_descriptors(node: Node) -> None:
    async with node.daemon("--listen", "127.0.0.1:0") as daemon:
        host, _, port = (await address_of(daemon)).rpartition(":")
        held: deque[socket.socket] = deque(maxlen=min(300, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100))
        try:
            for number in range(10_000):
                if number == 500:  # by then every connection that is kept has been there
                    await metrics(daemon)
                    before = memory(daemon)
                if len(held) == held.maxlen:
                    held.popleft().close()
                held.append(abandoned(host, int(port)))
                if number % 1000 == 999:
                    assert await get(daemon, "/healthz") == (200, "ok\n")
                    assert len(list(Path(f"/proc/{daemon.pid}/fd").iterdir())) < 150
        finally:
            for connection in held:
                connection.close()
        assert memory(daemon) - before < 4 * 1024


def abandoned(host: str, port: int) -> socket.socket:
    """A connection with half a request, which leaves no trace when it is closed."""
    connection = socket.create_connection((host, port), timeout=60, source_address=("127.0.0.3", 0))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with suppress(ConnectionError):
        connection.send(b"GET /healthz HT")
    return connection


async def test_descriptors_used_up_do_not_end_the_probes(node: Node) -> None:
    async with node.daemon("--listen", "127.0.0.1:0") as daemon:
        host, _, port = (await address_of(daemon)).rpartition(":")
        assert await get(daemon, "/healthz") == (200, "ok\n")
        limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        used = max(int(path.name) for path in Path(f"/proc/{daemon.pid}/fd").iterdir()) + 1
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (used, limits[1]))
        waiting = [abandoned(host, int(port)) for _ in range(5)]
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
        assert await get(daemon, "/healthz") == (200, "ok\n")
        for connection in waiting:
            connection.close()


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1", common_name=name)
    cert, key, trusted = folder / "tls.crt", folder / "tls.key", folder / f"{name}.pem"
    made.cert_chain_pems[0].write_to_path(cert)
    made.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(trusted)
    return cert, key


async def secure_page(address: str, path: str, trusted: Path, token: str = "") -> Answer:
    context = ssl.create_default_context(cafile=str(trusted))
    return await page(address, path, token, context)


async def test_the_node_report_and_the_history_are_served_if_asked(kubelet: ObservedKubelet, node: Node) -> None:
    async with node.daemon("--listen", "127.0.0.1:0", "--listen-report", "on") as daemon:
        gpu = await kubelet.endpoint("mock/gpu", 3)
        await until(daemon, "/readyz", lambda answer: answer == (200, "ok\n"))
        first, *_ = gpu.devices
        await node.ask("mock", "fail", first)
        _, text = await until(daemon, "/node-report", lambda answer: '"Unhealthy"' in answer[1])
        report = json.loads(text)
        assert report["kind"] == "NodeReport"
        assert [device["id"] for device in report["resources"][0]["devices"] if device["health"] == "Unhealthy"] == [
            first
        ]
        _, text = await until(daemon, "/history", lambda answer: first in answer[1])
        history = json.loads(text)
        assert [(event["device"], event["health"]) for event in history["events"]] == [(first, "Unhealthy")]
        assert await get(daemon, "/") == (404, "pages: /healthz, /readyz, /metrics, /node-report, /history\n")
    async with node.daemon("--listen", "127.0.0.1:0") as daemon:
        assert [(await get(daemon, path))[0] for path in ("/node-report", "/history")] == [404, 404]


@pytest.mark.parametrize(
    "values", [{"listen": ""}, {"listen": "127.0.0.1:0", "metrics_token_file": "token"}], ids=["no port", "token"]
)
def test_a_report_without_a_port_or_beside_a_token_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the NodeReport"):
        Settings(listen_report=True, **values)


async def test_metrics_may_be_behind_tls_and_a_token(node: Node, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "first")
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    flags = ("--tls-cert", cert, "--tls-key", key, "--metrics-token-file", token)
    async with node.daemon("--listen", "127.0.0.1:0", *flags) as daemon:
        address, first = await address_of(daemon), tmp_path / "first.pem"
        assert await secure_page(address, "/healthz", first) == (200, "ok\n")
        assert (await secure_page(address, "/metrics", first, "s3cret"))[0] == 200
        refused = (401, "metrics need the token\n")
        for wrong in ("", "s3cre", "s3cret2", "S3CRET"):
            assert await secure_page(address, "/metrics", first, wrong) == refused
        with pytest.raises(ssl.SSLError):
            await page(address, "/healthz", context=ssl.create_default_context())
        assert await page(address, "/healthz") == (0, "")  # without TLS

        token.write_text("")
        assert await secure_page(address, "/metrics", first, "") == refused
        token.unlink()
        assert await secure_page(address, "/metrics", first, "s3cret") == refused

        certificate(tmp_path, "second")
        assert await secure_page(address, "/healthz", tmp_path / "second.pem") == (200, "ok\n")
        cert.write_text("nonsense")
        assert await secure_page(address, "/healthz", tmp_path / "second.pem") == (200, "ok\n")
        await daemon.err.until("new certificate rejected, the previous one stays")


async def test_a_pipe_in_place_of_the_token_or_the_certificate_keeps_no_probe_waiting(
    node: Node, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "first")
    token = tmp_path / "token"
    os.mkfifo(token)
    flags = ("--tls-cert", cert, "--tls-key", key, "--metrics-token-file", token)
    async with node.daemon("--listen", "127.0.0.1:0", *flags) as daemon, asyncio.timeout(60):
        address, trusted = await address_of(daemon), tmp_path / "first.pem"
        assert await secure_page(address, "/metrics", trusted, "s3cret") == (401, "metrics need the token\n")
        assert await secure_page(address, "/healthz", trusted) == (200, "ok\n")
        cert.unlink()
        os.mkfifo(cert)
        assert await secure_page(address, "/healthz", trusted) == (200, "ok\n")
        await daemon.err.until(f"{cert} must be a regular file")


@pytest.mark.parametrize("given", ["tls_cert", "tls_key"])
async def test_a_pipe_in_place_of_the_certificate_or_its_key_is_refused(
    settings: Settings, tmp_path: Path, given: str
) -> None:
    cert, key = certificate(tmp_path, "first")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    files = {"tls_cert": cert, "tls_key": key, given: pipe}
    with pytest.raises(ConfigError, match=f"{pipe} must be a regular file"):
        async with serving(settings=replace(settings, listen="127.0.0.1:0", **files)):
            pytest.fail("served")


@pytest.mark.parametrize("given", ["tls_cert", "tls_key"])
async def test_half_of_tls_is_refused(settings: Settings, tmp_path: Path, given: str) -> None:
    half: dict[str, Path] = {given: tmp_path / "tls"}
    with pytest.raises(ConfigError, match="TLS needs both a certificate and its key"):
        async with serving(settings=replace(settings, listen="127.0.0.1:0", **half)):
            pytest.fail("served")


async def test_a_certificate_that_is_none_is_refused(settings: Settings, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "first")
    cert.write_text("nonsense")
    with pytest.raises(ConfigError, match=f"cannot use the certificate {cert} with the key {key}: "):
        async with serving(settings=replace(settings, listen="127.0.0.1:0", tls_cert=cert, tls_key=key)):
            pytest.fail("served")


ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t{gateway}\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t{other}\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
ROUTES_6 = (
    f"{0:032x} 00 {0:032x} 00 fd00000000000000000000000000000a 00000400 00000001 00000000 00000003     eth0\n"
    f"{0:032x} 00 {0:032x} 00 {0:032x} ffffffff 00000001 00000000 00200200       lo\n"
)


def test_probes_of_the_node_are_told_by_their_address(tmp_path: Path) -> None:
    net = tmp_path / "net"
    net.mkdir()
    in_memory = {name: int.from_bytes(socket.inet_aton(name), sys.byteorder) for name in ("10.244.1.1", "10.244.1.0")}
    routes = ROUTES.format(gateway=f"{in_memory['10.244.1.1']:08X}", other=f"{in_memory['10.244.1.0']:08X}")
    (net / "route").write_text(routes)
    (net / "ipv6_route").write_text(ROUTES_6)
    named = is_own_node("10.244.1.7", ["192.168.0.4", "node.example", ""], tmp_path)
    for own in ("127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1", "10.244.1.7", "192.168.0.4", "::ffff:192.168.0.4"):
        assert named(own), own
    for other in ("10.244.1.1", "10.244.1.8", "192.168.0.40", "::", "0.0.0.0", "fd00::a", "nonsense"):
        assert not named(other), other
    routed = is_own_node("0.0.0.0", ["gateway"], tmp_path)
    for own in ("10.244.1.1", "fd00::a", "fd00:0::a%eth0"):
        assert routed(own), own
    for other in ("10.244.1.0", "0.0.0.0", "::"):
        assert not routed(other), other
    assert not is_own_node("0.0.0.0", ["gateway"], tmp_path / "missing")("10.244.1.1")


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
