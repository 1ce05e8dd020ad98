"""`plugwright cordon`: a device taken out by an operator stays out, whatever happens to the daemon."""

import json
import os
import pwd
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
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
        assert not (node.state / "cordons.json").exists()


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
        node.state.rename(node.state.with_name("away"))
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
        assert [cordon["reason"] for cordon in daemon.cordons.listed()] == ["fan \\udcff\\x1b[2J"]


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
        gpu = await kubelet.endpoint("mock/gpu", 2)
        first, second = gpu.devices
        why = f"cannot read the cordons in {stored}: Is a directory"
        assert await reasons(node) == [why, why]
        for command in (("cordon", "mock/gpu", second, "--reason", "fan"), ("uncordon", "mock/gpu", first)):
            done = await node.ask(*command)
            assert (done.code, done.err) == (1, f"plugwright: {why}; nothing was changed\n")
        assert not any(device.healthy for devices in gpu.lists for device in devices)
        stored.rmdir()
        stored.write_text(json.dumps({"mock/gpu": {first: "rack"}}))
        await node.ask("cordon", "mock/gpu", second, "--reason", "fan")
        assert await reasons(node) == ["cordoned: rack", "cordoned: fan"]
        assert "cannot read" not in (await node.ask("status")).out
    assert json.loads(stored.read_text())["mock/gpu"] == {first: "rack", second: "fan"}


async def test_devices_are_healthy_again_when_the_cordons_can_be_read_without_an_operator(
    kubelet: ObservedKubelet, node: Node
) -> None:
    stored = node.state / "cordons.json"
    node.state.mkdir()
    stored.write_text('{"mock/gpu": ["half a fi')
    async with node.daemon():
        first, second = (await kubelet.endpoint("mock/gpu", 2)).devices
        await kubelet.health("mock/gpu", first, "Unhealthy")
        assert stored.read_text() == '{"mock/gpu": ["half a fi'
        mended = stored.with_name("mended")
        mended.write_text(json.dumps({"mock/gpu": {first: "rack"}}))
        mended.replace(stored)
        await kubelet.until(lambda _: kubelet.endpoints["mock/gpu"].devices[second].healthy, timeout=60)
        assert await reasons(node) == ["cordoned: rack", ""]


async def test_a_reason_must_be_given(node: Node) -> None:
    done = await node.ask("cordon", "mock/gpu", "mock-0")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == "Error: Missing option '--reason'."


async def test_a_cordon_says_who_and_until_when_and_is_listed(kubelet: ObservedKubelet, node: Node) -> None:
    async with node.daemon("--log-format", "json") as daemon:
        first, second = (await kubelet.endpoint("mock/gpu", 2)).devices
        done = await node.ask("cordon", "mock/gpu", first, "--reason", "fan", "--for", "2h", "--by", "alice")
        assert re.fullmatch(rf"{first} of mock/gpu is cordoned until 20\d\d-\d\d-\d\dT\S+Z: fan\n", done.out)
        logged = json.loads(await daemon.err.until("device cordoned"))
        user = f"alice, as {pwd.getpwuid(os.geteuid()).pw_name} (uid {os.geteuid()}, pid "
        assert logged["by"].startswith(user)
        assert logged["until"] in done.out
        await node.ask("cordon", "mock/gpu", second, "--reason", "rack", "--until", "2099-01-01T00:00Z")
    node.configure(nic={"count": 1})
    async with node.daemon():
        await kubelet.endpoint("mock/nic", 1)
        head, *rows = (await node.ask("cordon", "--list")).out.splitlines()
        assert head.split() == ["RESOURCE", "ID", "SINCE", "ENDS", "IN", "BY", "REASON"]
        assert ("alice, as" in rows[0], rows[0].endswith("fan (not served)"), len(rows)) == (True, True, 2)
        listed = json.loads((await node.ask("cordon", "--list", "-o", "json")).out)
        assert [(cordon["id"], cordon["until"]) for cordon in listed[1:]] == [(second, 4_070_908_800.0)]
        await node.ask("uncordon", "mock/gpu", first)
        await node.ask("uncordon", "mock/gpu", second)
        assert (await node.ask("cordon", "--list")).out == "no device is cordoned\n"


async def test_wrong_times_are_refused(kubelet: ObservedKubelet, settings: Settings, node: Node) -> None:
    async with two_devices(kubelet, settings, node) as gpu:
        first, _ = gpu.devices
        cordon = ("cordon", "mock/gpu", first, "--reason", "x")
        both = await node.ask(*cordon, "--for", "1h", "--until", "2099-01-01T00:00Z")
        assert (both.code, both.err.splitlines()[-1]) == (2, "Error: give --for or --until, not both")
        odd = await node.ask(*cordon, "--until", "tomorrow")
        assert (odd.code, "a time must look like 2026-12-01T08:00Z, got 'tomorrow'" in odd.err) == (2, True)
        past = await node.ask(*cordon, "--until", "2001-01-01T00:00Z")
        said = "plugwright: a cordon must end in the future, got 2001-01-01T00:00:00Z\n"
        assert past == Ended(1, "", said)
        assert await reasons(node) == ["", ""]


async def test_cordons_of_the_file_come_and_go_with_it(kubelet: ObservedKubelet, node: Node) -> None:
    rule = {"resource": "mock/*", "attributes": {"index": [1]}, "reason": "recalled"}
    node.config.write_text(json.dumps({**json.loads(node.config.read_text()), "cordons": [rule]}))
    async with node.daemon():
        gpu = await kubelet.endpoint("mock/gpu", 2)
        _, second = gpu.devices
        assert [device.health for device in gpu.lists[0]] == ["Healthy", "Unhealthy"]
        assert await reasons(node) == ["", "cordoned: recalled"]
        assert "the configuration" in (await node.ask("cordon", "--list")).out
        refused = await node.ask("uncordon", "mock/gpu", second)
        assert "is cordoned by the configuration file (recalled): remove it there" in refused.err
        node.configure(gpu={"count": 2})
        await kubelet.health("mock/gpu", second, "Healthy")
        assert len(kubelet.registered) == 1
