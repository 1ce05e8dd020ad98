"""A resource of ordinary devices, served: hot-plug, health, sharing, CDI."""

import asyncio
import fcntl
import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path

import pytest
from tests.observed_kubelet import ObservedKubelet
from tests.plugins.generic.machines import Machine

from plugwright import DeviceNode, PluginError, Settings, serving
from plugwright.errors import PeerRefused
from plugwright.model import Device, PreferenceRequest
from plugwright.plugins.generic.allocation import HandoutOptions
from plugwright.plugins.generic.hardware import Excluding, Selector, Unit
from plugwright.plugins.generic.health import HealthCheck
from plugwright.plugins.generic.net import NetFilter, NetSelector
from plugwright.plugins.generic.nvme import NvmeFilter, NvmeSelector
from plugwright.plugins.generic.paths import PathPattern, PathSelector
from plugwright.plugins.generic.pci import PciFunctionFilter, PciSelector
from plugwright.plugins.generic.plugin import Generic, HostAccess
from plugwright.plugins.generic.usb import UsbFilter, UsbSelector
from plugwright.sdk import cdi
from plugwright.sdk.cdi.resolution import resolve
from plugwright.sdk.device_nodes import memory_file_systems
from plugwright.sdk.hotplug import HotplugSource, HotplugTiming
from plugwright.sdk.sysfs import Host
from plugwright.testing import KubeletSettings, pod_requesting, running

NAME = "example.com/thing"
LOOP_ADD, LOOP_REMOVE = 0x4C80, 0x4C81
PATIENT = HotplugTiming(rescan=3600, rescan_often=3600, burst=0.001, gap=0)
FTDI = UsbSelector([UsbFilter(vendor=["0403"])])


class Kernel:
    """Sends uevents as the kernel would."""

    def __init__(self, stack: ExitStack) -> None:
        self._listener, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender = stack.enter_context(sender)

    def listen(self) -> socket.socket:
        return self._listener

    def send(self, action: str, subsystem: str) -> None:
        self._sender.send(f"{action}@/devices/x/usb1\0ACTION={action}\0SUBSYSTEM={subsystem}\0".encode())


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with ExitStack() as stack:
        yield Kernel(stack)


def generic(
    machine: Machine, selector: Selector, kernel: Kernel | None = None, name: str = NAME, **options: object
) -> Generic:
    def no_uevents() -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    access = HostAccess(
        host=machine.host,
        hotplug=HotplugSource(kernel.listen if kernel else no_uevents),
        timing=PATIENT,
        device_info=machine.root / "devinfo",
        cdi=machine.root / "cdi",
    )
    return Generic(name, selector, HandoutOptions(**options), access)  # type: ignore[arg-type]


def paths(*given: str) -> PathSelector:
    return PathSelector([PathPattern(path=path) for path in given])


class CountingSelector:
    """Another selector, with the number of scans."""

    def __init__(self, selector: Selector) -> None:
        self._selector, self.scans = selector, 0
        self.directories, self.concerns = selector.directories, selector.concerns

    def find(self, host: Host) -> Sequence[Unit]:
        self.scans += 1
        return self._selector.find(host)


async def first(plugin: Generic) -> dict[str, Device]:
    """What the plugin finds at first."""
    lists = plugin.discover()
    async for devices in lists:
        await lists.aclose()  # type: ignore[attr-defined]
        return {device.id: device for device in devices}
    raise AssertionError


async def test_a_device_that_is_replugged_comes_back_as_itself(
    machine: Machine, kernel: Kernel, kubelet: ObservedKubelet, settings: Settings
) -> None:
    usb = machine.usb("1-4", "0403:6001", "A50285BI")
    machine.usb_child(usb, "ttyUSB0", "tty")
    name = "usb-0403-6001-A50285BI"
    plugin = generic(machine, FTDI, kernel, env={"PORT": "{node}"})
    async with serving(plugin, settings=settings):
        thing = await kubelet.endpoint(NAME)
        [before] = await thing.client.allocate([name])
        machine.unplug(usb)
        kernel.send("remove", "usb")
        await kubelet.health(NAME, name, "Unhealthy")
        machine.usb_child(machine.usb("1-7", "0403:6001", "A50285BI", number=9), "ttyUSB4", "tty")
        kernel.send("add", "usb")
        await kubelet.health(NAME, name, "Healthy")
        [after] = await thing.client.allocate([name])
    assert (before.env["PORT"], after.env["PORT"]) == ("/dev/ttyUSB0", "/dev/ttyUSB4")


async def test_a_device_keeps_its_id_when_its_clone_comes(
    machine: Machine, kernel: Kernel, kubelet: ObservedKubelet, settings: Settings
) -> None:
    machine.usb("1-2", "0403:6001", "0123456789")
    async with serving(generic(machine, FTDI, kernel), settings=settings):
        await kubelet.endpoint(NAME)
        machine.usb("1-1", "0403:6001", "0123456789", number=5)
        kernel.send("add", "usb")
        thing = await kubelet.endpoint(NAME, 2)
        assert {name: device.healthy for name, device in thing.devices.items()} == {
            "usb-0403-6001-0123456789": True,
            "usb-0403-6001-0123456789-1-1": True,
        }
        [answer] = await thing.client.allocate(["usb-0403-6001-0123456789"])
    assert answer.nodes == (DeviceNode("/dev/bus/usb/001/004"),)


@pytest.mark.usefixtures("inotify")
async def test_without_uevents_a_new_node_is_seen_by_inotify(
    machine: Machine, kubelet: ObservedKubelet, settings: Settings
) -> None:
    (machine.root / "dev").mkdir()
    async with serving(generic(machine, paths("/dev/ttyUSB*")), settings=settings):
        await kubelet.until(lambda kubelet: NAME in kubelet.endpoints and kubelet.endpoints[NAME].lists)
        assert kubelet.endpoints[NAME].devices == {}
        machine.node("ttyUSB3")
        await kubelet.health(NAME, "ttyUSB3", "Healthy")
        machine.remove("/dev/ttyUSB3")
        await kubelet.health(NAME, "ttyUSB3", "Unhealthy")


async def test_a_device_may_be_shared_and_different_ones_come_first(
    machine: Machine, kubelet: ObservedKubelet, settings: Settings
) -> None:
    machine.node("video0")
    machine.node("video1")
    async with serving(generic(machine, paths("/dev/video*"), count=3), settings=settings):
        thing = await kubelet.endpoint(NAME, 6)
        names = ("video0", "video0::1", "video0::2", "video1", "video1::1", "video1::2")
        assert tuple(thing.devices) == names
        [two] = await thing.client.prefer(PreferenceRequest(names, (), 2))
        [four] = await thing.client.prefer(PreferenceRequest(names, ("video0",), 4))
        [least] = await thing.client.prefer(PreferenceRequest(names[2:], (), 1))
        [answer] = await thing.client.allocate(["video0", "video0::1", "video1"])
    assert set(two) == {"video0", "video1"}
    assert sorted(name.partition("::")[0] for name in four) == ["video0", "video0", "video1", "video1"]
    assert [name.partition("::")[0] for name in least] == ["video1"]
    assert answer.nodes == (DeviceNode("/dev/video0"), DeviceNode("/dev/video1"))


async def test_a_list_without_devices_has_a_reason(machine: Machine) -> None:
    plugin = generic(machine, FTDI)
    async with aclosing(plugin.discover()) as lists:  # type: ignore[type-var]
        assert await anext(lists) == []
        assert plugin.empty_reason == "nothing on this node matches"


async def test_numa_nodes_are_reported_unless_topology_is_off(machine: Machine) -> None:
    machine.pci("0000:3b:00.0", "8086:1572", "120000", "x", numa=1)
    machine.pci("0000:3c:00.0", "8086:1572", "120000", "x", numa=-1)
    selector = PciSelector([PciFunctionFilter()])
    assert [device.numa for device in (await first(generic(machine, selector))).values()] == [(1,), ()]
    assert {device.numa for device in (await first(generic(machine, selector, topology=False))).values()} == {()}


async def test_health_goes_both_ways_with_its_reason(
    machine: Machine, kubelet: ObservedKubelet, settings: Settings
) -> None:
    machine.node("thing")
    state = machine.write("/state", "live")
    check = HealthCheck(file="/state", equals=["live"], every=0.01)
    async with serving(generic(machine, paths("/dev/thing"), health=check), settings=settings) as daemon:
        await kubelet.health(NAME, "thing", "Healthy")
        state.write_text("dead")
        await kubelet.health(NAME, "thing", "Unhealthy")
        snapshot = daemon.resource(NAME).inventory.latest.value
        assert snapshot is not None
        assert snapshot.devices["thing"].reason == "/state is 'dead', not 'live'"
        state.write_text("live")
        await kubelet.health(NAME, "thing", "Healthy")


@pytest.mark.usefixtures("inotify")
async def test_a_failing_check_changes_the_list_without_a_scan(machine: Machine) -> None:
    machine.node("thing")
    state = machine.write("/state", "live")
    selector = CountingSelector(paths("/dev/thing"))
    plugin = generic(machine, selector, health=HealthCheck(file="/state", equals=["live"], every=0.01))
    async with asyncio.timeout(60), aclosing(plugin.discover()) as lists:  # type: ignore[type-var]
        await anext(lists)
        await anext(lists)  # the directories are watched now, so they are scanned once more
        state.write_text("dead")
        [device] = await anext(lists)
        assert (device.reason, selector.scans) == ("/state is 'dead', not 'live'", 2)
        machine.node("other")
        [device] = await anext(lists)
        assert (device.reason, selector.scans) == ("/state is 'dead', not 'live'", 3)


async def test_an_interface_that_a_pod_has_taken_is_not_broken(
    machine: Machine, kernel: Kernel, kubelet: ObservedKubelet, settings: Settings
) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    interface = machine.interface(path, "ens1")
    machine.link(f"/sys/devices/{interface}/device", f"/sys/devices/{path}")
    other = machine.pci("0000:3c:00.0", "8086:1572", "020000", "i40e")
    plugin = generic(machine, NetSelector([NetFilter()]), kernel, health=[HealthCheck(link="up", every=0.01)])
    async with serving(plugin, settings=settings):
        thing = await kubelet.endpoint(NAME)
        machine.remove("/sys/class/net/ens1")
        machine.remove(f"/sys/devices/{interface}")
        second = machine.interface(other, "ens2")
        machine.link(f"/sys/devices/{second}/device", f"/sys/devices/{other}")
        kernel.send("add", "net")
        await kubelet.health(NAME, "net-0000:3c:00.0", "Healthy")
        assert thing.devices["net-0000:3b:00.0"].healthy
        machine.remove(f"/sys/devices/{path}/driver")
        kernel.send("unbind", "pci")
        await kubelet.health(NAME, "net-0000:3b:00.0", "Unhealthy")


async def test_a_disk_in_use_is_listed_with_the_reason_and_never_handed_out(
    machine: Machine, kubelet: ObservedKubelet, settings: Settings
) -> None:
    machine.nvme(machine.pci("0000:81:00.0", "144d:a80a", "010802", "nvme"), 0, "BUSY")
    machine.nvme(machine.pci("0000:82:00.0", "144d:a80a", "010802", "nvme"), 1, "FREE")
    machine.mounted("259:0", "/", "/dev/nvme0n1")
    selector = NvmeSelector([NvmeFilter()])
    listed = await first(generic(machine, selector))
    reason = "/dev/nvme0n1 holds a file system, mounted at /: needs 'dangerous: true'"
    assert {name: device.reason for name, device in listed.items()} == {"nvme-BUSY-n1": reason, "nvme-FREE-n1": ""}
    assert all(device.healthy for device in (await first(generic(machine, selector, dangerous=True))).values())
    async with serving(generic(machine, selector), settings=settings):
        thing = await kubelet.endpoint(NAME, 2)
        machine.mounted("259:1", "/data", "/dev/nvme1n1")  # after the last look
        with pytest.raises(PeerRefused, match="mounted at /data"):
            await thing.client.allocate(["nvme-FREE-n1"])


async def test_a_node_that_is_gone_since_the_last_scan_is_not_handed_out(machine: Machine) -> None:
    machine.node("thing")
    plugin = generic(machine, paths("/dev/thing"))
    devices = await first(plugin)
    machine.remove("/dev/thing")
    with pytest.raises(PluginError, match="/dev/thing does not exist"):
        await plugin.allocate(list(devices.values()))


async def test_nodes_in_memory_need_no_thread_until_one_is_gone() -> None:
    if Path("/dev/shm").stat().st_dev not in memory_file_systems():
        pytest.skip("needs a tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        (dev := Path(name, "dev")).mkdir()
        for thing in ("one", "two"):
            os.mknod(dev / thing, stat.S_IFCHR | 0o600, os.makedev(0, 0))
        access = HostAccess(host=Host(Path(name)), timing=PATIENT)
        plugin = Generic(NAME, paths("/dev/one", "/dev/two"), HandoutOptions(), access)
        assert plugin.allocate_now([Device("one")]) is None, "nothing is listed yet"
        devices = await first(plugin)
        for _ in range(2):
            made = plugin.allocate_now(list(devices.values()))
            assert made is not None
            assert made == await plugin.allocate(list(devices.values()))
        (dev / "two").unlink()
        assert plugin.allocate_now([devices["two"]]) is None
        assert plugin.allocate_now(list(devices.values())) is None
        assert plugin.allocate_now([devices["one"]]) is not None
        with pytest.raises(PluginError, match="/dev/two does not exist"):
            await plugin.allocate([devices["two"]])


async def test_nodes_elsewhere_take_a_thread(machine: Machine) -> None:
    machine.node("thing")
    plugin = generic(machine, paths("/dev/thing"))
    devices = list((await first(plugin)).values())
    assert plugin.allocate_now(devices) is None
    assert (await plugin.allocate(devices)).nodes == (DeviceNode("/dev/thing"),)


async def test_allocate_before_the_first_list_waits_for_it(machine: Machine) -> None:
    machine.node("one")
    plugin = generic(machine, paths("/dev/one"))
    asked = asyncio.ensure_future(plugin.allocate([Device("one")]))
    await first(plugin)
    assert (await asked).nodes == (DeviceNode("/dev/one"),)
    with pytest.raises(PluginError, match=r"two of example\.com/thing no longer exists"):
        await plugin.allocate([Device("two")])


async def test_devices_of_an_exclusive_resource_are_left_out(machine: Machine) -> None:
    for name in ("ttyUSB0", "ttyUSB1", "ttyUSB2"):
        machine.node(name)
    assert list(await first(generic(machine, Excluding(paths("/dev/ttyUSB*"), [paths("/dev/ttyUSB1")])))) == [
        "ttyUSB0",
        "ttyUSB2",
    ]


async def test_sriov_devices_leave_a_file_for_multus(machine: Machine) -> None:
    physical = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    machine.adapter(machine.virtual(physical, 0, "0000:3b:02.0"), "irdma0", 0)
    selector = PciSelector([PciFunctionFilter(vf=True)])
    plugin = generic(machine, selector)
    answer = await plugin.allocate(list((await first(plugin)).values()))
    [path] = (machine.root / "devinfo").iterdir()
    assert path.name == "example.com-thing-0000:3b:02.0-device.json"
    assert json.loads(path.read_text()) == {
        "type": "pci",
        "version": "1.1.0",
        "pci": {"pci-address": "0000:3b:02.0", "rdma-device": "irdma0", "pf-pci-address": "0000:3b:00.0"},
    }
    assert answer.env["PCIDEVICE_EXAMPLE_COM_THING"] == "0000:3b:02.0"


async def test_a_pod_does_not_wait_for_the_file(machine: Machine) -> None:
    machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    machine.root.joinpath("devinfo").touch()
    plugin = generic(machine, PciSelector([PciFunctionFilter()]))
    assert (await plugin.allocate(list((await first(plugin)).values()))).nodes == ()


async def test_devices_can_be_handed_out_by_cdi_names_that_stay(machine: Machine) -> None:
    machine.node("ttyUSB0")
    machine.link("/dev/serial/port", "/dev/ttyUSB0")
    machine.write("/opt/licence")
    selector, env = paths("/dev/serial/*", "/opt/licence"), {"PORT": "{node}"}
    plugin = generic(machine, selector, cdi=True, env=env, permissions="r")
    devices = await first(plugin)
    answer = await plugin.allocate(list(devices.values()))
    assert answer.cdi == (f"{NAME}=serial-port", f"{NAME}=opt-licence")
    assert (answer.nodes, answer.mounts, answer.env) == ((), (), {"PORT": "/dev/serial/port,/opt/licence"})
    machine.remove("/dev/serial/port")
    await first(generic(machine, selector, cdi=True, env=env, permissions="r"))
    found = resolve([machine.root / "cdi"])
    assert found[f"{NAME}=serial-port"].edits == cdi.ContainerEdits(
        device_nodes=(cdi.DeviceNode("/dev/serial/port", "/dev/ttyUSB0", permissions="r"),)
    )
    assert found[f"{NAME}=opt-licence"].edits.mounts == (cdi.Mount("/opt/licence", options=("rw", "nosuid", "bind")),)


async def test_files_for_multus_are_written_again_after_a_reboot(machine: Machine, tmp_path: Path) -> None:
    physical = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    for number in range(2):
        machine.virtual(physical, number, f"0000:3b:02.{number}")
    selector = PciSelector([PciFunctionFilter(vf=True)])
    async with running(generic(machine, selector), tmp_path, KubeletSettings(timeout=60)) as kubelet:
        await kubelet.admit(pod_requesting({NAME: 1}))
    [path] = (machine.root / "devinfo").iterdir()
    path.unlink()
    async with running(generic(machine, selector), tmp_path, KubeletSettings(timeout=60)):
        written = [file for file in (machine.root / "devinfo").iterdir() if not file.name.startswith(".")]
        assert written == [path], "a later scan may be writing it once more"


async def test_a_cdi_name_goes_when_another_device_has_its_node(machine: Machine) -> None:
    first_stick = machine.usb("1-4", "0403:6001", "AAA")
    machine.usb_child(first_stick, "ttyUSB0", "tty")
    other = machine.usb("1-5", "0403:6001", "CCC", number=5)
    machine.usb_child(other, "ttyUSB1", "tty")
    await first(generic(machine, FTDI, cdi=True))
    machine.unplug(first_stick)
    machine.unplug(other)
    machine.usb_child(machine.usb("1-6", "0403:6001", "BBB", number=6), "ttyUSB0", "tty")
    await first(generic(machine, FTDI, cdi=True))
    names = {name.rpartition("-")[2]: device for name, device in resolve([machine.root / "cdi"]).items()}
    assert sorted(names) == ["BBB", "CCC"], "CCC may come back as ttyUSB1, and its pod be started before it is seen"


async def test_a_cdi_name_goes_when_a_device_of_another_resource_has_its_node(machine: Machine) -> None:
    def named(name: str, serial: str) -> Generic:
        return generic(machine, UsbSelector([UsbFilter(serial=[serial])]), name=name, cdi=True)

    stick = machine.usb("1-4", "0403:6001", "AAA")
    machine.usb_child(stick, "ttyUSB0", "tty")
    other = machine.usb("1-5", "0403:6001", "ADD", number=5)
    machine.usb_child(other, "ttyUSB1", "tty")
    await first(named("example.com/a", "A*"))
    claim = cdi.Spec(
        "a.example.com/claim", [cdi.Device("c1", cdi.ContainerEdits(device_nodes=[cdi.DeviceNode("/dev/ttyUSB0")]))]
    )
    cdi.SpecDirectory(machine.root / "cdi").write(claim, part="c1")
    machine.unplug(stick)
    machine.usb_child(machine.usb("1-6", "0403:6001", "BBB", number=6), "ttyUSB0", "tty")
    await first(named("example.com/b", "B*"))
    assert sorted(resolve([machine.root / "cdi"])) == [
        "a.example.com/claim=c1",
        "example.com/a=usb-0403-6001-ADD",
        "example.com/b=usb-0403-6001-BBB",
    ]
    machine.unplug(other)
    machine.usb_child(machine.usb("1-7", "0403:6001", "BCC", number=7), "ttyUSB1", "tty")
    await first(named("example.com/b", "B*"))
    assert not (machine.root / "cdi" / "example.com-a_plugwright.json").exists(), (
        "a runtime refuses a file without devices"
    )


async def test_an_interface_is_moved_by_its_cdi_name(machine: Machine) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    machine.link(f"/sys/devices/{machine.interface(path, 'ens1')}/device", f"/sys/devices/{path}")
    plugin = generic(machine, NetSelector([NetFilter()]), cdi=True)
    [device] = (await first(plugin)).values()
    assert (await plugin.allocate([device])).cdi == (f"{NAME}=net-0000:3b:00.0",)
    assert resolve([machine.root / "cdi"])[f"{NAME}=net-0000:3b:00.0"].edits.net_devices == (
        cdi.NetDevice("ens1", "ens1"),
    )


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="this machine has no /dev/fuse")
async def test_the_nodes_of_this_machine_are_served(kubelet: ObservedKubelet, settings: Settings) -> None:
    plugin = Generic(NAME, paths("/dev/fuse", "/dev/null", "/dev/net/tun"), HandoutOptions(count=2))
    async with serving(plugin, settings=settings):
        thing = await kubelet.endpoint(NAME, 4)
        assert {"fuse", "fuse::1", "null", "null::1"} <= set(thing.devices)
        [answer] = await thing.client.allocate(["fuse", "null"])
    assert answer.nodes == (DeviceNode("/dev/fuse"), DeviceNode("/dev/null"))


def may_make_loop_devices() -> bool:
    return os.geteuid() == 0 and Path("/dev/loop-control").exists()


@pytest.mark.skipif(not may_make_loop_devices(), reason="making a loop device needs root and the loop driver")
async def test_a_device_that_the_kernel_makes_is_served_at_once(kubelet: ObservedKubelet, settings: Settings) -> None:
    number = 7000 + os.getpid() % 1000
    plugin = Generic(NAME, paths(f"/dev/loop{number}"))
    with Path("/dev/loop-control").open("rb+", buffering=0) as control:
        async with serving(plugin, settings=settings):
            await kubelet.until(lambda kubelet: NAME in kubelet.endpoints and kubelet.endpoints[NAME].lists)
            fcntl.ioctl(control, LOOP_ADD, number)
            try:
                await kubelet.health(NAME, f"loop{number}", "Healthy")
            finally:
                fcntl.ioctl(control, LOOP_REMOVE, number)
            await kubelet.health(NAME, f"loop{number}", "Unhealthy")


@pytest.mark.skipif(os.geteuid() != 0, reason="making a device node needs root")
async def test_a_node_that_is_made_is_served_and_one_that_is_removed_is_not(
    tmp_path: Path, kubelet: ObservedKubelet, settings: Settings
) -> None:
    place = tmp_path / "nodes"
    place.mkdir()
    plugin = Generic(NAME, paths(f"{place}/*"))
    async with serving(plugin, settings=settings):
        await kubelet.until(lambda kubelet: NAME in kubelet.endpoints and kubelet.endpoints[NAME].lists)
        os.mknod(place / "zero", 0o20600, os.makedev(1, 5))
        await kubelet.until(lambda kubelet: kubelet.endpoints[NAME].devices)
        [name] = kubelet.endpoints[NAME].devices
        [answer] = await kubelet.endpoints[NAME].client.allocate([name])
        assert answer.nodes == (DeviceNode(f"{place}/zero"),)
        place.joinpath("zero").unlink()
        await kubelet.health(NAME, name, "Unhealthy")
        os.mknod(place / "zero", 0o20600, os.makedev(1, 5))
        await kubelet.health(NAME, name, "Healthy")
