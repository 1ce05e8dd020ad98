"""Events and Node conditions, from a real daemon's socket to an API server."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.apiserver.serving import TOKEN
from tests.cli.processes import python
from tests.cli.processes import running as process_running
from tests.node_events.reporting import GPU, TYPE, ReportedNode, reported_node

from plugwright import Device, Plugin
from plugwright.apiserver.kubeconfig_file import Kubeconfig
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import Document
from plugwright.node_events.program import clear_conditions
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.system.concurrency import in_thread
from plugwright.system.latest import Latest

NODE_STATUS = "/api/v1/nodes/node/status"


class Listed(Plugin):
    """Devices that the test lists."""

    resource = GPU

    def __init__(self, *ids: str) -> None:
        self.ids = Latest(ids)

    async def discover(self) -> AsyncIterator[Sequence[Device]]:
        async for ids in self.ids.changes():
            yield [Device(device_id) for device_id in ids]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[ReportedNode]:
    async with reported_node(Mock(GPU, MockOptions(count=3)), tmp_path) as node:
        yield node


def is_healthy(condition: Document) -> bool:
    return bool(condition) and condition["status"] == "False" and condition["reason"] == "DevicesHealthy"


def has_failed(condition: Document) -> bool:
    return bool(condition) and condition["status"] == "True" and condition["reason"] == "DevicesFailed"


async def test_a_failure_and_a_recovery_show_on_the_node_and_on_the_holding_pod(node: ReportedNode) -> None:
    pod, device = await node.admitted("train")
    await node.report()
    healthy = await node.condition(is_healthy)
    await node.command("fail", id=device, reason="fell off the bus", code="lost")
    failed = await node.condition(has_failed)
    assert failed["message"] == f"1 of 3 devices have failed: {device}: fell off the bus (lost)"
    on_node, on_pod = await node.event("DeviceFailed", "Node"), await node.event("DeviceFailed", "Pod")
    assert on_node["message"] == f"1 device of {GPU} failed: {device}: fell off the bus (lost)"
    assert on_pod["message"] == f"Of this pod's devices: {on_node['message']}"
    assert (on_node["type"], on_pod["type"], on_node["source"]["host"]) == ("Warning", "Warning", "node")
    assert on_node["involvedObject"]["uid"] == (await node.client.get("/api/v1/nodes/node"))["metadata"]["uid"]
    involved = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "train", "uid": pod.spec.uid}
    assert on_pod["involvedObject"] == involved

    await node.command("recover", id=device)
    recovered = await node.condition(is_healthy)
    assert recovered["message"] == healthy["message"]
    for kind in ("Node", "Pod"):
        assert (await node.event("DeviceRecovered", kind))["type"] == "Normal"
    await node.command("fail", id=device, reason="fell off the bus", code="lost")
    assert (await node.event("DeviceFailed", "Node", count=2))["count"] == 2


async def test_a_cordon_is_an_event_and_no_problem(node: ReportedNode) -> None:
    _, device = await node.admitted("train")
    await node.report()
    await node.ask({"do": "cordon", "resource": GPU, "id": device, "reason": "fan replaced"})
    cordoned = await node.condition(lambda each: each.get("reason") == "DevicesCordoned")
    assert (cordoned["status"], cordoned["message"]) == (
        "False", f"1 of 3 devices are cordoned: {device}: fan replaced",
    )  # fmt: skip
    for kind in ("Node", "Pod"):
        event = await node.event("DeviceCordoned", kind)
        assert event["type"] == "Normal"
        assert f"{device}: fan replaced" in event["message"]
    await node.ask({"do": "uncordon", "resource": GPU, "id": device})
    await node.condition(is_healthy)
    await node.event("DeviceUncordoned", "Pod")
    assert await node.events("DeviceFailed") == await node.events("DeviceRecovered") == []


async def test_a_device_that_vanishes_under_its_pod_is_reported_until_it_is_back(tmp_path: Path) -> None:
    plugin = Listed("a", "b")
    async with reported_node(plugin, tmp_path) as node:
        _, device = await node.admitted("train")
        await node.report()
        await node.condition(is_healthy)
        plugin.ids.publish(())
        missing = await node.condition(lambda each: each.get("reason") == "DevicesMissing")
        assert (missing["status"], missing["message"]) == ("True", "2 of 2 devices are gone: a, b")
        assert device in (await node.event("DeviceVanished", "Pod"))["message"]
        assert "2 devices of" in (await node.event("DeviceVanished", "Node"))["message"]
        plugin.ids.publish(("a", "b"))
        await node.condition(is_healthy)
        await node.event("DeviceRecovered", "Pod")


async def test_a_condition_goes_with_its_resource_and_others_stay(node: ReportedNode) -> None:
    await node.report()
    await node.condition(is_healthy)
    other = {"type": "plugwright.dev/example.com_nic", "status": "True", "reason": "DevicesFailed", "message": ""}
    times = {"lastHeartbeatTime": "2026-11-19T00:00:00Z", "lastTransitionTime": "2026-11-19T00:00:00Z"}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}, "status": {"conditions": [other | times]}}
    await node.client.patch(NODE_STATUS, body, "apply-patch", fieldManager="plugwright-node-events other/nics")
    await node.kubelet.daemon.apply([])
    await node.condition(lambda each: not each)
    assert list(await node.conditions()) == [other["type"]]
    assert await node.events("DeviceVanished") == []


async def test_a_daemon_that_does_not_answer_makes_the_conditions_unknown(node: ReportedNode) -> None:
    """And neither its end nor its start is an event about a device."""
    [first, *_] = [device["id"] for device in (await node.ask({"do": "report"}))["resources"][0]["devices"]]
    await node.command("fail", id=first, reason="broken")
    await node.report()
    await node.condition(has_failed)
    await node.event("DeviceFailed", "Node")
    await node.stop_serving()
    unknown = await node.condition(lambda each: each["status"] == "Unknown")
    assert unknown["reason"] == "DaemonNotAnswering"
    await node.serve()
    await node.condition(has_failed)
    assert (await node.event("DeviceFailed", "Node"))["count"] == 1
    assert await node.events("DeviceRecovered") == await node.events("DeviceVanished") == []


async def test_what_was_announced_is_not_announced_again_after_a_restart(node: ReportedNode) -> None:
    """But what happened meanwhile is."""
    first, second, _ = (device["id"] for device in (await node.ask({"do": "report"}))["resources"][0]["devices"])
    await node.command("fail", id=first, reason="broken")
    await node.report()
    before = await node.condition(has_failed)
    await node.event("DeviceFailed", "Node")
    await node.report(heartbeat=0.02)
    beat = await node.condition(lambda each: each["lastHeartbeatTime"] > before["lastHeartbeatTime"])
    assert beat == before | {"lastHeartbeatTime": beat["lastHeartbeatTime"]}
    assert len(await node.events("DeviceFailed")) == 1

    await node.stop_reporting()
    await node.command("recover", id=first)
    await node.report()
    await node.event("DeviceRecovered", "Node")
    await node.stop_reporting()
    await node.command("fail", id=second, reason="hot")
    await node.report()
    await node.condition(has_failed)
    async with asyncio.timeout(30):
        while len(found := await node.events("DeviceFailed")) < 2:
            await asyncio.sleep(0.02)
    assert f"{second}: hot" in found[-1]["message"]


async def test_events_wait_for_an_api_server_that_is_away(node: ReportedNode) -> None:
    _, device = await node.admitted("train")
    await node.report()
    await node.condition(is_healthy)
    await node.served.stop()
    await node.command("fail", id=device, reason="broken")
    await asyncio.sleep(0.1)
    await node.served.start()
    await node.condition(has_failed)
    await node.event("DeviceFailed", "Pod")


async def test_an_event_that_is_refused_holds_nothing_up(node: ReportedNode, caplog: pytest.LogCaptureFixture) -> None:
    _, device = await node.admitted("train")
    await node.report()
    await node.condition(is_healthy)
    refusal = json.dumps({"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "being terminated"})
    is_event = "/api/v1/namespaces/default/events"
    node.served.trouble = lambda scope: (403, refusal.encode()) if scope["path"].startswith(is_event) else None
    await node.command("fail", id=device, reason="broken")
    await node.condition(has_failed)
    assert "being terminated" in caplog.text


async def test_the_program_ends_at_sigterm_and_its_conditions_can_be_cleared(
    node: ReportedNode, tmp_path: Path
) -> None:
    path, certificate = tmp_path / "kubeconfig", node.served.directory / "ca.crt"
    with Kubeconfig(node.served.url, certificate, TOKEN).written(path, kept=True):
        pass
    flags = ["--node-name=node", "--release=plugwright/gpus", f"--control-socket={node.socket}"]
    command = python("-m", "plugwright", "node-events", *flags, f"--kubeconfig={path}")
    async with process_running(command) as program:
        await node.condition(is_healthy)
        program.signal(signal.SIGTERM)
        assert await program.ends() == 0
        await program.err.until("stopped")
    assert is_healthy((await node.conditions())[TYPE])
    access = ClusterAccess.of_kubeconfig(path)
    assert access is not None
    assert await in_thread("clear", lambda: clear_conditions(access, "other/release", "")) == []
    assert await in_thread("clear", lambda: clear_conditions(access, "plugwright/gpus", "")) == ["node"]
    assert await node.conditions() == {}


def test_the_type_of_a_condition_is_a_qualified_name() -> None:
    assert re.fullmatch(r"[a-z.]+/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", TYPE)
