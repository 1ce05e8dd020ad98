"""What import makes of other plugins' files finds the same devices on a machine, under the same ids, as they did."""

import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha1

import yaml
from click.testing import CliRunner
from tests.plugins.generic.machines import Machine

from plugwright.cli.main import cli
from plugwright.config import schema
from plugwright.model import Allocation, Device
from plugwright.sdk.plugin import Plugin


@dataclass(frozen=True, slots=True)
class Served:
    """A resource of an imported file, and the devices that it lists first."""

    plugin: Plugin
    devices: Mapping[str, Device]

    async def allocate(self, *names: str) -> Allocation:
        allocation = self.plugin.allocate([self.devices[name] for name in names])
        return allocation if isinstance(allocation, Allocation) else await allocation


async def served(machine: Machine, whose: str, file: object) -> dict[str, Served]:
    result = CliRunner().invoke(cli, ["import", "--from", whose, "-"], input=json.dumps(file))
    assert result.exit_code == 0, result.output
    host = {"root": str(machine.root), "deviceInfo": str(machine.root / "devinfo")}
    plugins = schema.read("imported", result.stdout + yaml.safe_dump({"host": host})).plugins()
    return {plugin.resource: Served(plugin, await listed(plugin)) for plugin in plugins}


async def listed(plugin: Plugin) -> dict[str, Device]:
    async with aclosing(plugin.discover()) as lists:  # type: ignore[type-var]
        return {device.id: device for device in await anext(lists)}  # type: ignore[call-overload]


def gdp_id(copy: int, *paths: str) -> str:
    return sha1(f"{copy}{''.join(paths)}".encode()).hexdigest()


class TestSriov:
    """One physical function with three virtual ones, one of them with a user-space driver."""

    def machine(self, machine: Machine) -> Machine:
        physical = machine.pci("0000:3b:00.0", "8086:1583", "020000", "i40e", numa=1)
        machine.interface(physical, "ens1f0")
        for index, driver in enumerate(("iavf", "iavf", "vfio-pci")):
            machine.virtual(physical, index, f"0000:3b:02.{index}", driver)
        machine.iommu("pci0000:00/0000:3b:02.2", "42")
        return machine

    async def test_each_pool_has_the_same_devices_as_before(self, machine: Machine) -> None:
        pools = [
            {"resourceName": "first", "selectors": {"pfNames": ["ens1f0#0"]}},
            {"resourceName": "dpdk", "selectors": {"drivers": ["vfio-pci"]}, "excludeTopology": True},
            {"resourceName": "rest", "selectors": [{"vendors": ["8086"], "devices": ["154c"]}]},
        ]
        made = await served(self.machine(machine), "sriov", {"resourceList": pools})
        assert {name: list(resource.devices) for name, resource in made.items()} == {
            "intel.com/first": ["0000:3b:02.0"],
            "intel.com/dpdk": ["0000:3b:02.2"],
            "intel.com/rest": ["0000:3b:02.1"],
        }
        assert made["intel.com/first"].devices["0000:3b:02.0"].numa == (1,)
        assert made["intel.com/dpdk"].devices["0000:3b:02.2"].numa == ()
        assert all(device.healthy for resource in made.values() for device in resource.devices.values())

    async def test_a_device_is_in_the_first_pool_alone(self, machine: Machine) -> None:
        machine.adapter("pci0000:00/0000:3b:02.1", "mlx5_1", 1, "Ethernet")
        pools = [
            {"resourceName": "rdma", "selectors": {"isRdma": True}},
            {"resourceName": "rest", "selectors": {"devices": ["154c"]}},
        ]
        made = await served(self.machine(machine), "sriov", {"resourceList": pools})
        assert list(made["intel.com/rdma"].devices) == ["0000:3b:02.1"]
        assert list(made["intel.com/rest"].devices) == ["0000:3b:02.0", "0000:3b:02.2"]

    async def test_an_adapter_that_a_pod_has_to_itself_is_not_lost(self, machine: Machine) -> None:
        path = "pci0000:00/0000:3b:02.1"
        machine.adapter(path, "mlx5_1", 1, "Ethernet")
        pool = {"resourceName": "rdma", "selectors": {"isRdma": True, "drivers": ["iavf"]}}
        plugin = (await served(self.machine(machine), "sriov", {"resourceList": [pool]}))["intel.com/rdma"].plugin
        machine.remove(f"/sys/devices/{path}/infiniband")  # as it looks in exclusive mode
        [device] = (await listed(plugin)).values()
        assert (device.id, device.healthy) == ("0000:3b:02.1", True)
        machine.remove(f"/sys/devices/{path}/driver")
        machine.bind(path, "vfio-pci")
        assert await listed(plugin) == {}

    async def test_a_container_gets_the_same_variables_as_before(self, machine: Machine) -> None:
        pool = {
            "resourceName": "dpdk",
            "selectors": {"drivers": ["vfio-pci"], "needVhostNet": True},
            "additionalInfo": {"*": {"token": "a", "more": "b"}, "0000:3b:02.2": {"token": "c"}},
        }
        for name in ("vhost-net", "net/tun"):
            machine.node(name)
        made = await served(self.machine(machine), "sriov", {"resourceList": [pool]})
        answer = await made["intel.com/dpdk"].allocate("0000:3b:02.2")
        assert [node.host_path for node in answer.nodes] == [
            "/dev/vfio/vfio",
            "/dev/vfio/42",
            "/dev/vhost-net",
            "/dev/net/tun",
        ]
        assert answer.env["PCIDEVICE_INTEL_COM_DPDK"] == "0000:3b:02.2"
        assert json.loads(answer.env["PCIDEVICE_INTEL_COM_DPDK_INFO"]) == {
            "0000:3b:02.2": {
                "generic": {"deviceID": "0000:3b:02.2"},
                "vfio": {"mount": "/dev/vfio/vfio", "dev-mount": "/dev/vfio/42"},
                "vhost": {"net-mount": "/dev/vhost-net", "tun-mount": "/dev/net/tun"},
                "extra": {"token": "c", "more": "b"},
            }
        }
        [written] = (machine.root / "devinfo").iterdir()
        assert written.name == "intel.com-dpdk-0000:3b:02.2-device.json"
        assert json.loads(written.read_text())["pci"]["pci-address"] == "0000:3b:02.2"


class TestRdma:
    """Two adapters, of which one is InfiniBand."""

    def machine(self, machine: Machine) -> Machine:
        for number, layer in enumerate(("InfiniBand", "Ethernet")):
            path = machine.pci(f"0000:0{number}:00.0", "15b3:1017", "020700", "mlx5_core", numa=number)
            machine.adapter(path, f"mlx5_{number}", number, layer)
            machine.interface(path, f"ib{number}")
        return machine

    async def test_every_unit_is_all_adapters(self, machine: Machine) -> None:
        shared = {"resourceName": "hca", "rdmaHcaMax": 12, "selectors": {"vendors": ["15b3"]}}
        made = (await served(self.machine(machine), "rdma", {"configList": [shared]}))["rdma/hca"]
        assert list(made.devices) == [str(number) for number in range(12)]
        assert {device.numa for device in made.devices.values()} == {()}
        answer = await made.allocate("11")
        assert {node.permissions for node in answer.nodes} == {"rwm"}
        assert sorted(node.host_path.rpartition("/")[2] for node in answer.nodes) == [
            "issm0", "issm1", "rdma_cm", "umad0", "umad1", "uverbs0", "uverbs1",
        ]  # fmt: skip

    async def test_selectors_narrow_it_down(self, machine: Machine) -> None:
        entries = [
            {"resourceName": "infiniband", "rdmaHcaMax": 1, "selectors": {"linkTypes": ["infiniband"]}},
            {"resourceName": "by_name", "rdmaHcaMax": 1, "devices": ["ib1"]},
            {"resourceName": "nothing", "rdmaHcaMax": 1, "devices": ["ib*"]},
        ]
        made = await served(self.machine(machine), "rdma", {"configList": entries})
        nodes = {
            name: [node.host_path for node in (await resource.allocate("0")).nodes]
            for name, resource in made.items()
            if resource.devices
        }
        assert sorted(nodes) == ["rdma/by_name", "rdma/infiniband"]
        assert "/dev/infiniband/uverbs0" in nodes["rdma/infiniband"]
        assert "/dev/infiniband/uverbs1" in nodes["rdma/by_name"]
        assert "/dev/infiniband/uverbs1" not in nodes["rdma/infiniband"]


async def test_smarter_has_a_resource_for_each_node(machine: Machine) -> None:
    machine.node("snd/timer")
    machine.node("ttyUSB1")
    file = [{"devicematch": "^snd$", "nummaxdevices": 3}, {"devicematch": "^ttyUSB[0-2]$", "nummaxdevices": 1}]
    made = await served(machine, "smarter", file)
    assert {name: list(resource.devices) for name, resource in made.items()} == {
        "smarter-devices/snd": ["0", "1", "2"],
        "smarter-devices/ttyUSB0": [],
        "smarter-devices/ttyUSB1": ["0"],
        "smarter-devices/ttyUSB2": [],
    }
    [node] = (await made["smarter-devices/snd"].allocate("1", "2")).nodes
    assert (node.host_path, node.container_path, node.permissions) == ("/dev/snd", "/dev/snd", "rw")


class TestGenericDevicePlugin:
    """What its vectors do not show."""

    async def one(self, machine: Machine, *groups: object) -> Served:
        file = {"domain": "lab.io", "devices": [{"name": "thing", "groups": groups}]}
        return (await served(machine, "gdp", file))["lab.io/thing"]

    async def test_usb_devices_of_one_group_are_one(self, machine: Machine) -> None:
        machine.usb("1-2", "0403:6001", "A", 4)
        machine.usb("1-3", "0403:6001", "B", 5)
        machine.usb_child(machine.usb("1-4", "1a86:7523", "", 6), "ttyUSB0", "tty")
        made = await self.one(
            machine,
            {"usb": [{"vendor": "0403", "product": "6001"}], "count": 2},
            {"usb": [{"vendor": "1a86", "product": "7523"}]},
        )
        both, single = ("/dev/bus/usb/001/004", "/dev/bus/usb/001/005"), "/dev/bus/usb/001/006"
        assert list(made.devices) == [gdp_id(0, *both), gdp_id(1, *both), gdp_id(0, single)]
        nodes = (await made.allocate(gdp_id(1, *both))).nodes
        assert [(node.host_path, node.permissions) for node in nodes] == [(path, "rw") for path in both]
        assert [node.host_path for node in (await made.allocate(gdp_id(0, single))).nodes] == [single]

    async def test_one_of_two_sticks_is_chosen_by_its_serial(self, machine: Machine) -> None:
        machine.usb("1-2", "0403:6001", "A*", 4)
        machine.usb("1-3", "0403:6001", "AB", 5)
        made = await self.one(machine, {"usb": [{"vendor": "0403", "product": "6001", "serial": "A*"}]})
        assert list(made.devices) == [gdp_id(0, "/dev/bus/usb/001/004")]

    async def test_pairs_are_made_letter_by_letter(self, machine: Machine) -> None:
        for name in ("v1", "v2", "v10", "c1", "c2", "c3"):
            machine.node(name)
        made = await self.one(machine, {"paths": [{"path": "/dev/v*"}, {"path": "/dev/c*"}]})
        pairs = (("/dev/v1", "/dev/c1"), ("/dev/v10", "/dev/c2"), ("/dev/v2", "/dev/c3"))
        assert list(made.devices) == [gdp_id(0, *pair) for pair in pairs]

    async def test_a_match_is_used_again_up_to_its_limit(self, machine: Machine) -> None:
        for name in ("v0", "v1", "v2", "one"):
            machine.node(name)
        made = await self.one(machine, {"paths": [{"path": "/dev/v*"}, {"path": "/dev/one", "limit": 2}]})
        assert list(made.devices) == [gdp_id(0, f"/dev/v{number}", "/dev/one") for number in range(2)]

    async def test_an_optional_path_may_be_absent(self, machine: Machine) -> None:
        machine.node("v0")
        for optional, found in ((True, [gdp_id(0, "/dev/v0")]), (False, [])):
            paths = [{"path": "/dev/v*"}, {"path": "/dev/absent", "optional": optional}]
            assert list((await self.one(machine, {"paths": paths})).devices) == found

    async def test_patterns_mean_the_same(self, machine: Machine) -> None:
        for name in ("t1", "ta", "t*", "t!", "t{x}", "u1"):
            machine.node(name)
        wanted = {"/dev/t[^0-9a]": ["t!", "t*"], "/dev/t[!a]": ["t!", "ta"], r"/dev/t\*": ["t*"], "/dev/t{x}": ["t{x}"]}
        for pattern, names in wanted.items():
            made = await self.one(machine, {"paths": [{"path": pattern}]})
            assert list(made.devices) == [gdp_id(0, f"/dev/{name}") for name in names], pattern

    async def test_a_directory_in_the_container_may_have_braces(self, machine: Machine) -> None:
        machine.node("v0")
        made = await self.one(machine, {"paths": [{"path": "/dev/v*", "mountPath": "/dev/{id}/"}]})
        [node] = (await made.allocate(*made.devices)).nodes
        assert node.container_path == "/dev/{id}/v0"
