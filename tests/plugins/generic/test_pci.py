"""PCI functions and their virtual ones, with the nodes that a container needs."""

import pytest
from tests.plugins.generic.machines import Machine, found

from plugwright.errors import InvalidValue
from plugwright.plugins.generic.pci import PciFunctionFilter, PciSelector


def functions(**wanted: object) -> PciSelector:
    return PciSelector([PciFunctionFilter(**wanted)])  # type: ignore[arg-type]


def test_a_function_for_user_space_comes_with_its_iommu_group(machine: Machine) -> None:
    path = machine.pci("0000:3b:02.0", "8086:154c", "020000", "vfio-pci", numa=1)
    machine.iommu(path, "65")
    [unit] = machine.find(functions(vendor=["8086"], driver=["vfio-pci"])).values()
    assert (unit.id, found(unit), unit.numa) == ("0000:3b:02.0", ["/dev/vfio/vfio", "/dev/vfio/65"], (1,))
    assert unit.details["vfio"] == {"mount": "/dev/vfio/vfio", "dev-mount": "/dev/vfio/65"}


def test_without_an_iommu_the_node_has_another_name_outside(machine: Machine) -> None:
    machine.iommu(machine.pci("0000:3b:02.0", "8086:154c", "020000", "vfio-pci"), "7", "vfio-noiommu")
    [unit] = machine.find(functions()).values()
    assert (unit.paths[1].host_path, unit.paths[1].container_path) == ("/dev/vfio/noiommu-7", "/dev/vfio/7")


def test_a_group_that_several_functions_share_is_one_device(machine: Machine) -> None:
    for address in ("0000:3b:02.1", "0000:3b:02.0"):
        machine.iommu(machine.pci(address, "8086:154c", "020000", "vfio-pci"), "65")
    [unit] = machine.find(functions()).values()
    assert (unit.id, unit.facts["pci"]) == ("0000:3b:02.0", "0000:3b:02.0,0000:3b:02.1")


def test_iommufd_and_uio_have_nodes_of_their_own(machine: Machine) -> None:
    path = machine.pci("0000:3b:02.0", "8086:154c", "020000", "vfio-pci")
    assert "no vfio device" in machine.find(functions(nodes=["iommufd"]))["0000:3b:02.0"].fault
    machine.device(f"{path}/vfio-dev/vfio3", "vfio-dev", "vfio/devices/vfio3")
    [unit] = machine.find(functions(nodes=["iommufd"])).values()
    assert found(unit) == ["/dev/iommu", "/dev/vfio/devices/vfio3"]
    machine.bind(path, "uio_pci_generic")
    assert machine.find(functions())["0000:3b:02.0"].fault == "no uio node"
    machine.device(f"{path}/uio/uio2", "uio", "uio2")
    assert found(*machine.find(functions()).values()) == ["/dev/uio2"]


def test_any_other_function_has_the_nodes_below_it(machine: Machine) -> None:
    path = machine.pci("0000:5e:00.0", "1da3:1000", "120000", "habanalabs", numa=0)
    machine.device(f"{path}/accel/accel0", "accel", "accel/accel0")
    assert found(*machine.find(functions(class_=["12"])).values()) == ["/dev/accel/accel0"]


def test_a_function_without_a_driver_has_a_fault(machine: Machine) -> None:
    machine.pci("0000:5e:00.0", "1da3:1000", "120000")
    assert machine.find(functions())["0000:5e:00.0"].fault == "no driver is bound"


@pytest.mark.parametrize(
    ("wanted", "addresses"),
    [
        ({"class_": ["0x0200"]}, ["0000:3b:00.0", "0000:5e:00.0"]),
        ({"vendor": ["0x15B3"]}, ["0000:5e:00.0"]),
        ({"device": ["1572", "1583"]}, ["0000:3b:00.0"]),
        ({"address": ["0000:5?:*"]}, ["0000:5e:00.0"]),
        ({"acpi_index": ["3"]}, ["0000:3b:00.0"]),
        ({"link_type": ["infiniband"]}, ["0000:5e:00.0"]),
        ({"rdma": True}, ["0000:5e:00.0"]),
        ({"rdma": True, "pkey": ["0x8001"]}, ["0000:5e:00.0"]),
        ({"rdma": True, "pkey": ["0x7fff"]}, []),
        ({"vf": True}, []),
    ],
)
def test_functions_are_selected_by_what_sysfs_says(
    machine: Machine, wanted: dict[str, object], addresses: list[str]
) -> None:
    intel = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    machine.write(f"/sys/devices/{intel}/acpi_index", "3")
    machine.interface(intel, "ens1")
    mellanox = machine.pci("0000:5e:00.0", "15b3:1017", "020000", "mlx5_core")
    machine.interface(mellanox, "ib0", kind="32")
    machine.adapter(mellanox, "mlx5_0", 0)
    assert list(machine.find(functions(**wanted))) == addresses


def test_rdma_and_vhost_add_their_nodes(machine: Machine) -> None:
    machine.adapter(machine.pci("0000:5e:00.0", "15b3:1017", "020000", "mlx5_core"), "mlx5_0", 0)
    [unit] = machine.find(functions(rdma=True, vhost=True)).values()
    rdma = [f"/dev/infiniband/{name}" for name in ("issm0", "umad0", "uverbs0", "rdma_cm")]
    assert found(unit) == [*rdma, "/dev/vhost-net", "/dev/net/tun"]
    assert unit.details["rdma"] == {
        "issm": rdma[0], "umad": rdma[1], "uverbs": rdma[2], "rdma_cm": rdma[3], "rdma_dev": "mlx5_0",
    }  # fmt: skip


# SR-IOV


@pytest.fixture
def divided(machine: Machine) -> Machine:
    """A card with two ports: four virtual functions on the first, none on the second."""
    first = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e", numa=1)
    machine.interface(first, "ens1f0")
    for index in range(4):
        machine.virtual(first, index, f"0000:3b:02.{index}")
    machine.interface(machine.pci("0000:3b:00.1", "8086:1572", "020000", "i40e"), "ens1f1")
    return machine


@pytest.mark.parametrize(
    ("parents", "addresses"),
    [
        ([], ["0000:3b:00.1", "0000:3b:02.0", "0000:3b:02.1", "0000:3b:02.2", "0000:3b:02.3"]),
        (["ens1f0"], ["0000:3b:02.0", "0000:3b:02.1", "0000:3b:02.2", "0000:3b:02.3"]),
        (["ENS1F0#0,2-3"], ["0000:3b:02.0", "0000:3b:02.2", "0000:3b:02.3"]),
        (["ens1f0#1", "ens1f0"], ["0000:3b:02.1"]),
        (["0000:3b:00.0#1"], ["0000:3b:02.1"]),
        (["ens1f1"], ["0000:3b:00.1"]),
        (["ens1f1#0"], []),
    ],
)
def test_virtual_functions_are_selected_by_their_parent(
    divided: Machine, parents: list[str], addresses: list[str]
) -> None:
    assert list(divided.find(functions(pf=parents))) == addresses


def test_a_divided_function_is_not_handed_out(divided: Machine) -> None:
    assert "0000:3b:00.0" not in divided.find(functions())
    assert "0000:3b:00.1" in divided.find(functions(vf=False))


@pytest.mark.parametrize("text", ["#1", "ens1f0#", "ens1f0#3-1", "ens1f0#a", "ens1f0#1,,2", "ens1f0#-1", "e#0-999999"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        functions(pf=text)


def test_mediated_devices_are_known_by_their_ids(machine: Machine) -> None:
    path = machine.pci("0000:41:00.0", "10de:2235", "030200", "nvidia", numa=0)
    uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
    machine.device(f"{path}/{uuid}")
    machine.write(f"/sys/devices/{path}/mdev_supported_types/nvidia-556/name", "NVIDIA A40-4Q")
    machine.link(f"/sys/devices/{path}/{uuid}/mdev_type", f"/sys/devices/{path}/mdev_supported_types/nvidia-556")
    machine.link(f"/sys/bus/mdev/devices/{uuid}", f"/sys/devices/{path}/{uuid}")
    machine.iommu(f"{path}/{uuid}", "90")
    [unit] = machine.find(functions(mdev=["*A40-4Q"])).values()
    assert (unit.id, found(unit), unit.numa) == (uuid, ["/dev/vfio/vfio", "/dev/vfio/90"], (0,))
    assert machine.find(functions(mdev=["*A40-8Q"])) == {}
