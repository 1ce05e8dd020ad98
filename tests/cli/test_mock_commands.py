"""`plugwright mock`: failure, recovery and hot-plug, rehearsed and seen by the kubelet."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cli.processes import Ended, Node
from tests.observed_kubelet import ObservedEndpoint, ObservedKubelet

from plugwright import Settings, serving
from plugwright.plugins.mock import Mock, MockOptions


@pytest.fixture
def node(root: Path) -> Node:
    return Node(root)


@asynccontextmanager
async def gpus_and_nics(kubelet: ObservedKubelet, settings: Settings, node: Node) -> AsyncIterator[ObservedEndpoint]:
    """Two mock GPUs, whose endpoint it is, and two mock NICs; one that is removed stays listed until it is seen."""
    mocks = [Mock(resource, MockOptions(count=2)) for resource in ("mock/gpu", "mock/nic")]
    patient = replace(settings, control_socket=node.control, timeouts=replace(settings.timeouts, departed=60))
    async with serving(*mocks, settings=patient):
        await kubelet.endpoint("mock/nic", 2)
        yield await kubelet.endpoint("mock/gpu", 2)


async def test_a_device_fails_and_recovers(kubelet: ObservedKubelet, settings: Settings, node: Node) -> None:
    async with gpus_and_nics(kubelet, settings, node) as gpu:
        first, _ = gpu.devices
        failed = await node.ask("mock", "fail", first, "--reason", "fell off the bus")
        assert failed == Ended(0, f"{first} of mock/gpu is now Unhealthy: fell off the bus\n", "")
        await kubelet.health("mock/gpu", first, "Unhealthy")
        assert (await node.ask("mock", "recover", first)).out == f"{first} of mock/gpu is now Healthy\n"
        await kubelet.health("mock/gpu", first, "Healthy")


async def test_a_device_is_pulled_out_and_another_plugged_in(
    kubelet: ObservedKubelet, settings: Settings, node: Node
) -> None:
    async with gpus_and_nics(kubelet, settings, node) as gpu:
        first, second = gpu.devices
        assert (await node.ask("mock", "remove", first)).code == 0
        await kubelet.health("mock/gpu", first, "Unhealthy")
        added = await node.ask("mock", "add", "spare-1", "--resource", "mock/gpu")
        assert added == Ended(0, "spare-1 of mock/gpu was added\n", "")
        await kubelet.health("mock/gpu", "spare-1", "Healthy")
        assert gpu.devices[second].healthy


async def test_a_device_without_an_id_gets_one(kubelet: ObservedKubelet, settings: Settings, node: Node) -> None:
    async with gpus_and_nics(kubelet, settings, node):
        added = await node.ask("mock", "add", "--resource", "mock/nic")
        nic = await kubelet.endpoint("mock/nic", 3)
        new = list(nic.devices)[-1]
        assert new.startswith("mock-2-")
        assert added.out == f"{new} of mock/nic was added\n"


async def test_a_command_that_fails_prints_one_line(kubelet: ObservedKubelet, settings: Settings, node: Node) -> None:
    async with gpus_and_nics(kubelet, settings, node) as gpu:
        first, second = gpu.devices
        for arguments, said in {
            ("fail", "mock-9", "--resource", "mock/gpu"): (
                f"mock/gpu has no device 'mock-9' (it has: {first}, {second})"
            ),
            ("recover", first, "--resource", "mock/fpga"): (
                "no resource 'mock/fpga' is served here (served: mock/gpu, mock/nic)"
            ),
            ("add", "spare-1"): "several resources are possible, choose one with --resource: mock/gpu, mock/nic",
            ("add", second, "--resource", "mock/gpu"): f"mock/gpu has {second!r} already",
            ("add", "../spare", "--resource", "mock/gpu"): (
                "a mock device's id must have letters, digits, '-', '_' and '.' only, got '../spare'"
            ),
        }.items():
            assert await node.ask("mock", *arguments) == Ended(1, "", f"plugwright: {said}\n")
        unknown = await node.ask("mock", "fail", "mock-9")
        assert unknown.err.startswith("plugwright: no resource has a device 'mock-9' (devices: mock-0-")
        assert len(gpu.lists) == 1


async def test_a_reason_that_is_no_text_harms_no_other_device(
    kubelet: ObservedKubelet, settings: Settings, node: Node
) -> None:
    async with gpus_and_nics(kubelet, settings, node) as gpu:
        first, second = gpu.devices
        await node.ask("mock", "fail", first, "--reason", os.fsdecode(b"\xff"))
        await node.ask("mock", "fail", second)
        await kubelet.health("mock/gpu", second, "Unhealthy")
        report = json.loads((await node.ask("status", "-o", "json")).out)
        assert [resource["discovery"] for resource in report["resources"]] == ["", ""]
