"""Claims in tests of plugins, without a cluster."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from plugwright import Allocation, Device, Plugin, ServeSettings
from plugwright.errors import PluginError, PodRefused
from plugwright.sdk.serve_settings import ServeMode, Split
from plugwright.testing import ContainerWaiting, KubeletSettings, claim_requesting, pod_requesting, running

TAPE, LIBRARY = "example.com/tape", "example.com/library"
IMPATIENT = KubeletSettings(timeout=3)


class Tape(Plugin):
    """The plugin of the README."""

    resource = TAPE

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("st0", numa=[0]), Device("st1", numa=[1])]

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(nodes=[f"/dev/{device.id}" for device in devices])


class Library(Plugin):
    """One device that claims share by its slots."""

    resource = LIBRARY

    def __init__(self) -> None:
        self.released: list[str] = []

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("Robot_1", capacity={"slots": 10}, allow_multiple=True)]

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        [device] = devices
        speed = str(device.parameters.get("speed", ""))
        return Allocation(env={"SLOTS": str(device.capacity["slots"].value), "SPEED": speed})

    async def check_parameters(self, parameters: object) -> None:
        if parameters != {"speed": "fast"}:
            raise PluginError("speed must be fast")

    async def release(self, devices: Sequence[Device]) -> None:
        self.released += [device.id for device in devices]


async def test_a_pod_gets_the_device_of_its_claim(tmp_path: Path) -> None:
    async with running(Tape(), tmp_path, serve="dra") as kubelet:
        pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        assert [node.host_path for node in kubelet.container(pod).nodes] == ["/dev/st0"]
        assert TAPE not in kubelet.node()


async def test_a_claim_may_name_its_devices(tmp_path: Path) -> None:
    async with running(Tape(), tmp_path, serve="dra") as kubelet:
        pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: ["st1"]})]))
        assert [node.host_path for node in kubelet.container(pod).nodes] == ["/dev/st1"]


async def test_two_claims_get_different_devices(tmp_path: Path) -> None:
    async with running(Tape(), tmp_path, serve="dra") as kubelet:
        pods = [await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})])) for _ in range(2)]
        paths = [node.host_path for pod in pods for node in kubelet.container(pod).nodes]
        assert paths == ["/dev/st0", "/dev/st1"]


async def test_devices_are_free_again_when_their_pod_is_gone(tmp_path: Path) -> None:
    async with running(Tape(), tmp_path, serve="dra") as kubelet:
        pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 2})]))
        await kubelet.remove(pod)
        again = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 2})]))
        assert len(kubelet.container(again).nodes) == 2


async def test_a_pod_whose_claim_cannot_be_allocated_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with running(Tape(), tmp_path, IMPATIENT, serve="dra") as kubelet:
        with pytest.raises(PodRefused, match=r"cannot allocate all claims: example.com/tape: 3 wanted, 2 free"):
            await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 3})]))


async def test_a_claim_for_a_resource_that_has_no_driver_is_refused(tmp_path: Path) -> None:
    async with running(Tape(), tmp_path) as kubelet:
        with pytest.raises(PodRefused, match=r"example.com/tape is not served by claims"):
            await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))


async def test_pods_share_a_claim_with_a_name(tmp_path: Path) -> None:
    async with running(Tape(), tmp_path, serve="dra") as kubelet:
        shared = claim_requesting({TAPE: 1}, name="shared")
        pods = [await kubelet.admit(pod_requesting({}, claims=[shared])) for _ in range(2)]
        assert kubelet.container(pods[0]).cdi == kubelet.container(pods[1]).cdi
        assert [call.method for call in kubelet.calls].count("NodePrepareResources") == 1


async def test_claims_share_a_device_by_its_capacity(tmp_path: Path) -> None:
    async with running(Library(), tmp_path, IMPATIENT, serve="dra") as kubelet:
        pods = [
            await kubelet.admit(pod_requesting({}, claims=[claim_requesting({LIBRARY: {"slots": slots}})]))
            for slots in (6, 4)
        ]
        assert [kubelet.container(pod).env["SLOTS"] for pod in pods] == ["6", "4"]
        with pytest.raises(PodRefused, match="1 wanted, 0 free"):
            await kubelet.admit(pod_requesting({}, claims=[claim_requesting({LIBRARY: {"slots": 1}})]))


async def test_parameters_reach_the_plugin(tmp_path: Path) -> None:
    async with running(Library(), tmp_path, serve="dra") as kubelet:
        claim = claim_requesting({LIBRARY: {"slots": 1}}, parameters={"speed": "fast"})
        pod = await kubelet.admit(pod_requesting({}, claims=[claim]))
        assert kubelet.container(pod).env["SPEED"] == "fast"


async def test_parameters_that_the_plugin_refuses_keep_the_pod_waiting(tmp_path: Path) -> None:
    async with running(Library(), tmp_path, serve="dra") as kubelet:
        claim = claim_requesting({LIBRARY: {"slots": 1}}, parameters={"speed": "slow"})
        pod = await kubelet.admit(pod_requesting({}, claims=[claim]))
        with pytest.raises(ContainerWaiting, match="speed must be fast"):
            kubelet.container(pod)


async def test_release_is_called_when_the_claim_ends(tmp_path: Path) -> None:
    library = Library()
    async with running(library, tmp_path, serve="dra") as kubelet:
        pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({LIBRARY: {"slots": 1}})]))
        await kubelet.remove(pod)
        assert library.released == ["Robot_1"]


async def test_a_monitor_gets_devices_that_others_hold(tmp_path: Path) -> None:
    async with running(Tape(), tmp_path, serve="dra") as kubelet:
        await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 2})]))
        monitor = claim_requesting({TAPE: 2}, admin_access=True)
        pod = await kubelet.admit(pod_requesting({}, claims=[monitor]))
        assert len(kubelet.container(pod).nodes) == 2


class Reset(Tape):
    """Counts what is done to its devices."""

    def __init__(self, admin_access_hooks: bool) -> None:
        self.admin_access_hooks = admin_access_hooks
        self.calls: list[tuple[str, bool]] = []

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        self.calls += [("allocate", device.admin_access) for device in devices]
        return await super().allocate(devices)

    async def pre_start(self, devices: Sequence[Device]) -> None:
        self.calls += [("pre_start", device.admin_access) for device in devices]

    async def release(self, devices: Sequence[Device]) -> None:
        self.calls += [("release", device.admin_access) for device in devices]


@pytest.mark.parametrize("hooks", [False, True])
async def test_a_monitor_disturbs_no_tenant_unless_the_plugin_wants_it(hooks: bool, tmp_path: Path) -> None:
    plugin = Reset(hooks)
    async with running(plugin, tmp_path, serve="dra") as kubelet:
        await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        assert plugin.calls == [("allocate", False), ("pre_start", False)]
        plugin.calls.clear()
        pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1}, admin_access=True)]))
        await kubelet.remove(pod)
    seen = [("allocate", True), ("pre_start", True), ("release", True)]
    assert plugin.calls == (seen if hooks else seen[:1])


async def test_both_apis_serve_one_plugin_and_no_device_twice(tmp_path: Path) -> None:
    serve = ServeSettings(api=ServeMode.BOTH, split=Split(dra=1))
    async with running(Tape(), tmp_path, serve=serve) as kubelet:
        by_claim = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        await kubelet.allocatable(TAPE, count=1)
        by_count = await kubelet.admit(pod_requesting({TAPE: 1}))
        nodes = [kubelet.container(pod).nodes[0].host_path for pod in (by_claim, by_count)]
        assert sorted(nodes) == ["/dev/st0", "/dev/st1"]


def test_a_claim_for_nothing_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="must request something"):
        claim_requesting({})
