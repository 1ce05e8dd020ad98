"""The plugin of NVIDIA GPUs on a simulated machine: its lists while faults occur, and its allocations."""

import threading
from pathlib import Path

import pytest
from tests.observed_kubelet import ObservedKubelet
from tests.plugins.nvidia.harness import INTERVALS, Lists, ManualClock, listing, machine, resource, simulated

from plugwright import Device, PluginError, Settings, serving
from plugwright.model import PreferenceRequest
from plugwright.plugins.nvidia import simulated_machines
from plugwright.plugins.nvidia.config import (
    DeviceListStrategy,
    MigStrategy,
    NvidiaCdi,
    NvidiaConfig,
    NvidiaHealth,
    NvidiaPattern,
    NvidiaShare,
)
from plugwright.plugins.nvidia.driver import GpuEvent, GpuSnapshot
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.simulation import SimulatedDriver, SimulatedEvents
from plugwright.plugins.nvidia.time_slicing import TimeSlicing
from plugwright.plugins.nvidia.xids import XidAction
from plugwright.sdk.cdi.resolution import resolve

H100 = simulated_machines.load("hgx-h100").gpus
MIG = NvidiaConfig(mig=MigStrategy.SINGLE)


async def report_xid(plugin: Nvidia, lists: Lists, device_id: str, xid: int) -> None:
    """Once events are registered: earlier ones are lost."""
    gpu = lists.devices[device_id].attributes["gpu"]
    await lists.until(lambda _: gpu in plugin.monitor.views.value.watched)
    await plugin.command("xid", {"id": device_id, "xid": str(xid)})


async def test_a_device_has_the_attributes_of_its_gpu() -> None:
    async with listing(resource(machine("hgx-h200"))) as lists:
        devices = await lists.first()
    assert len(devices) == 8
    first = next(iter(devices.values()))
    assert (first.healthy, first.numa, first.attributes["model"]) == (True, (0,), "NVIDIA H200")
    assert (first.capacity["memory"].value, first.attributes["pci"]) == (143771 * 2**20, "0000:18:00.0")


async def test_a_machine_is_read_once_for_all_resources() -> None:
    monitor = machine("hgx-h100")
    low = NvidiaConfig(select=NvidiaPattern(index=list("0123")))
    high = NvidiaConfig(exclude=NvidiaPattern(index=list("0123")))
    async with listing(resource(monitor, low)) as some, listing(resource(monitor, high, "nvidia.com/others")) as others:
        assert not set(await some.first()) & set(await others.first())
        assert len(some.devices) == len(others.devices) == 4
        assert simulated(monitor).reads == 1


@pytest.mark.parametrize("kind", ["whole", "mig", "shares"])
async def test_all_devices_of_a_gpu_fail_and_recover_with_it(kind: str) -> None:
    monitor = machine("hgx-h100-mig" if kind == "mig" else "hgx-h100")
    shares = NvidiaConfig(share=NvidiaShare(replicas=3))
    plugin = resource(monitor, {"whole": NvidiaConfig(), "mig": MIG, "shares": shares}[kind])
    async with listing(plugin) as lists:
        devices = await lists.first()
        gpu = next(iter(devices.values())).attributes["gpu"]
        of_gpu = {device_id for device_id, device in devices.items() if device.attributes["gpu"] == gpu}
        assert len(of_gpu) == {"whole": 1, "mig": 7, "shares": 3}[kind]
        await report_xid(plugin, lists, min(of_gpu), 79)
        await lists.reason(min(of_gpu), "Xid 79")  # an Xid that arrives after the reset would ask for another one
        await plugin.command("lose", {"id": min(of_gpu)})
        await lists.reason(min(of_gpu), "GPU is lost")
        assert {device.id for device in lists.devices.values() if not device.healthy} == of_gpu
        await plugin.command("reset", {"id": min(of_gpu)})
        await lists.until(lambda devices: all(device.healthy for device in devices.values()))


async def test_a_double_bit_error_waits_for_a_reset_unless_an_operator_recovers_the_gpu() -> None:
    plugin = resource(machine("t4"))
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        await report_xid(plugin, lists, first, 48)
        device = await lists.reason(first, "waiting for a reset")
        assert device.reason == "Xid 48 (double bit ECC error), waiting for a reset"
        assert "cleared" in await plugin.command("recover", {"id": first})
        await lists.reason(first, "")


async def test_an_unknown_xid_is_over_after_the_quiet_time() -> None:
    clock = ManualClock()
    plugin = resource(machine("t4", clock), NvidiaConfig(health=NvidiaHealth(quiet=0.05)))
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        await report_xid(plugin, lists, first, 999)
        await lists.reason(first, "waiting for quiet")
        clock.now += 1
        await lists.reason(first, "")


async def test_health_rules_apply_to_their_own_resource() -> None:
    monitor = machine("t4")
    strict = NvidiaConfig(select=NvidiaPattern(index=0), health=NvidiaHealth(xids={"13": XidAction.FAIL}))
    strict_plugin = resource(monitor, strict)
    default_plugin = resource(monitor, NvidiaConfig(select=NvidiaPattern(index=1)), "nvidia.com/more")
    async with listing(strict_plugin) as one, listing(default_plugin) as other:
        [first], [second] = await one.first(), await other.first()
        await report_xid(default_plugin, other, second, 13)
        await report_xid(strict_plugin, one, first, 13)
        await one.reason(first, "waiting for an operator")
        assert other.devices[second].healthy


@pytest.mark.parametrize(
    ("command", "arguments", "reason"),
    [
        ("ecc", {"count": "2"}, "the driver recommends: reset"),
        ("remap", {"state": "failed"}, "could not be remapped"),
        ("lose", {}, "GPU is lost"),
    ],
)
async def test_health_values_make_a_gpu_unhealthy(command: str, arguments: dict[str, str], reason: str) -> None:
    plugin = resource(machine("t4"))
    async with listing(plugin) as lists:
        first, *others = await lists.first()
        await plugin.command(command, {"id": first, **arguments})
        await lists.reason(first, reason)
        assert all(lists.devices[other].healthy for other in others)
        await plugin.command("reset", {"id": first})
        await lists.reason(first, "")


async def test_a_gpu_whose_events_cannot_be_registered_is_unhealthy_until_they_can() -> None:
    monitor = machine("t4")
    simulated(monitor).inject("deafen", {"id": "2"})
    plugin = resource(monitor)
    async with listing(plugin) as lists:
        devices = await lists.first()
        third = list(devices)[2]
        await lists.reason(third, "its events cannot be registered")
        assert sum(device.healthy for device in lists.devices.values()) == 3
        await plugin.command("reset", {"id": "2"})
        await lists.reason(third, "")


async def test_unregistered_events_can_be_configured_not_to_count() -> None:
    monitor = machine("t4")
    simulated(monitor).inject("deafen", {"id": "2"})
    config = NvidiaConfig(health=NvidiaHealth(unwatched=False))
    async with listing(resource(monitor, config)) as lists:
        await lists.first()
        await lists.until(lambda _: bool(monitor.views.value.unwatched))
        assert all(device.healthy for device in lists.devices.values())


async def test_a_node_without_the_driver_is_idle_until_there_is_one(
    settings: Settings, kubelet: ObservedKubelet
) -> None:
    monitor = GpuMonitor(SimulatedDriver("t4"), PollIntervals(retry=0.02))
    simulated(monitor).inject("driver", {"state": "gone"})
    async with serving(resource(monitor), settings=settings) as daemon:
        runtime = daemon.resource("nvidia.com/gpu")
        assert "the driver is not loaded" in await runtime.discovery.idle.until(bool)
        assert runtime.is_idle
        simulated(monitor).inject("driver", {"state": "back"})
        gpu = await kubelet.endpoint("nvidia.com/gpu", 4)
        assert len(gpu.devices) == 4
        assert not runtime.is_idle


async def test_gpus_are_unhealthy_while_the_driver_is_reloaded() -> None:
    plugin = resource(machine("t4"))
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        await report_xid(plugin, lists, first, 79)
        await lists.reason(first, "Xid 79")
        await plugin.command("driver", {"state": "gone"})
        await lists.until(lambda devices: all("not loaded" in device.reason for device in devices.values()))
        # A thread that still waits with the old driver would lose the next Xid.
        await lists.until(lambda _: first not in plugin.monitor.views.value.watched)
        await plugin.command("driver", {"state": "back"})
        await lists.until(lambda devices: all(device.healthy for device in devices.values()))
        await report_xid(plugin, lists, first, 48)
        await lists.reason(first, "Xid 48")


async def test_xids_are_received_after_a_reload_that_the_old_driver_s_thread_has_not_noticed() -> None:
    class Unnoticed(SimulatedEvents):
        def wait(self, seconds: float) -> GpuEvent | None:
            ended.wait()
            return super().wait(seconds)

    class Reloaded(SimulatedDriver):
        def events(self, uuids: tuple[str, ...]) -> SimulatedEvents:
            events = super().events(uuids)
            if not sets:
                events.__class__ = Unnoticed
            sets.append(events)
            return events

    ended, sets = threading.Event(), list[SimulatedEvents]()
    plugin = resource(GpuMonitor(Reloaded("t4"), INTERVALS))
    try:
        async with listing(plugin) as lists:
            first, *_ = await lists.first()
            await lists.until(lambda _: first in plugin.monitor.views.value.watched)
            await plugin.command("driver", {"state": "gone"})
            await lists.until(lambda devices: all("not loaded" in device.reason for device in devices.values()))
            await plugin.command("driver", {"state": "back"})
            await lists.until(lambda devices: all(device.healthy for device in devices.values()))
            await report_xid(plugin, lists, first, 48)
            await lists.reason(first, "Xid 48")
    finally:
        ended.set()


async def test_removed_and_added_gpus_change_the_list() -> None:
    plugin = resource(machine("t4"))
    async with listing(plugin) as lists:
        first, *others = await lists.first()
        await plugin.command("remove", {"id": first})
        await lists.until(lambda devices: list(devices) == others)
        await plugin.command("add", {"id": first})
        await lists.until(lambda devices: set(devices) == {first, *others})
        await report_xid(plugin, lists, first, 79)
        await lists.reason(first, "Xid 79")


async def test_a_new_mig_layout_changes_the_list() -> None:
    plugin = resource(machine("h200"), MIG)
    async with listing(plugin) as lists:
        [whole] = await lists.first()
        await plugin.command("mig", {"id": whole, "profiles": "3g.71gb,3g.71gb"})
        await lists.until(lambda devices: len(devices) == 2)
        await plugin.command("mig", {"id": whole, "profiles": "off"})
        await lists.until(lambda devices: list(devices) == [whole])


async def test_a_device_that_two_resources_select_is_unhealthy_in_both() -> None:
    monitor = machine("t4")
    some = NvidiaConfig(select=NvidiaPattern(index=[0, 1]))
    async with listing(resource(monitor)) as everything, listing(resource(monitor, some, "nvidia.com/some")) as two:
        first, second, *rest = await everything.first()
        await two.first()
        reason = "selected by nvidia.com/gpu and nvidia.com/some: a device can be in one resource only"
        assert (await everything.reason(second, "selected by")).reason == reason
        assert (await two.reason(first, "selected by")).reason == reason
        assert all(everything.devices[device_id].healthy for device_id in rest)


async def test_a_gpu_and_its_mig_devices_in_two_resources_are_unhealthy_in_both() -> None:
    monitor = machine("hgx-h100-mig")
    async with listing(resource(monitor)) as whole, listing(resource(monitor, MIG, "nvidia.com/parts")) as parts:
        first, part = next(iter(await whole.first())), next(iter(await parts.first()))
        for lists, device in ((whole, first), (parts, part)):
            reason = (await lists.reason(device, "selected by")).reason
            assert reason == "selected by nvidia.com/gpu and nvidia.com/parts: a device can be in one resource only"


async def test_a_plugin_allocates_before_its_first_list_if_the_machine_was_read() -> None:
    monitor = machine("t4")
    async with listing(resource(monitor)) as lists:
        first, *_ = await lists.first()
        allocation = await resource(monitor).allocate([lists.devices[first]])
        assert allocation.nodes
        with pytest.raises(PluginError, match="no longer has GPU-9"):
            await resource(monitor).allocate([Device("GPU-9")])


async def test_shares_larger_than_every_gpu_are_refused() -> None:
    config = NvidiaConfig(share=NvidiaShare(memory=40 * 2**30))
    async with listing(resource(machine("t4"), config)) as lists:
        with pytest.raises(PluginError, match="no device is large enough"):
            await lists.first()


async def test_gpus_of_a_driver_that_hangs_are_unhealthy() -> None:
    goes_on = threading.Event()

    class Hanging(SimulatedDriver):
        def read(self) -> GpuSnapshot:
            if self.reads:
                goes_on.wait(60)
            return super().read()

    plugin = resource(GpuMonitor(Hanging("t4"), PollIntervals(retry=0.02, read_timeout=0.05)))
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        await report_xid(plugin, lists, first, 48)
        await lists.reason(first, "has not answered")
        goes_on.set()
        await lists.reason(first, "waiting for a reset")  # a driver that hangs is not a reset


async def test_an_error_of_the_sharing_backend_ends_discovery() -> None:
    class Broken(TimeSlicing):
        async def follow(self, changed: object, driver: object = None) -> None:
            raise PluginError("the limiter has gone")

    plugin = Nvidia("nvidia.com/gpu", NvidiaConfig(), machine("t4"), Broken("nvidia.com/gpu", None))
    async with listing(plugin) as lists:
        with pytest.raises(PluginError, match="the limiter has gone"):
            await lists.until(lambda _: False)


async def test_an_unknown_command_or_argument_is_refused() -> None:
    plugin = resource(machine("t4"))
    async with listing(plugin) as lists:
        await lists.first()
        for name, arguments in [
            ("dance", {"id": "0"}),
            ("xid", {"id": "9", "xid": "79"}),
            ("xid", {"id": "0", "xid": "many"}),
            ("recover", {"id": "9"}),
            ("driver", {"state": "drunk"}),
        ]:
            with pytest.raises(PluginError):
                await plugin.command(name, arguments)


@pytest.mark.parametrize("ours", [True, False])
async def test_cdi_specs_are_written_before_the_first_list_if_configured(tmp_path: Path, ours: bool) -> None:
    config = NvidiaConfig(strategy=DeviceListStrategy.CDI_CRI, cdi=NvidiaCdi(dir=str(tmp_path), write=ours))
    plugin = resource(machine("t4"), config)
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        [name] = (await plugin.allocate([lists.devices[first]])).cdi
        assert name == f"k8s.device-plugin.nvidia.com/gpu={first}"
        assert (name in resolve([tmp_path])) is ours
    assert bool(list(tmp_path.iterdir())) is ours  # they stay: the kubelet uses its stored answers again


async def test_cdi_specs_that_cannot_be_written_fail_discovery(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = NvidiaConfig(strategy=DeviceListStrategy.CDI_CRI, cdi=NvidiaCdi(dir=str(tmp_path / "file")))
    async with listing(resource(machine("t4"), config)) as lists:
        with pytest.raises(PluginError, match="CDI specs cannot be written"):
            await lists.first()


async def test_linked_gpus_are_preferred(kubelet: ObservedKubelet, settings: Settings) -> None:
    cube = simulated_machines.load("dgx-1").gpus
    async with serving(resource(machine("dgx-1")), settings=settings):
        gpu = await kubelet.endpoint("nvidia.com/gpu", 8)
        [chosen] = await gpu.client.prefer(PreferenceRequest(tuple(gpu.devices), (cube[0].uuid,), 2))
    assert chosen[0] == cube[0].uuid
    assert chosen[1] in {cube[3].uuid, cube[4].uuid}


async def test_the_kubelet_receives_shares_and_their_allocation(kubelet: ObservedKubelet, settings: Settings) -> None:
    config = NvidiaConfig(share=NvidiaShare(replicas=2, most=1))
    async with serving(resource(machine("hgx-h100"), config), settings=settings):
        gpu = await kubelet.endpoint("nvidia.com/gpu", 16)
        first = next(device_id for device_id in gpu.devices if device_id.startswith(H100[3].uuid))
        assert first == f"{H100[3].uuid}::0"
        [answer] = await gpu.client.allocate([first])
        assert [node.container_path for node in answer.nodes][-1] == "/dev/nvidia3"
        assert answer.env["PLUGWRIGHT_GPU_UUID"] == H100[3].uuid


async def test_a_container_has_the_uuids_of_its_gpus_in_a_variable_of_our_own(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(resource(machine("hgx-h100")), settings=settings):
        gpu = await kubelet.endpoint("nvidia.com/gpu", 8)
        [answer] = await gpu.client.allocate([H100[5].uuid, H100[2].uuid])
    assert answer.env == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "PLUGWRIGHT_GPU_UUID": f"{H100[2].uuid},{H100[5].uuid}",
    }
