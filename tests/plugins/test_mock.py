"""Mock devices have what real ones have, the same on every start, and can fail like real ones."""

import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as trying
from hypothesis import strategies as st
from tests.observed_kubelet import ObservedKubelet

from plugwright import Device, DeviceNode, Mount, PluginError, Settings, serving
from plugwright.errors import InvalidValue
from plugwright.model import PreferenceRequest
from plugwright.plugins.mock import Links, Mock, MockOptions

UNHURRIED = trying(deadline=None, suppress_health_check=[HealthCheck.too_slow])
KINDS = st.sampled_from(list(Links))


async def listed(mock: Mock) -> dict[str, Device]:
    """What the plugin finds now."""
    lists = cast("AsyncGenerator[list[Device], None]", mock.discover())
    devices = await anext(lists)
    await lists.aclose()
    return {device.id: device for device in devices}


async def ids(resource: str, options: MockOptions) -> list[str]:
    return list(await listed(Mock(resource, options)))


def links(device: Device) -> set[str]:
    found = device.attributes["links"]
    assert isinstance(found, Mapping)
    return set(found)


def is_symmetric(devices: Mapping[str, Device]) -> bool:
    """Each link is one of both its ends, and none leads to its own device or to none."""
    return all(
        other in devices and other != device_id and device_id in links(devices[other])
        for device_id, device in devices.items()
        for other in links(device)
    )


async def test_ids_are_the_same_on_every_start() -> None:
    assert await ids("mock/gpu", MockOptions(count=8)) == await ids("mock/gpu", MockOptions(count=8))
    assert await ids("mock/gpu", MockOptions(count=4)) == (await ids("mock/gpu", MockOptions(count=8)))[:4]


async def test_ids_depend_on_the_seed_and_the_resource() -> None:
    several = [
        await ids("mock/gpu", MockOptions(count=8)),
        await ids("mock/gpu", MockOptions(count=8, seed="another")),
        await ids("mock/nic", MockOptions(count=8)),
    ]
    assert len({device_id for some in several for device_id in some}) == 24


async def test_a_device_has_a_model_memory_and_an_index() -> None:
    options = MockOptions(count=2, model="Mock-A100", memory=40 * 2**30)
    devices = (await listed(Mock("mock/gpu", options))).values()
    assert [dict(device.attributes) for device in devices] == [
        {"index": index, "model": "Mock-A100", "links": {}, "resource.kubernetes.io/numaNode": 0} for index in range(2)
    ]
    assert [device.capacity["memory"].value for device in devices] == [40 * 2**30, 40 * 2**30]


async def test_a_device_on_no_numa_node_has_no_attribute_for_it() -> None:
    [device] = (await listed(Mock("mock/gpu", MockOptions(count=1, numa=0)))).values()
    assert set(device.attributes) == {"index", "model", "links"}


def test_a_model_that_no_claim_could_select_by_is_refused_before_it_is_served() -> None:
    with pytest.raises(InvalidValue, match="attribute model of 'mock' must have at most 64 bytes"):
        Mock("mock/gpu", MockOptions(model="x" * 65))


@UNHURRIED
@given(count=st.integers(0, 40), numa=st.integers(0, 8))
async def test_devices_are_spread_evenly_over_the_numa_nodes(count: int, numa: int) -> None:
    devices = await listed(Mock("mock/gpu", MockOptions(count=count, numa=numa)))
    if not numa:
        assert {device.numa for device in devices.values()} <= {()}
        return
    nodes = Counter(node for device in devices.values() for node in device.numa)
    assert sum(nodes.values()) == count
    assert set(nodes) <= set(range(numa))
    assert max(nodes.values(), default=0) - min((nodes[node] for node in range(numa)), default=0) <= 1


@UNHURRIED
@given(count=st.integers(0, 20), kind=KINDS)
async def test_links_are_those_of_their_kind(count: int, kind: Links) -> None:
    devices = await listed(Mock("mock/gpu", MockOptions(count=count, links=kind)))
    assert is_symmetric(devices)
    degrees = {
        Links.NONE: [0] * count,
        Links.PAIRS: [1] * (count - count % 2) + [0] * (count % 2),
        Links.RING: [min(2, count - 1)] * count,
        Links.FULL: [count - 1] * count,
    }
    assert [len(links(device)) for device in devices.values()] == degrees[kind]


@UNHURRIED
@given(count=st.integers(0, 8), kind=KINDS, removed=st.lists(st.integers(0, 9), max_size=4), added=st.integers(0, 3))
@example(count=4, kind=Links.RING, removed=[2], added=0)
async def test_links_stay_symmetric_when_devices_come_and_go(
    count: int, kind: Links, removed: list[int], added: int
) -> None:
    mock = Mock("mock/gpu", MockOptions(count=count, links=kind))
    for device_id in {name for index, name in enumerate(await listed(mock)) if index in removed}:
        await mock.command("remove", {"id": device_id})
    for _ in range(added):
        await mock.command("add", {})
    assert is_symmetric(await listed(mock))


@UNHURRIED
@given(data=st.data(), count=st.integers(1, 10), kind=KINDS, numa=st.integers(0, 3))
async def test_a_preference_is_as_many_as_asked_and_has_what_is_required(
    data: st.DataObject, count: int, kind: Links, numa: int
) -> None:
    mock = Mock("mock/gpu", MockOptions(count=count, links=kind, numa=numa))
    devices = list((await listed(mock)).values())
    available = data.draw(st.lists(st.sampled_from(devices), unique_by=lambda device: device.id, min_size=1))
    size = data.draw(st.integers(1, len(available)))
    required = available[: data.draw(st.integers(0, size))]
    chosen = [device.id for device in await mock.prefer(available, required, size)]
    assert len(chosen) == len(set(chosen)) == size
    assert {device.id for device in required} <= set(chosen) <= {device.id for device in available}


async def preferred(
    options: MockOptions, available: list[int], size: int, required: list[int] | None = None
) -> list[int]:
    """The indexes that the plugin would choose."""
    mock = Mock("mock/gpu", options)
    devices = list((await listed(mock)).values())
    chosen = await mock.prefer([devices[n] for n in available], [devices[n] for n in required or []], size)
    return sorted(devices.index(device) for device in chosen)


async def test_linked_devices_are_preferred() -> None:
    pairs = MockOptions(count=8, links=Links.PAIRS)
    assert await preferred(pairs, list(range(8)), 2) == [0, 1]
    assert await preferred(pairs, list(range(8)), 4, required=[5]) == [0, 1, 4, 5]
    ring = MockOptions(count=8, links=Links.RING)
    assert await preferred(ring, list(range(8)), 3, required=[7]) in ([0, 1, 7], [0, 6, 7], [5, 6, 7])


async def test_a_device_whose_partner_is_taken_is_not_preferred() -> None:
    assert await preferred(MockOptions(count=8, links=Links.PAIRS), [1, 2, 3], 2) == [2, 3]


async def test_devices_of_one_numa_node_are_preferred() -> None:
    options = MockOptions(count=8, numa=2)
    devices = list((await listed(Mock("mock/gpu", options))).values())
    chosen = await preferred(options, [0, 7, 4, 1], 2, required=[4])
    assert {devices[index].numa for index in chosen} == {devices[4].numa}


async def test_a_container_gets_its_devices_in_variables(kubelet: ObservedKubelet, settings: Settings) -> None:
    options = MockOptions(count=4, model="Mock-A100", memory=40 * 2**30)
    async with serving(Mock("mock/gpu", options), settings=settings):
        gpu = await kubelet.endpoint("mock/gpu", 4)
        first, second, *_ = gpu.devices
        one, two = await gpu.client.allocate([first, second], [])
    env = {"MOCK_VISIBLE_DEVICES": f"{first},{second}", "MOCK_MODEL": "Mock-A100", "MOCK_MEMORY": str(40 * 2**30)}
    assert (one.env, one.mounts, one.nodes) == (env, (), ())
    assert two.env["MOCK_VISIBLE_DEVICES"] == ""


async def test_facts_are_mounted_from_files_that_stay(
    kubelet: ObservedKubelet, settings: Settings, tmp_path: Path
) -> None:
    options = MockOptions(count=2, model="Mock-A100", memory=7, numa=2, links=Links.FULL, facts=str(tmp_path / "facts"))
    async with serving(Mock("mock/gpu", options), settings=settings):
        gpu = await kubelet.endpoint("mock/gpu", 2)
        first, second = gpu.devices
        [answer] = await gpu.client.allocate([second])
    path = tmp_path / "facts" / "mock_gpu" / f"{second}.json"
    assert answer.mounts == (Mount(str(path), f"/run/mock/{second}.json", read_only=True),)
    assert path.stat().st_mode & 0o777 == 0o644
    wanted = {"id": second, "numa": [1], "index": 1, "model": "Mock-A100", "memory": 7, "links": {first: "NV1"}}
    assert json.loads(path.read_bytes()) == wanted
    assert {file.name for file in path.parent.iterdir()} == {f"{first}.json", f"{second}.json"}


async def test_facts_that_cannot_be_written_fail_discovery(settings: Settings, tmp_path: Path) -> None:
    tmp_path.joinpath("file").touch()
    mock = Mock("mock/gpu", MockOptions(count=1, facts=str(tmp_path / "file")))
    async with serving(mock, settings=settings) as daemon:
        reason = await daemon.resource("mock/gpu").discovery.failing.until(bool)
        assert "discover() of mock/gpu failed: " in reason


async def test_device_nodes_are_harmless(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(Mock("mock/gpu", MockOptions(count=3, nodes=True)), settings=settings):
        gpu = await kubelet.endpoint("mock/gpu", 3)
        _, *rest = gpu.devices
        [answer] = await gpu.client.allocate(rest)
    assert answer.nodes == (DeviceNode("/dev/null", "/dev/mock1"), DeviceNode("/dev/null", "/dev/mock2"))


async def test_the_kubelet_gets_the_preference(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(Mock("mock/gpu", MockOptions(count=8, links=Links.PAIRS)), settings=settings):
        gpu = await kubelet.endpoint("mock/gpu", 8)
        names = list(gpu.devices)
        [chosen] = await gpu.client.prefer(PreferenceRequest(tuple(names), (names[5],), 2))
    assert set(chosen) == {names[4], names[5]}


async def test_a_fault_has_a_reason() -> None:
    mock = Mock("mock/gpu", MockOptions(count=2))
    first, second = await listed(mock)
    await mock.command("fail", {"id": first, "reason": "fell off the bus"})
    await mock.command("fail", {"id": second})
    assert [device.reason for device in (await listed(mock)).values()] == ["fell off the bus", "made to fail"]
    await mock.command("recover", {"id": first})
    assert [device.healthy for device in (await listed(mock)).values()] == [True, False]


async def test_a_device_that_is_pulled_out_is_not_found_until_it_is_back() -> None:
    mock = Mock("mock/gpu", MockOptions(count=2))
    first, second = await listed(mock)
    await mock.command("remove", {"id": first})
    assert list(await listed(mock)) == [second]
    await mock.command("add", {"id": first})
    assert set(await listed(mock)) == {first, second}


async def test_a_device_that_is_plugged_in_works() -> None:
    mock = Mock("mock/gpu", MockOptions(count=1))
    [first] = await listed(mock)
    await mock.command("fail", {"id": first})
    await mock.command("remove", {"id": first})
    await mock.command("add", {"id": first})
    assert (await listed(mock))[first].healthy


@pytest.mark.parametrize(
    ("command", "device_id"),
    [("fail", "x"), ("recover", "x"), ("remove", ""), ("dance", "x"), ("add", "a b"), ("add", "x" * 64), ("add", "..")],
)
async def test_a_command_that_cannot_be_done_changes_nothing(command: str, device_id: str) -> None:
    mock = Mock("mock/gpu", MockOptions(count=2))
    before = await listed(mock)
    with pytest.raises(PluginError):
        await mock.command(command, {"id": device_id})
    assert await listed(mock) == before
