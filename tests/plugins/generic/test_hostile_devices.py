"""Devices that say odd things of themselves, and files that hang: one of them costs no other."""

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from tests.observed_kubelet import ObservedKubelet
from tests.plugins.generic.machines import Machine
from tests.system.test_blocking import no_threads

from plugwright import Device, PluginError, Settings, serving
from plugwright.errors import PeerRefused
from plugwright.plugins.generic.allocation import HandoutOptions
from plugwright.plugins.generic.drm import DrmFilter, DrmSelector
from plugwright.plugins.generic.hardware import HostPath, Selector, Unit, stable_id
from plugwright.plugins.generic.health import HealthCheck
from plugwright.plugins.generic.net import NetFilter, NetSelector
from plugwright.plugins.generic.nvme import NvmeFilter, NvmeSelector
from plugwright.plugins.generic.paths import PathPattern, PathSelector
from plugwright.plugins.generic.pci import PciFunctionFilter, PciSelector
from plugwright.plugins.generic.plugin import Generic, HostAccess
from plugwright.plugins.generic.rdma import RdmaFilter, RdmaSelector
from plugwright.plugins.generic.usb import UsbFilter, UsbSelector
from plugwright.sdk.hotplug import HotplugSource, HotplugTiming, Uevent
from plugwright.sdk.sysfs import Host

NAME = "example.com/thing"
NOT_UTF_8 = os.fsdecode(b"evil\xff\xfe")
TIMING = HotplugTiming(rescan=3600, rescan_often=3600, burst=0.001, gap=0)
HOSTILE = [
    b"\0\0\0", b"\xff\xfe\x80", b"../../../etc/shadow", b"x" * 9000, b"\x1b]0;pwned\x07", "\u202e\u0663".encode(),
    b"99999999999999999999999", b"-1e9", b"a\nb\nDEVNAME=../../etc/passwd\nDEVNAME=x\0y", b"{id} {0.x} %s", b"",
]  # fmt: skip


def access(host: Host, **more: float) -> HostAccess:
    def no_uevents() -> object:
        raise PermissionError(1, "Operation not permitted")

    directory = host.root
    return HostAccess(
        host=host,
        hotplug=HotplugSource(no_uevents),  # type: ignore[arg-type]
        timing=TIMING,
        device_info=directory / "devinfo",
        cdi=directory / "cdi",
        **more,
    )


async def listed(plugin: Generic) -> dict[str, Device]:
    async with asyncio.timeout(60), aclosing(plugin.discover()) as lists:  # type: ignore[type-var]
        return {device.id: device for device in await anext(lists)}
    raise AssertionError


@pytest.mark.parametrize("cdi", [False, True])
@pytest.mark.parametrize("ids", ["stable", "gdp"])
async def test_a_link_to_a_name_that_is_not_utf_8_costs_its_own_device_alone(
    machine: Machine, caplog: pytest.LogCaptureFixture, cdi: bool, ids: str
) -> None:
    for name in ("one", "two", f"../outside/{NOT_UTF_8}"):
        machine.write(f"/srv/sock/{name}")
    (machine.root / "srv/sock/evil").symlink_to(f"../outside/{NOT_UTF_8}")
    (machine.root / "srv/sock").chmod(0o777)  # so that links in it are resolved when they are found
    selector = PathSelector([PathPattern(path="/srv/sock/*")])
    options = HandoutOptions(ids=ids, cdi=cdi)  # type: ignore[arg-type]
    plugin = Generic(NAME, selector, options, access(machine.host))
    devices = {device.attributes["unit"]: device for device in (await listed(plugin)).values()}
    assert {unit: device.healthy for unit, device in devices.items()} == {
        "srv-sock-one": True,
        "srv-sock-two": True,
        "srv-sock-evil": False,
    }
    assert devices["srv-sock-evil"].reason.isprintable()
    for name in ("one", "two"):
        await plugin.allocate([devices[f"srv-sock-{name}"]])
    assert [record.message for record in caplog.records if "device" in record.message] == ["device cannot be examined"]
    await listed(plugin)
    assert len([record for record in caplog.records if "device" in record.message]) == 1


@pytest.mark.parametrize("text", [NOT_UTF_8, NOT_UTF_8 * 20, "\ud800", "x\0y"])
def test_every_text_becomes_an_id_that_the_kubelet_accepts(text: str) -> None:
    assert Device(stable_id("usb", text)).id == stable_id("usb", text)


def populate(machine: Machine) -> dict[str, tuple[Selector, Path]]:
    """Two devices of each family; the directory is that of the second."""
    adapters, controllers, usb = [], [], []
    for number in (1, 2):
        nic = machine.pci(f"0000:3b:0{number}.0", "8086:1572", "020000", "i40e")
        machine.interface(nic, f"ens{number}")
        hca = machine.pci(f"0000:5e:0{number}.0", "15b3:1017", "020700", "mlx5_core")
        adapters.append(machine.adapter(hca, f"mlx5_{number}", number))
        drive = machine.pci(f"0000:6e:0{number}.0", "144d:a808", "010802", "nvme")
        controllers.append(machine.nvme(drive, number, f"S{number}"))
        machine.gpu(machine.pci(f"0000:7e:0{number}.0", "1002:73bf", "030000", "amdgpu"), number)
        usb.append(machine.usb(f"1-{number}", "0403:6001", f"A{number}", number=number))
    devices = machine.root / "sys/devices"
    return {
        "net": (NetSelector([NetFilter(name="ens*", virtual=True)]), devices / "pci0000:00/0000:3b:02.0/net/ens2"),
        "rdma": (RdmaSelector([RdmaFilter()]), devices / adapters[1]),
        "nvme": (NvmeSelector([NvmeFilter()]), devices / controllers[1]),
        "drm": (DrmSelector([DrmFilter()]), devices / "pci0000:00/0000:7e:02.0"),
        "pci": (PciSelector([PciFunctionFilter(driver="i40e")]), devices / "pci0000:00/0000:3b:02.0"),
        "usb": (UsbSelector([UsbFilter(vendor=["0403"])]), devices / usb[1]),
    }


@pytest.mark.parametrize("family", ["drm", "net", "nvme", "pci", "rdma", "usb"])
async def test_hostile_texts_of_a_device_cost_no_other_device(machine: Machine, family: str) -> None:
    selector, directory = populate(machine)[family]
    options = HandoutOptions(cdi=True)
    good = (await listed(Generic(NAME, selector, options, access(machine.host)))).values()
    kept, _ = sorted(device.id for device in good)
    for file in [path for path in directory.rglob("*") if path.is_file()]:
        before = file.read_bytes()
        for text in HOSTILE:
            file.write_bytes(text)
            plugin = Generic(NAME, selector, options, access(machine.host))
            devices = await listed(plugin)
            assert devices[kept].healthy, (file, text)
            await plugin.allocate([devices[kept]])
            for device in devices.values():
                texts = [device.reason, *map(str, device.attributes.values())]
                assert all(text.isprintable() for text in texts), (file, text, device)
        file.write_bytes(before)


class OddSelector:
    """Finds one unit that no list can have, and one that no call accepts, between two good ones."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units = units

    def find(self, host: Host) -> Sequence[Unit]:
        return self._units

    def directories(self, host: Host) -> Sequence[Path]:
        return ()

    def concerns(self, event: Uevent) -> bool:
        return False


async def test_a_unit_that_cannot_be_described_is_left_out(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    units = [Unit("a"), Unit("id with a space"), Unit("x" * 400), Unit("b", numa=(2**64,)), Unit("c")]
    devices = await listed(Generic(NAME, OddSelector(units), access=access(machine.host)))
    assert list(devices) == ["a", "c"]
    assert [record.message for record in caplog.records].count("device left out of the list") == 3


async def test_a_unit_that_cannot_be_examined_is_unhealthy(machine: Machine) -> None:
    node = machine.node("good")
    units = [Unit("odd", (HostPath("/dev/x\0y"),)), Unit("good", (HostPath(node),))]
    devices = await listed(Generic(NAME, OddSelector(units), access=access(machine.host)))
    assert devices["good"].healthy
    assert devices["odd"].reason.startswith("cannot be examined: ")


class DeadHost(Host, frozen=True):
    """A host with a file system that no longer answers, while `closed` is set."""

    closed: threading.Event = msgspec.field(default_factory=threading.Event)
    gate: threading.Event = msgspec.field(default_factory=threading.Event)

    def stat(self, path: str) -> os.stat_result:
        if self.closed.is_set():
            self.gate.wait()
        return self.seen(path).stat()


@pytest.fixture
def dead(machine: Machine) -> Iterator[DeadHost]:
    machine.node("nfs0")
    host = DeadHost(machine.root)
    yield host
    host.gate.set()


PATHS = PathSelector([PathPattern(path="/dev/nfs*")])


async def test_an_allocation_from_a_dead_file_system_is_refused_in_time(
    dead: DeadHost, kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(Generic(NAME, PATHS, access=access(dead, allocate_timeout=0.02)), settings=settings):
        thing = await kubelet.endpoint(NAME, 1)
        dead.closed.set()
        for _ in range(4):
            with pytest.raises(PeerRefused, match=f"check of devices of {NAME} did not end within 0.02 s"):
                await thing.client.allocate(["nfs0"])
        with pytest.raises(PeerRefused, match="not started: 4 earlier calls still hang"):
            await thing.client.allocate(["nfs0"])


async def test_a_scan_that_hangs_makes_devices_unhealthy_and_the_next_one_healthy(
    dead: DeadHost, kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(Generic(NAME, PATHS, access=access(dead, scan_timeout=0.5)), settings=settings):
        thing = await kubelet.endpoint(NAME, 1)
        dead.closed.set()
        (dead.dev / "nfs1").touch()
        await kubelet.health(NAME, "nfs0", "Unhealthy")
        dead.closed.clear()
        dead.gate.set()
        await kubelet.health(NAME, "nfs1", "Healthy")
        assert thing.devices["nfs0"].healthy


async def test_a_plugin_whose_scan_hangs_can_be_closed(dead: DeadHost) -> None:
    dead.closed.set()
    plugin = Generic(NAME, PATHS, access=access(dead, scan_timeout=0.01))
    with pytest.raises(PluginError, match=f"scan of {NAME} did not end within 0.01 s"):
        await listed(plugin)
    with pytest.raises(PluginError, match=f"scan of {NAME} not started: 1 earlier call still hangs"):
        await listed(plugin)


async def test_a_device_that_can_no_longer_be_checked_is_listed_as_unhealthy_without_a_thread(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("/state", "ok")
    options = HandoutOptions(health=HealthCheck(file="/state", equals=["ok"], every=0.01, failures=1))
    machine.interface(machine.pci("0000:01:00.0", "8086:1572", "020000"), "ens1")
    plugin = Generic(NAME, NetSelector([NetFilter(virtual=True)]), options, access(machine.host))
    async with asyncio.timeout(60), aclosing(plugin.discover()) as lists:  # type: ignore[type-var]
        assert [device.healthy for device in await anext(lists)] == [True]
        with no_threads():
            [device] = await anext(lists)
        assert "can't start new thread" in device.reason
        assert [device.healthy for device in await anext(lists)] == [True]
