"""Each family finds its hardware with the nodes that a container needs, under an id that stays."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.plugins.generic.machines import Machine, found

from plugwright.plugins.generic.drm import DrmFilter, DrmSelector
from plugwright.plugins.generic.fpga import FpgaFilter, FpgaSelector
from plugwright.plugins.generic.net import NetFilter, NetSelector
from plugwright.plugins.generic.nvme import NvmeFilter, NvmeSelector
from plugwright.plugins.generic.pci import PciFunctionFilter, PciSelector
from plugwright.plugins.generic.rdma import RdmaFilter, RdmaSelector
from plugwright.plugins.generic.usb import UsbFilter, UsbSelector

FTDI = UsbSelector([UsbFilter(vendor=["0403"], product=["0x6001"])])


def functions(**wanted: object) -> PciSelector:
    return PciSelector([PciFunctionFilter(**wanted)])  # type: ignore[arg-type]


# USB


def test_a_usb_device_has_its_own_node_and_those_of_its_drivers(machine: Machine) -> None:
    machine.usb_child(machine.usb("1-4.2", "0403:6001", "A50285BI"), "ttyUSB0", "tty")
    [unit] = machine.find(FTDI).values()
    assert (unit.id, found(unit)) == ("usb-0403-6001-A50285BI", ["/dev/ttyUSB0", "/dev/bus/usb/001/004"])
    assert (unit.numa, unit.facts["serial"], unit.facts["port"]) == ((0,), "A50285BI", "1-4.2")


def test_only_the_nodes_asked_for_are_given_and_they_must_be_there(machine: Machine) -> None:
    usb = machine.usb("1-4", "0403:6001", "A50285BI")
    selector = UsbSelector([UsbFilter(vendor=["0403"], nodes=["tty"])])
    assert machine.find(selector)["usb-0403-6001-A50285BI"].fault == "no tty node: is its driver there?"
    machine.usb_child(usb, "ttyUSB0", "tty")
    [unit] = machine.find(selector).values()
    assert (found(unit), unit.fault) == (["/dev/ttyUSB0"], "")


def test_a_usb_device_that_is_replugged_is_the_same_device(machine: Machine) -> None:
    usb = machine.usb("1-4", "0403:6001", "A50285BI", number=4)
    machine.usb_child(usb, "ttyUSB0", "tty")
    before = machine.find(FTDI)
    machine.unplug(usb)
    assert machine.find(FTDI) == {}
    machine.usb_child(machine.usb("1-9", "0403:6001", "A50285BI", number=17), "ttyUSB3", "tty")
    after = machine.find(FTDI)
    assert list(after) == list(before)
    assert found(*after.values()) == ["/dev/ttyUSB3", "/dev/bus/usb/001/017"]


def test_without_a_serial_number_the_port_is_the_name_and_clones_have_both(machine: Machine) -> None:
    machine.usb("1-1", "0403:6001")
    machine.usb("1-2", "0403:6001", "0123456789", number=5)
    machine.usb("1-3", "0403:6001", "0123456789", number=6)
    assert sorted(machine.find(FTDI)) == [
        "usb-0403-6001-0123456789-1-2",
        "usb-0403-6001-0123456789-1-3",
        "usb-0403-6001-1-1",
    ]


def test_a_hub_does_not_have_the_nodes_of_devices_behind_it(machine: Machine) -> None:
    hub = machine.usb("1-1", "05e3:0608")
    machine.usb_child(f"{hub}/1-1.4", "ttyUSB0", "tty")
    machine.write(f"/sys/devices/{hub}/1-1.4/devnum", "9")
    [unit] = machine.find(UsbSelector([UsbFilter(vendor=["05e3"])])).values()
    assert found(unit) == ["/dev/bus/usb/001/004"]


def test_usb_devices_are_selected_by_any_of_their_interfaces(machine: Machine) -> None:
    machine.usb_child(machine.usb("1-1", "046d:0825", "CAM"), "video0", "video4linux", kind="0e")
    machine.usb("1-2", "0403:6001", "X", number=5)
    assert list(machine.find(UsbSelector([UsbFilter(class_=["0e"])]))) == ["usb-046d-0825-CAM"]
    assert list(machine.find(UsbSelector([UsbFilter(serial=["C*"], nodes=["video"])]))) == ["usb-046d-0825-CAM"]
    assert list(machine.find(UsbSelector([UsbFilter(port=["1-2"])]))) == ["usb-0403-6001-X"]


# RDMA and networks


@pytest.fixture
def cluster_node(machine: Machine) -> Machine:
    """Two InfiniBand adapters, and one for Ethernet that has no MAD nodes."""
    for number in range(2):
        path = machine.pci(f"0000:{number + 1}b:00.0", "15b3:101b", "020700", "mlx5_core", numa=number)
        machine.adapter(path, f"mlx5_{number}", number)
        machine.interface(path, f"ib{number}", kind="32")
    path = machine.pci("0000:7d:00.0", "1d0f:efa2", "020000", "efa")
    machine.adapter(path, "efa_0", 2, "Ethernet")
    for kind in ("umad2", "issm2"):
        machine.remove(f"/sys/class/infiniband_mad/{kind}")
    return machine


def test_an_adapter_has_all_the_nodes_of_its_own(cluster_node: Machine) -> None:
    units = cluster_node.find(RdmaSelector([RdmaFilter()]))
    assert list(units) == ["rdma-0000:7d:00.0", "rdma-0000:1b:00.0", "rdma-0000:2b:00.0"]
    names = [path.rpartition("/")[2] for path in found(units["rdma-0000:2b:00.0"])]
    assert names == ["uverbs1", "umad1", "issm1", "rdma_cm"]
    assert found(units["rdma-0000:7d:00.0"]) == ["/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"]
    assert units["rdma-0000:2b:00.0"].numa == (1,)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({"name": ["mlx5_*"]}, ["mlx5_0", "mlx5_1"]),
        ({"interface": ["ib1"]}, ["mlx5_1"]),
        ({"link_type": ["ethernet"]}, ["efa_0"]),
        ({"driver": ["efa"]}, ["efa_0"]),
        ({"vendor": ["15b3"], "device": ["101b"], "address": ["0000:1b:*"]}, ["mlx5_0"]),
    ],
)
def test_adapters_are_selected_by_what_sysfs_says(
    cluster_node: Machine, wanted: dict[str, object], names: list[str]
) -> None:
    units = cluster_node.find(RdmaSelector([RdmaFilter(**wanted)]))  # type: ignore[arg-type]
    assert [unit.facts["rdma"] for unit in units.values()] == names


def test_an_adapter_that_lacks_a_required_node_has_a_fault(cluster_node: Machine) -> None:
    units = cluster_node.find(RdmaSelector([RdmaFilter(required=("uverbs", "umad"))]))
    assert {unit.fault for unit in units.values()} == {"", "no umad node"}


def test_interfaces_of_hardware_are_found_and_others_on_request(machine: Machine) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e", numa=1)
    machine.interface(path, "ens1")
    machine.link(f"/sys/devices/{path}/net/ens1/device", f"/sys/devices/{path}")
    machine.device("virtual/net/br0", "net", type="1", operstate="up")
    machine.device("virtual/net/lo", "net", type="772")
    [unit] = machine.find(NetSelector([NetFilter()])).values()
    assert (unit.id, unit.facts["interface"], unit.numa) == ("net-0000:3b:00.0", "ens1", (1,))
    assert list(machine.find(NetSelector([NetFilter(virtual=True)]))) == ["net-br0", "net-0000:3b:00.0"]
    assert machine.find(NetSelector([NetFilter(link_type=["infiniband"])])) == {}


@pytest.mark.parametrize("table", ["/proc/1/net/route", "/proc/net/route"])
def test_an_interface_with_the_default_route_is_dangerous(machine: Machine, table: str) -> None:
    path = machine.pci("0000:3b:00.0", "1af4:1041", "020000", "virtio-pci")
    machine.interface(f"{path}/virtio2", "eth0")
    machine.link(f"/sys/devices/{path}/virtio2/net/eth0/device", f"/sys/devices/{path}/virtio2")
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask"
    machine.write(table, f"{head}\neth0 00000000 0101A8C0 0003 0 0 0 00000000\neth0 0001A8C0 0 1 0 0 0 00FFFFFF")
    for selector in (NetSelector([NetFilter()]), functions()):
        [unit] = machine.find(selector).values()
        assert unit.danger == "eth0 carries the node's default route"


def card(machine: Machine, name: str) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    machine.interface(path, name)
    machine.link(f"/sys/devices/{path}/net/{name}/device", f"/sys/devices/{path}")


@pytest.mark.parametrize(("flags", "danger"), [("00000003", "ens1 carries the node's default route"), ("00200200", "")])
def test_a_default_route_may_be_one_of_ipv6(machine: Machine, flags: str, danger: str) -> None:
    card(machine, "ens1")
    nowhere = "0" * 32
    machine.write("/proc/1/net/ipv6_route", f"{nowhere} 00 {nowhere} 00 {'f' * 32} 00000400 2 0 {flags} ens1")
    [unit] = machine.find(NetSelector([NetFilter()])).values()
    assert unit.danger == danger


def test_an_interface_below_the_default_route_is_dangerous(machine: Machine) -> None:
    card(machine, "ens1")
    for above, below in (("bond0.7", "bond0"), ("bond0", "ens1")):
        machine.device(f"virtual/net/{above}", "net", type="1")
        machine.link(f"/sys/class/net/{above}/lower_{below}", f"/sys/class/net/{below}")
    machine.write("/proc/1/net/route", "Iface\nbond0.7 00000000 0101A8C0 0003 0 0 0 00000000")
    [unit] = machine.find(NetSelector([NetFilter()])).values()
    assert unit.danger == "ens1 carries the node's default route"


# FPGAs


def test_each_port_of_an_in_tree_fpga_is_a_device(machine: Machine) -> None:
    card = machine.pci("0000:3b:00.0", "8086:09c4", "120000", "dfl-pci", numa=1)
    region = machine.device(f"{card}/fpga_region/region0", "fpga_region")
    fme = machine.device(f"{region}/dfl-fme.0", "", "dfl-fme.0")
    machine.write(f"/sys/devices/{fme}/dfl-fme-region.2/fpga_region/region1/compat_id", "9926ab6d6c925a68")
    for number, afu in ((3, "d8424dc4a4a3c413f89e433683f9040b"), (10, "f" * 32)):
        machine.device(f"{region}/dfl-port.{number}", "", f"dfl-port.{number}", afu_id=afu)
    units = machine.find(FpgaSelector([FpgaFilter()]))
    assert {name: found(unit) for name, unit in units.items()} == {
        "fpga-0000:3b:00.0-port0": ["/dev/dfl-port.3"],
        "fpga-0000:3b:00.0-port1": ["/dev/dfl-port.10"],
    }
    assert [unit.fault for unit in units.values()] == ["", "its id is all ones: the firmware has crashed"]
    assert {unit.numa for unit in units.values()} == {(1,)}
    assert list(machine.find(FpgaSelector([FpgaFilter(afu=["d8424*"])]))) == ["fpga-0000:3b:00.0-port0"]
    assert list(machine.find(FpgaSelector([FpgaFilter(layout="xdma")]))) == []
    [whole] = machine.find(FpgaSelector([FpgaFilter(nodes=("fme", "port"), region=["9926*"])])).values()
    assert found(whole) == ["/dev/dfl-fme.0", "/dev/dfl-port.3", "/dev/dfl-port.10"]


def test_the_out_of_tree_layout_of_an_fpga_is_found(machine: Machine) -> None:
    card = machine.pci("0000:3b:00.0", "8086:09c4", "120000", "intel-fpga-pci")
    device = machine.device(f"{card}/fpga/intel-fpga-dev.0", "fpga")
    machine.device(f"{device}/intel-fpga-port.0", "", "intel-fpga-port.0", afu_id="d8424dc4")
    fme = machine.device(f"{device}/intel-fpga-fme.0", "", "intel-fpga-fme.0")
    machine.write(f"/sys/devices/{fme}/pr/interface_id", "69528db6")
    [unit] = machine.find(FpgaSelector([FpgaFilter(layout="opae", region=["69528db6"])])).values()
    assert found(unit) == ["/dev/intel-fpga-port.0"]


def test_a_card_with_a_management_function_is_one_device(machine: Machine) -> None:
    mgmt = machine.pci("0000:65:00.0", "10ee:5000", "120000", "xclmgmt")
    machine.write(f"/sys/devices/{mgmt}/mgmt_pf")
    machine.write(f"/sys/devices/{mgmt}/instance", "25856")
    user = machine.pci("0000:65:00.1", "10ee:5001", "120000", "xocl", numa=1)
    machine.write(f"/sys/devices/{user}/user_pf")
    machine.write(f"/sys/devices/{user}/rom.u.1/VBNV", "xilinx_u250_xdma")
    machine.write(f"/sys/devices/{user}/xmc.u.2/serial_num", "2130")
    machine.gpu(user, 1)
    machine.node("xclmgmt25856")
    machine.node("xfpga/dma.qdma.u25857.0")
    [unit] = machine.find(FpgaSelector([FpgaFilter()])).values()
    assert found(unit) == ["/dev/dri/renderD129", "/dev/xfpga/dma.qdma.u25857.0"]
    assert (unit.id, unit.facts["serial"], unit.facts["model"]) == ("fpga-0000:65:00.1", "2130", "xilinx_u250_xdma")
    [unit] = machine.find(FpgaSelector([FpgaFilter(nodes=("user", "mgmt"))])).values()
    assert found(unit) == ["/dev/dri/renderD129", "/dev/xclmgmt25856"]


def test_xdma_has_channels_and_a_control_node(machine: Machine) -> None:
    card = machine.pci("0000:65:00.0", "10ee:903f", "070001", "xdma")
    for name in ("xdma0_control", "xdma0_user", "xdma0_h2c_0", "xdma0_c2h_0"):
        machine.device(f"{card}/xdma/{name}", "xdma", name)
    [unit] = machine.find(FpgaSelector([FpgaFilter(layout="xdma")])).values()
    assert found(unit) == ["/dev/xdma0_c2h_0", "/dev/xdma0_h2c_0", "/dev/xdma0_user"]


# GPUs and disks


def test_a_gpu_is_known_by_its_address_and_amd_needs_kfd(machine: Machine) -> None:
    machine.gpu(machine.pci("0000:c1:00.0", "1002:740f", "038000", "amdgpu", numa=1), 1)
    machine.gpu(machine.pci("0000:00:02.0", "8086:56c0", "038000", "i915", numa=0), 0)
    machine.node("kfd")
    units = machine.find(DrmSelector([DrmFilter()]))
    assert {name: found(unit) for name, unit in units.items()} == {
        "0000:00:02.0": ["/dev/dri/renderD128", "/dev/dri/card0"],
        "0000:c1:00.0": ["/dev/dri/renderD129", "/dev/dri/card1", "/dev/kfd"],
    }
    [unit] = machine.find(DrmSelector([DrmFilter(driver=["i915", "xe"], nodes=("render",))])).values()
    assert (found(unit), unit.numa) == (["/dev/dri/renderD128"], (0,))


def test_a_gpu_that_is_divided_leaves_its_parts(machine: Machine) -> None:
    path = machine.pci("0000:00:02.0", "8086:56c0", "038000", "i915")
    machine.gpu(path, 0)
    machine.write(f"/sys/devices/{path}/sriov_numvfs", "2")
    assert machine.find(DrmSelector([DrmFilter()])) == {}


def test_a_partition_of_an_amd_gpu_is_a_device_of_its_own(machine: Machine) -> None:
    machine.gpu(machine.device("platform/amdgpu_xcp_30"), 2)
    machine.node("kfd")
    [unit] = machine.find(DrmSelector([DrmFilter()])).values()
    assert (unit.id, found(unit)) == ("amdgpu_xcp_30", ["/dev/dri/renderD130", "/dev/dri/card2", "/dev/kfd"])


@pytest.mark.parametrize("numbered", [True, False])
def test_partitions_of_an_amd_gpu_are_found_like_the_gpu_with_its_numa_node(machine: Machine, numbered: bool) -> None:
    """The kernel numbers platform devices as it finds them; the partition's own number is in the topology of KFD."""
    machine.gpu(machine.pci("0000:c1:00.0", "1002:74a1", "038000", "amdgpu", numa=1), 0)
    machine.gpu(machine.pci("0000:00:02.0", "8086:56c0", "038000", "i915", numa=0), 9)
    for partition in range(8):
        if partition:
            machine.gpu(machine.device(f"platform/amdgpu_xcp_{partition + 30}"), partition)
        location = 0xC100 | (partition << 28 if numbered else 0)
        properties = f"simd_count 152\ndomain 0\nlocation_id {location}\ndrm_render_minor {128 + partition}"
        machine.write(f"/sys/class/kfd/kfd/topology/nodes/{partition + 2}/properties", properties)
    machine.write("/sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 96\ndrm_render_minor 0")
    units = machine.find(DrmSelector([DrmFilter(vendor="1002", driver="amdgpu", address="0000:c1:*")]))
    assert sorted(units) == ["0000:c1:00.0", *(f"0000:c1:00.0-{partition}" for partition in range(1, 8))]
    last = units["0000:c1:00.0-7"]
    assert (found(last), last.numa, last.facts["pci"]) == (
        ["/dev/dri/renderD135", "/dev/dri/card7"],
        (1,),
        "0000:c1:00.0",
    )


def test_a_partition_that_kfd_does_not_know_still_has_its_driver(machine: Machine) -> None:
    machine.gpu(machine.device("platform/amdgpu_xcp_30"), 2)
    [unit] = machine.find(DrmSelector([DrmFilter(vendor="1002", driver="amdgpu")])).values()
    assert unit.id == "amdgpu_xcp_30"
    assert machine.find(DrmSelector([DrmFilter(vendor="8086")])) == {}


def test_a_namespace_is_known_by_the_serial_number_of_its_drive(machine: Machine) -> None:
    machine.nvme(machine.pci("0000:81:00.0", "144d:a80a", "010802", "nvme", numa=1), 3, "S4X")
    [unit] = machine.find(NvmeSelector([NvmeFilter(model=["Fast*"])])).values()
    assert (unit.id, found(unit), unit.numa) == ("nvme-S4X-n1", ["/dev/nvme3n1"], (1,))
    every = NvmeSelector([NvmeFilter(serial=["S4X"], nodes=("block", "generic", "control"))])
    assert found(*machine.find(every).values()) == ["/dev/nvme3n1", "/dev/ng3n1", "/dev/nvme3"]
    assert machine.find(NvmeSelector([NvmeFilter(address=["0000:82:*"])])) == {}


def test_a_controller_that_is_not_live_is_a_fault(machine: Machine) -> None:
    machine.nvme(machine.pci("0000:81:00.0", "144d:a80a", "010802", "nvme"), 0, "S4X", state="dead")
    assert machine.find(NvmeSelector([NvmeFilter()]))["nvme-S4X-n1"].fault == "the controller is dead"


def test_namespaces_of_several_paths_are_those_of_the_subsystem(machine: Machine) -> None:
    path = machine.pci("0000:81:00.0", "144d:a80a", "010802", "nvme")
    machine.device(f"{path}/nvme/nvme0", "nvme", "nvme0", serial="S4X", state="live")
    machine.device("virtual/nvme-subsystem/nvme-subsys0", "nvme-subsystem")
    machine.link("/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0", f"/sys/devices/{path}/nvme/nvme0")
    machine.device("virtual/nvme-subsystem/nvme-subsys0/nvme0n1", "block", "nvme0n1")
    assert list(machine.find(NvmeSelector([NvmeFilter()]))) == ["nvme-S4X-n1"]


# Whatever it is


def test_hardware_may_disappear_during_a_scan(machine: Machine) -> None:
    """Removed and made again as fast as can be, while every kind looks."""
    others = (RdmaSelector([RdmaFilter()]), DrmSelector([DrmFilter()]), FpgaSelector([FpgaFilter()]))
    selectors = (FTDI, functions(), NetSelector([NetFilter()]), *others)
    ended = threading.Event()

    def come_and_go() -> None:
        for number in range(25):
            path = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
            machine.adapter(path, "mlx5_0", 0)
            machine.interface(path, "ens1")
            machine.gpu(path, 0)
            usb = machine.usb("1-4", "0403:6001", "A", number=number)
            machine.usb_child(usb, "ttyUSB0", "tty")
            machine.unplug(usb)
            for link in ("net/ens1", "infiniband/mlx5_0", "drm/card0", "drm/renderD128"):
                machine.remove(f"/sys/class/{link}")
            machine.remove("/sys/bus/pci/devices/0000:3b:00.0")
            machine.remove(f"/sys/devices/{path}")
        ended.set()

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(come_and_go)
        while not (ended.is_set() or coming.done()):
            for selector in selectors:
                selector.find(machine.host)
        coming.result()
