"""`plugwright cordon`: a device taken out by an operator stays out, whatever happens to the daemon."""

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.cli.processes import Ended, Node
from tests.observed_kubelet import ObservedEndpoint, ObservedKubelet

from plugwright import Settings, serving
from plugwright.plugins.mock import Mock, MockOptions


@pytest.fixture
def node(kubelet: ObservedKubelet) -> Node:
    node = Node(kubelet.paths.root)
    node.configure(gpu={"count": 2})
    return node


@asynccontextmanager
async def two_devices(kubelet: ObservedKubelet, settings: Settings, node: Node) -> AsyncIterator[ObservedEndpoint]:
    """A daemon in this process."""
    placed = replace(settings, state_dir=node.state, control_socket=node.control)
    async with serving(Mock("mock/gpu", MockOptions(count=2)), settings=placed):
        yield await kubelet.endpoint("mock/gpu", 2)


async def reasons(node: Node) -> list[str]:
    """The reason of every device."""
    report = json.loads((await node.ask("status", "-o", "json")).out)
    return [device["reason"] for device in report["resources"][0]["devices"]]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_a_cordon_outlives_the_daemon_until_it_is_taken_back(
    kubelet: ObservedKubelet, node: Node, end: signal.Signals
) -> None:
    async with node.daemon() as daemon:
        before = await kubelet.endpoint("mock/gpu", 2)
        first, _ = before.devices
        done = await node.ask("cordon", "mock/gpu", first, "--reason", "fan replaced on Monday")
        assert done == Ended(0, f"{first} of mock/gpu is cordoned: fan replaced on Monday\n", "")
        await kubelet.health("mock/gpu", first, "Unhealthy")
        daemon.signal(end)
        await daemon.ends()
    async with node.daemon():
        await kubelet.until(lambda kubelet: kubelet.endpoints["mock/gpu"] is not before)
        after = await kubelet.endpoint("mock/gpu", 2)
        assert [device.health for device in after.lists[0]] == ["Unhealthy", "Healthy"]
        assert await reasons(node) == ["cordoned: fan replaced on Monday", ""]
        done = await node.ask("uncordon", "mock/gpu", first)
        assert done == Ended(0, f"{first} of mock/gpu is no longer cordoned\n", "")
        await kubelet.health("mock/gpu", first, "Healthy")


async def test_cordon_of_an_unknown_device_is_refused(kubelet: ObservedKubelet, settings: Settings, node: Node) -> None:
    async with two_devices(kubelet, settings, node) as gpu:
        first, _ = gpu.devices
        unknown = await node.ask("cordon", "mock/gpu", "mock-9", "--reason", "x")
        assert (unknown.code, unknown.out, unknown.err.count("\n")) == (1, "", 1)
        assert unknown.err.startswith("plugwright: mock/gpu has no device 'mock-9'")
        elsewhere = await node.ask("cordon", "mock/nic", first, "--reason", "x")
        said = "plugwright: no resource 'mock/nic' is served here (served: mock/gpu)\n"
        assert elsewhere == Ended(1, "", said)
        never = await node.ask("uncordon", "mock/gpu", first)
        assert never == Ended(1, "", f"plugwright: '{first}' of mock/gpu is not cordoned\n")
        assert not node.state.exists()


async def test_an_unknown_id_is_answered_with_the_known_ones(
    kubelet: ObservedKubelet, settings: Settings, node: Node
) -> None:
    async with two_devices(kubelet, settings, node) as gpu:
        done = await node.ask("cordon", "mock/gpu", "mock-9", "--reason", "x")
        assert all(device_id in done.err for device_id in gpu.devices)


async def test_a_cordon_that_cannot_be_kept_is_not_made(
    kubelet: ObservedKubelet, settings: Settings, node: Node
) -> None:
    async with two_devices(kubelet, settings, node) as gpu:
        node.state.touch()  # where a directory must be made
        first, _ = gpu.devices
        done = await node.ask("cordon", "mock/gpu", first, "--reason", "x")
        path = node.state / "cordons.json"
        said = f"plugwright: cannot write the cordons to {path}: File exists; nothing was changed\n"
        assert done == Ended(1, "", said)
        assert await reasons(node) == ["", ""]
        assert len(gpu.lists) == 1


async def test_a_reason_that_is_no_text_is_kept_in_a_form_that_can_be_shown(
    kubelet: ObservedKubelet, settings: Settings, node: Node
) -> None:
    async with two_devices(kubelet, settings, node) as gpu:
        first, _ = gpu.devices
        done = await node.ask("cordon", "mock/gpu", first, "--reason", os.fsdecode(b"fan \xff\x1b[2J"))
        assert (done.code, done.err) == (0, "")
        assert done.out.endswith("is cordoned: fan \\udcff\\x1b[2J\n")
    placed = replace(settings, state_dir=node.state)
    async with serving(Mock("mock/gpu", MockOptions(count=2)), settings=placed) as daemon:
        await kubelet.health("mock/gpu", first, "Unhealthy")
        assert [cordon["reason"] for cordon in daemon.cordons()] == ["fan \\udcff\\x1b[2J"]


async def test_a_cordon_of_a_resource_no_longer_served_is_listed_and_removed(
    kubelet: ObservedKubelet, settings: Settings, node: Node
) -> None:
    async with two_devices(kubelet, settings, node) as gpu:
        first, _ = gpu.devices
        await node.ask("cordon", "mock/gpu", first, "--reason", "fan")
    placed = replace(settings, state_dir=node.state, control_socket=node.control)
    async with serving(settings=placed):
        done = await node.ask("status")
        assert "cordoned, but the resource is not served:" in done.out
        assert first in done.out
        done = await node.ask("uncordon", "mock/gpu", first)
        assert (done.code, done.out) == (0, f"{first} of mock/gpu is no longer cordoned\n")
        assert (await node.ask("status")).out == "no resources are served\n"
        assert "no resource 'mock/gpu' is served here" in (await node.ask("uncordon", "mock/gpu", first)).err


async def test_cordons_that_cannot_be_read_now_end_nothing_and_are_not_lost(
    kubelet: ObservedKubelet, node: Node
) -> None:
    stored = node.state / "cordons.json"
    stored.mkdir(parents=True)  # reading it is an error of the operating system
    async with node.daemon() as daemon:
        await daemon.err.until("cordons not readable")
        first, second = (await kubelet.endpoint("mock/gpu", 2)).devices
        assert f"cannot read the cordons in {stored}: Is a directory" in (await node.ask("status")).out
        done = await node.ask("cordon", "mock/gpu", second, "--reason", "fan")
        assert "cannot read the cordons" in done.err
        assert "nothing was changed" in done.err
        stored.rmdir()
        stored.write_text(json.dumps({"mock/gpu": {first: "rack"}}))
        await node.ask("cordon", "mock/gpu", second, "--reason", "fan")
        await kubelet.health("mock/gpu", second, "Unhealthy")
        await kubelet.health("mock/gpu", first, "Unhealthy")
        assert "cannot read" not in (await node.ask("status")).out
    assert json.loads(stored.read_text()) == {"mock/gpu": {first: "rack", second: "fan"}}


async def test_cordons_that_cannot_be_read_are_put_aside(kubelet: ObservedKubelet, node: Node) -> None:
    node.state.mkdir()
    node.state.joinpath("cordons.json").write_text('{"mock/gpu": ["half a fi')
    async with node.daemon() as daemon:
        await daemon.err.until("cordons not readable, file renamed")
        await kubelet.endpoint("mock/gpu", 2)
    assert node.state.joinpath("cordons.json.unreadable-1").read_text() == '{"mock/gpu": ["half a fi'


async def test_a_reason_must_be_given(node: Node) -> None:
    done = await node.ask("cordon", "mock/gpu", "mock-0")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == "Error: Missing option '--reason'."
