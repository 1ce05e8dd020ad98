"""`plugwright status`: the daemon's resources and devices, once or after every change."""

import json
import logging
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace
from tests.cli.processes import Node, python, running
from tests.observed_kubelet import ObservedKubelet
from tests.protocol.held_devices import serve_held_devices

from plugwright import ConfigError, Device, Plugin, Settings, serving
from plugwright.cli.main import cli
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry
from plugwright.protocol.pod_resources import HeldDevice
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.logs import LogWriter


@pytest.fixture
def node(root: Path) -> Node:
    return Node(root)


@pytest.fixture
def controlled(settings: Settings, node: Node) -> Settings:
    return replace(settings, control_socket=node.control)


@asynccontextmanager
async def one_of_two_failed(kubelet: ObservedKubelet, settings: Settings) -> AsyncIterator[tuple[Daemon, str, str]]:
    """A daemon with two devices, the second of which is Unhealthy."""
    async with serving(Mock("mock/gpu", MockOptions(count=2, numa=2)), settings=settings) as daemon:
        first, second = (await kubelet.endpoint("mock/gpu", 2)).devices
        await daemon.resource("mock/gpu").command("fail", {"id": second, "reason": "fell off the bus"})
        await kubelet.health("mock/gpu", second, "Unhealthy")
        await daemon.resource("mock/gpu").registration.status.until(lambda standing: standing.state == "registered")
        yield daemon, first, second


class OnePod:
    """A kubelet whose only pod holds one GPU with two containers."""

    def __init__(self, device_id: str) -> None:
        self._device_id = device_id

    async def held_devices(self) -> list[HeldDevice]:
        return [HeldDevice("mock/gpu", self._device_id, "default", "g4", container) for container in ("a", "b")]


def record_holder(kubelet: ObservedKubelet, device_id: str) -> None:
    """Has the kubelet's checkpoint name a container that holds the device."""
    entry = PodDevicesEntry("1-2", "a", "mock/gpu", {1: (device_id,)}, b"")
    kubelet.paths.checkpoint.write_bytes(checkpoint.encode(Checkpoint((entry,), {"mock/gpu": ()})))


async def test_text_shows_each_device_with_health_and_reason(
    kubelet: ObservedKubelet, controlled: Settings, node: Node
) -> None:
    async with (
        one_of_two_failed(kubelet, controlled) as (_, first, second),
        serve_held_devices(OnePod(second), kubelet.paths.pod_resources_socket),
    ):
        record_holder(kubelet, second)
        done = await node.ask("status")
    assert (done.code, done.err) == (0, "")
    head, columns, *devices = [line.split() for line in done.out.splitlines()]
    assert head[:2] == ["mock/gpu", "registered"]
    assert head[3:] == ["1", "watching,", "1", "of", "2", "healthy"]
    assert columns == ["ID", "INDEX", "MODEL", "HEALTH", "NUMA", "POD", "SINCE", "REASON"]
    assert [device[:6] for device in devices] == [
        [first, "0", "Mock", "Healthy", "0", "-"],
        [second, "1", "Mock", "Unhealthy", "1", "default/g4"],
    ]
    assert devices[1][7:] == ["fell", "off", "the", "bus"]
    assert "\033" not in done.out


async def test_of_several_resources_some_are_shown(controlled: Settings, node: Node) -> None:
    plugins = [Mock(name, MockOptions(count=1)) for name in ("mock/gpu", "mock/nic", "mock/fpga")]
    async with serving(*plugins, settings=controlled):
        report = json.loads((await node.ask("status", "mock/nic", "mock/gpu", "-o", "json")).out)
        assert sorted(resource["name"] for resource in report["resources"]) == ["mock/gpu", "mock/nic"]
        shown = yaml.safe_load((await node.ask("status", "mock/nic", "-o", "yaml")).out)
        assert [resource["name"] for resource in shown["resources"]] == ["mock/nic"]
        assert "mock/gpu" not in (await node.ask("status", "mock/nic")).out
        wrong = await node.ask("status", "mock/nik")
        assert wrong.code == 1
        assert "(served: mock/fpga, mock/gpu, mock/nic); did you mean 'mock/nic'?" in wrong.err


async def test_json_is_a_node_report(kubelet: ObservedKubelet, controlled: Settings, node: Node) -> None:
    async with one_of_two_failed(kubelet, controlled) as (_, first, second):
        done = await node.ask("status", "--output", "json")
        endpoint = kubelet.endpoints["mock/gpu"].request.endpoint
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    assert (report["apiVersion"], report["kind"]) == ("plugwright.dev/v1alpha1", "NodeReport")
    assert (report["daemon"]["ready"], report["daemon"]["waitingFor"], report["daemon"]["config"]) == (True, [], None)
    assert report["kubelet"]["directory"] == str(kubelet.paths.device_plugins)
    [gpu] = report["resources"]
    devices = {device["id"]: device for device in gpu.pop("devices")}
    assert datetime.fromisoformat(devices[first].pop("since")) <= datetime.fromisoformat(devices[second].pop("since"))
    assert datetime.fromisoformat(gpu.pop("since")) <= datetime.now(UTC)
    assert gpu == {
        "name": "mock/gpu", "state": "registered", "reason": "", "endpoint": endpoint, "owner": "", "rival": "",
        "waiting": "",
        "streams": 1, "registrations": 1, "discovery": "", "empty": "", "refused": "",
        "fault": "", "restarts": 0, "stuck": {}, "failures": {}, "serve": "device-plugin", "driver": None,
        "expected": "", "shortfall": "", "shortfallCode": "", "simulates": ["fail", "recover", "add", "remove"],
    }  # fmt: skip
    assert devices[first]["health"] == "Healthy"
    assert devices[second] == {
        "id": second, "health": "Unhealthy", "reason": "fell off the bus", "code": "mock", "numa": [1],
        "api": "device-plugin", "physical": [], "links": {}, "share": None, "holders": [], "closed": "",
        "cordoned": "", "taints": [], "move": None,
        "attributes": {"index": 1, "model": "Mock", "resource.kubernetes.io/numaNode": 1},
        "capacity": {"memory": 2**34},
    }  # fmt: skip


async def test_without_the_kubelets_answer_there_is_no_column_of_pods_but_the_reason(
    kubelet: ObservedKubelet, controlled: Settings, node: Node
) -> None:
    async with one_of_two_failed(kubelet, controlled) as (_, _, second):
        record_holder(kubelet, second)
        kubelet.paths.pod_resources_socket.unlink()
        done = await node.ask("status")
    first, _, _, columns, *_ = done.out.splitlines()
    assert first.startswith("pods that hold devices are not known: ")
    assert "POD" not in columns


class Indexed(Plugin):
    resource = "example.com/indexed"

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [
            Device(device_id, attributes={"index": index}) for device_id, index in (("a", 10), ("b", 9), ("c", "9:1"))
        ]


async def test_devices_with_an_index_are_sorted_by_it(controlled: Settings, node: Node) -> None:
    async with serving(Indexed(), settings=controlled) as daemon:
        await daemon.resource(Indexed.resource).inventory.latest.until(lambda snapshot: snapshot is not None)
        done = await node.ask("status")
    rows = [line.split() for line in done.out.splitlines()[-4:]]
    assert [row[:2] for row in rows] == [["ID", "INDEX"], ["b", "9"], ["c", "9:1"], ["a", "10"]]


async def test_daemon_without_a_kubelet_shows_the_reason(controlled: Settings, node: Node) -> None:
    async with serving(Mock("mock/gpu", MockOptions(count=0)), settings=controlled):
        done = await node.ask("status")
    head, reason = done.out.splitlines()
    assert head.startswith("mock/gpu  waiting ")
    assert head.endswith("s, not watched, 0 of 0 healthy")
    assert reason == f"  reason: no kubelet.sock in {node.root}/device-plugins"


async def test_daemon_without_resources_prints_so(controlled: Settings, node: Node) -> None:
    async with serving(settings=controlled):
        done = await node.ask("status")
    assert (done.code, done.out) == (0, "no resources are served\n")


async def test_watch_continues_until_the_daemon_ends(kubelet: ObservedKubelet, node: Node) -> None:
    node.configure(gpu={"count": 1})
    async with running(node.command()) as daemon:
        await daemon.err.until("registered")
        [device] = (await kubelet.endpoint("mock/gpu")).devices
        async with node.watch("--output", "json") as watch:
            first = json.loads(await watch.out.until(device))
            assert first["resources"][0]["devices"][0]["health"] == "Healthy"
            await node.ask("mock", "fail", device, "--reason", "fell off the bus")
            last = json.loads(await watch.out.until("fell off the bus"))
            assert last["resources"][0]["devices"][0]["health"] == "Unhealthy"
            daemon.signal(signal.SIGTERM)
            assert await watch.ends() == 1
        assert watch.err.all == [f"plugwright: the daemon on {node.control} closed the connection"]


async def test_watch_ends_by_ctrl_c_without_a_message(controlled: Settings, node: Node) -> None:
    async with serving(Mock("mock/gpu"), settings=controlled), node.watch() as watch:
        await watch.out.until("mock/gpu  waiting")
        watch.signal(signal.SIGINT)
        assert await watch.ends() == 130
    assert "".join(watch.err.all) == ""


async def test_missing_daemon_is_one_line(node: Node) -> None:
    done = await node.ask("status")
    said = f"plugwright: no daemon here: {node.control} does not exist; is `plugwright run` running? For the daemon "
    assert (done.code, done.out) == (1, "")
    assert done.err == f"{said}of a cluster's node, give --node NODE\n"


@pytest.mark.parametrize("socket", ["a-file/control.sock", "x" * 120])
def test_socket_that_cannot_be_opened_is_named(root: Path, socket: str) -> None:
    root.joinpath("a-file").touch()
    result = CliRunner().invoke(cli, ["status", "--control-socket", str(root / socket)])
    assert (result.exit_code, result.output) == (1, "")
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(f"cannot open {root / socket}: ")


BLOCKED = """
import sys
import time
from pathlib import Path
from plugwright import Device, Limits, Plugin, Settings, run

class Blocked(Plugin):
    resource = "example.com/blocked"

    async def discover(self):
        yield [Device("one")]
        while not Path(sys.argv[2]).exists():
            time.sleep(0.01)

root = Path(sys.argv[1])
limits = Limits(heartbeat=0.4)
run(Blocked(), settings=Settings(kubelet_dir=root, control_socket=root / "run" / "control.sock", limits=limits))
"""


async def test_a_blocked_daemon_is_shown_with_the_line_that_blocks_it(
    kubelet: ObservedKubelet, node: Node, tmp_path: Path
) -> None:
    released = tmp_path / "released"
    async with running(python("-c", BLOCKED, node.root, released)) as daemon:
        await daemon.err.until("plugin code blocks the event loop")
        done = await node.ask("status")
        assert done.code == 0
        assert re.match(r"event loop blocked for [\d.]+ s at <string>:13 in discover\n", done.out)
        assert "example.com/blocked" in done.out
        done = await node.ask("cordon", "example.com/blocked", "one", "--reason", "x")
        assert done.code == 1
        assert "event loop blocked for" in done.err
        released.touch()
        await kubelet.endpoint("example.com/blocked")
        done = await node.ask("status")
        assert (done.code, done.out.partition(" ")[0]) == (0, "example.com/blocked")


class Hostile(Plugin):
    resource = "example.com/hostile"

    def __init__(self) -> None:
        self.has_listed = False

    async def discover(self) -> AsyncIterator[list[Device]]:
        if not self.has_listed:  # each further list would end the failure for a moment
            self.has_listed = True
            yield [Device("one").unhealthy("\x1b]0;owned\x07 \x9b31m \u202etxt.exe")]
        raise OSError("\x1b[2J\u2066")


async def test_nothing_in_a_status_commands_the_terminal(controlled: Settings, node: Node) -> None:
    async with serving(Hostile(), settings=controlled) as daemon:
        await daemon.resource("example.com/hostile").discovery.failing.until(bool)
        done = await node.ask("status")
    assert done.code == 0
    assert "owned" in done.out
    assert "discovery: " in done.out
    assert all(line.isprintable() for line in done.out.splitlines())


async def test_dropped_log_lines_are_shown(controlled: Settings, node: Node) -> None:
    handler = LogWriter(2, limit=0)
    logging.getLogger().addHandler(handler)
    try:
        logging.getLogger().error("for nobody")
        async with serving(settings=controlled):
            done = await node.ask("status")
    finally:
        logging.getLogger().removeHandler(handler)
    assert re.match(r"\d+ log lines dropped: they are not read fast enough\n", done.out)
