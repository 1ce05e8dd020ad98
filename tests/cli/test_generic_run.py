"""One file serves many families of devices at once: on a fake machine, and on this one."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.processes import Node
from tests.observed_kubelet import ObservedKubelet
from tests.plugins.generic.machines import Machine

from plugwright import DeviceNode, Mount

EVERYTHING = """
resources:
  - name: example.com/fuse
    paths: [/dev/fuse]
    count: 10
  - name: example.com/serial
    usb: {{vendor: "0403", nodes: [tty]}}
    env: {{SERIAL_PORT: "{{node}}"}}
    remap: {{"/dev/ttyUSB*": "/dev/modem{{index}}"}}
  - name: intel.com/sriov_dpdk
    pci: {{pf: "ens1f0#0-1", driver: vfio-pci}}
  - name: example.com/hca
    rdma: {{linkType: infiniband}}
    health: {{link: up, every: 0.05}}
  - name: example.com/nic
    net: {{name: "ens2*"}}
    env: {{INTERFACE: "{{interface}}"}}
  - name: example.com/fpga
    fpga: {{layout: dfl}}
  - name: amd.com/gpu
    drm: {{vendor: "1002"}}
  - name: example.com/disk
    nvme: {{}}
  - name: example.com/studio
    groups: [{{paths: [/dev/video*, /dev/snd/controlC*]}}]
  - name: example.com/licence
    paths: [{{path: /opt/licence, readOnly: true}}]
  - name: example.com/absent
    usb: {{vendor: "dead"}}
host: {{root: {root}, deviceInfo: {info}}}
"""


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Bound, so that no other process can listen there, and not listened on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with a bit of everything."""
    made = Machine(tmp_path / "machine")
    for name in ("fuse", "kfd", "video0", "video1", "snd/controlC0", "snd/controlC1"):
        made.node(name)
    made.write("/proc/2/comm", "kthreadd")
    made.write("/opt/licence")
    made.usb_child(made.usb("1-4", "0403:6001", "A50285BI"), "ttyUSB0", "tty")
    physical = made.pci("0000:3b:00.0", "8086:1572", "020000", "i40e", numa=1)
    made.interface(physical, "ens1f0")
    for index in range(3):
        made.iommu(made.virtual(physical, index, f"0000:3b:02.{index}", "vfio-pci"), str(60 + index))
    made.adapter(made.pci("0000:5e:00.0", "15b3:101b", "020700", "mlx5_core", numa=0), "mlx5_0", 0)
    other = made.pci("0000:19:00.0", "8086:1572", "020000", "i40e", numa=0)
    made.link(f"/sys/devices/{made.interface(other, 'ens2')}/device", f"/sys/devices/{other}")
    region = made.device(
        f"{made.pci('0000:af:00.0', '8086:09c4', '120000', 'dfl-pci')}/fpga_region/region0", "fpga_region"
    )
    made.device(f"{region}/dfl-port.0", "", "dfl-port.0", afu_id="d8424dc4")
    made.gpu(made.pci("0000:c1:00.0", "1002:740f", "038000", "amdgpu", numa=1), 0)
    made.nvme(made.pci("0000:81:00.0", "144d:a80a", "010802", "nvme"), 0, "S4X")
    return made


@pytest.mark.usefixtures("inotify")
async def test_eleven_resources_of_nine_kinds_are_served_at_once(
    machine: Machine, root: Path, kubelet: ObservedKubelet, tmp_path: Path
) -> None:
    node = Node(root)
    node.config.parent.mkdir()
    node.config.write_text(EVERYTHING.format(root=machine.root, info=tmp_path / "info"))
    async with node.daemon():
        expected = {
            "example.com/fuse": ["fuse", *(f"fuse::{n}" for n in range(1, 10))],
            "example.com/serial": ["usb-0403-6001-A50285BI"],
            "intel.com/sriov_dpdk": ["0000:3b:02.0", "0000:3b:02.1"],
            "example.com/hca": ["rdma-0000:5e:00.0"],
            "example.com/nic": ["net-0000:19:00.0"],
            "example.com/fpga": ["fpga-0000:af:00.0-port0"],
            "amd.com/gpu": ["0000:c1:00.0"],
            "example.com/disk": ["nvme-S4X-n1"],
            "example.com/studio": ["video0-snd-controlC0", "video1-snd-controlC1"],
            "example.com/licence": ["opt-licence"],
        }
        for name, ids in expected.items():
            endpoint = await kubelet.endpoint(name, len(ids))
            assert list(endpoint.devices) == ids
            assert all(device.healthy for device in endpoint.devices.values()), name
        await kubelet.until(lambda kubelet: kubelet.endpoints["example.com/absent"].lists)
        given = {name: (await kubelet.endpoints[name].client.allocate(ids[:2]))[0] for name, ids in expected.items()}
        await the_serial_port_is_replugged(machine, kubelet)
        machine.write("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
        await kubelet.health("example.com/hca", "rdma-0000:5e:00.0", "Unhealthy")
        said = await node.ask("status", "--output", "json")
        assert "link down: port 1" in said.out
    assert given["example.com/fuse"].nodes == (DeviceNode("/dev/fuse"),)
    assert given["example.com/serial"].nodes == (DeviceNode("/dev/ttyUSB0", "/dev/modem0"),)
    assert given["example.com/serial"].env == {"SERIAL_PORT": "/dev/modem0"}
    assert given["intel.com/sriov_dpdk"].env["PCIDEVICE_INTEL_COM_SRIOV_DPDK"] == "0000:3b:02.0,0000:3b:02.1"
    assert [node.host_path for node in given["intel.com/sriov_dpdk"].nodes] == [
        "/dev/vfio/vfio", "/dev/vfio/60", "/dev/vfio/61",
    ]  # fmt: skip
    assert given["example.com/hca"].nodes[0].host_path == "/dev/infiniband/uverbs0"
    assert given["example.com/nic"].env == {"INTERFACE": "ens2"}
    assert given["example.com/licence"].mounts == (Mount("/opt/licence", read_only=True),)
    assert kubelet.endpoints["amd.com/gpu"].devices["0000:c1:00.0"].numa == (1,)
    assert len(list((tmp_path / "info").iterdir())) == 2


async def the_serial_port_is_replugged(machine: Machine, kubelet: ObservedKubelet) -> None:
    """The daemon hears nothing from this machine's kernel; it sees the nodes come and go."""
    machine.unplug("pci0000:00/0000:00:14.0/usb1/1-4")
    await kubelet.health("example.com/serial", "usb-0403-6001-A50285BI", "Unhealthy")
    machine.usb_child(machine.usb("1-4", "0403:6001", "A50285BI", number=11), "ttyUSB1", "tty")
    await kubelet.health("example.com/serial", "usb-0403-6001-A50285BI", "Healthy")


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="this machine has no /dev/fuse")
async def test_the_devices_of_this_machine_are_served(root: Path, kubelet: ObservedKubelet, tmp_path: Path) -> None:
    wanted = {
        "fuse": "/dev/fuse",
        "tun": "/dev/net/tun",
        "kvm": "/dev/kvm",
        "null": "/dev/null",
        "loop": "/dev/loop[0-7]",
    }
    node = Node(root)
    node.config.parent.mkdir()
    lines = [f"  - {{name: example.com/{name}, paths: ['{path}'], count: 2}}" for name, path in wanted.items()]
    node.config.write_text("\n".join(["resources:", *lines]))
    async with node.daemon():
        for name, path in wanted.items():
            if Path(path).exists():
                endpoint = await kubelet.endpoint(f"example.com/{name}", 2)
                [answer] = await endpoint.client.allocate(list(endpoint.devices)[:1])
                assert answer.nodes == (DeviceNode(path),)
        if Path("/dev/loop0").exists() and os.geteuid() == 0:
            loop = await kubelet.endpoint("example.com/loop", 2)
            assert "loop0" in loop.devices


async def test_a_health_check_may_use_https(root: Path, kubelet: ObservedKubelet, unused_port: int) -> None:
    node = Node(root)
    node.config.parent.mkdir()
    check = f"{{http: 'https://127.0.0.1:{unused_port}/{{id}}'}}"
    node.config.write_text(f"resources: [{{name: example.com/null, paths: [/dev/null], health: {check}}}]")
    async with node.daemon():
        await kubelet.endpoint("example.com/null", 1)
        said = await node.ask("status")
    assert f"https://127.0.0.1:{unused_port}/null: [Errno 111] Connection refused" in said.out
