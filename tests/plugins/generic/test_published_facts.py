"""What claims can select ordinary devices by: their facts, and where they are on the PCI buses."""

import pytest
from tests.plugins.generic.machines import Machine
from tests.plugins.generic.test_hostile_devices import NAME, access, listed, populate

from plugwright import Device
from plugwright.attributes import is_published
from plugwright.plugins.generic.fpga import FpgaFilter, FpgaSelector
from plugwright.plugins.generic.hardware import Selector
from plugwright.plugins.generic.paths import PathPattern, PathSelector
from plugwright.plugins.generic.pci import PciFunctionFilter, PciSelector
from plugwright.plugins.generic.plugin import Generic
from plugwright.plugins.generic.usb import UsbFilter, UsbSelector

STANDARD = "resource.kubernetes.io"


async def devices_of(machine: Machine, selector: Selector) -> list[Device]:
    return list((await listed(Generic(NAME, selector, None, access(machine.host)))).values())


@pytest.mark.parametrize(
    ("family", "address"),
    [
        ("net", "0000:3b:01.0"),
        ("rdma", "0000:5e:01.0"),
        ("nvme", "0000:6e:01.0"),
        ("drm", "0000:7e:01.0"),
        ("pci", "0000:3b:01.0"),
        ("usb", "0000:00:14.0"),
    ],
)
async def test_a_device_behind_one_pci_function_says_where_it_is(machine: Machine, family: str, address: str) -> None:
    selector, _ = populate(machine)[family]
    first, _ = sorted(await devices_of(machine, selector), key=lambda device: device.id)
    assert first.attributes[f"{STANDARD}/pciBusID"] == first.attributes["pci"] == address
    assert first.attributes[f"{STANDARD}/pcieRoot"] == "pci0000:00"
    assert first.attributes.get(f"{STANDARD}/numaNode") == next(iter(first.numa), None)


async def test_an_fpga_says_where_it_is(machine: Machine) -> None:
    machine.device(f"{machine.pci('0000:3b:00.0', '10ee:903f', '120000', 'xdma', numa=1)}/xdma/xdma0_user", "xdma", "x")
    [card] = await devices_of(machine, FpgaSelector([FpgaFilter(layout="xdma")]))
    assert card.attributes[f"{STANDARD}/pciBusID"] == "0000:3b:00.0"
    assert card.attributes[f"{STANDARD}/numaNode"] == 1


async def test_a_drive_with_several_paths_to_it_is_where_its_controller_is(machine: Machine) -> None:
    selector, controller = populate(machine)["nvme"]
    block = machine.device("virtual/nvme-subsystem/nvme-subsys2/nvme2n1", "block", "nvme2n1", nsid="1", dev="259:2")
    machine.link(f"/sys/class/nvme-subsystem/nvme-subsys2/{controller.name}", f"/sys/devices/{block}")
    drives = {device.attributes["pci"]: device for device in await devices_of(machine, selector)}
    assert drives["0000:6e:02.0"].attributes[f"{STANDARD}/pcieRoot"] == "pci0000:00"


async def test_a_device_that_is_several_functions_has_no_one_address(machine: Machine) -> None:
    for function in (0, 1):
        path = machine.pci(f"0000:3b:00.{function}", "10de:20b0", "030200", "vfio-pci")
        machine.iommu(path, "7")
    [device] = await devices_of(machine, PciSelector([PciFunctionFilter(address="0000:3b:00.0")]))
    assert device.attributes["pci"] == "0000:3b:00.0,0000:3b:00.1"
    assert not [name for name in device.attributes if name.startswith(STANDARD)]


async def test_a_path_without_hardware_has_its_name_alone(machine: Machine) -> None:
    machine.node("fuse")
    [fuse] = await devices_of(machine, PathSelector([PathPattern(path="/dev/fuse")]))
    published = {name: value for name, value in fuse.attributes.items() if is_published(value)}
    assert published == {"name": "fuse", "unit": "fuse"}


async def test_a_text_that_no_claim_could_select_by_is_cut(machine: Machine) -> None:
    machine.write(f"/sys/devices/{machine.usb('1-1', '0403:6001', 'ß' * 40)}/product", "x" * 65)
    [device] = await devices_of(machine, UsbSelector([UsbFilter()]))
    assert device.attributes["serial"] == "ß" * 30 + "…"
    assert device.attributes["name"] == "x" * 61 + "…"
