"""What claims select GPUs by: names and types of ours and of NVIDIA's driver, within the limits of the API."""

import pytest
from msgspec.structs import replace
from tests.plugins.nvidia.harness import listing, machine, resource
from tests.plugins.nvidia.mps.node import gpu

from plugwright.attributes import Consumption, Version
from plugwright.model import Device
from plugwright.plugins.nvidia import gpu_attributes, sharing, simulated_machines
from plugwright.plugins.nvidia.config import MigStrategy, NvidiaConfig, NvidiaPattern
from plugwright.plugins.nvidia.driver import MigDevice
from plugwright.plugins.nvidia.simulated_machines import MACHINES

GIB = 2**30
NVIDIA = "gpu.nvidia.com"
STANDARD = "resource.kubernetes.io"
TYPES = {
    "productName": str,
    "brand": str,
    "architecture": str,
    "type": str,
    "uuid": str,
    "cudaComputeCapability": Version,
    "driverVersion": Version,
    "cudaDriverVersion": Version,
}


async def devices_of(name: str) -> list[Device]:
    """The MIG devices of a machine that has some, else its GPUs."""
    parts = NvidiaConfig(mig=MigStrategy.MIXED, select=NvidiaPattern(profile="*"))
    async with listing(resource(machine(name), parts if name.endswith("-mig") else NvidiaConfig())) as lists:
        return list((await lists.first()).values())


@pytest.mark.parametrize("name", sorted(MACHINES))
async def test_every_device_has_the_names_and_types_of_nvidias_driver(name: str) -> None:
    for device in await devices_of(name):
        for attribute, kind in TYPES.items():
            assert type(device.attributes[f"{NVIDIA}/{attribute}"]) is kind
        assert isinstance(device.attributes[f"{STANDARD}/pcieRoot"], str)
        assert isinstance(device.attributes[f"{STANDARD}/pciBusID"], str)
        assert device.attributes[f"{STANDARD}/numaNode"] == device.numa[0]


@pytest.mark.parametrize("name", sorted(MACHINES))
async def test_every_device_leaves_room_for_its_id(name: str) -> None:
    for device in await devices_of(name):
        published = [value for value in device.attributes.values() if isinstance(value, str | int)]
        assert len(published) + len(device.capacity) < 32


async def test_a_gpu_has_our_attributes_beside_those_of_nvidias_driver() -> None:
    [device] = await devices_of("h200")
    assert dict(device.attributes) == {
        "index": "0",
        "model": "NVIDIA H200",
        "uuid": device.id,
        "gpu": device.id,
        "pci": "0000:5d:00.0",
        "compute_mode": "Default",
        "notes": {},
        f"{NVIDIA}/type": "gpu",
        f"{NVIDIA}/uuid": device.id,
        f"{NVIDIA}/productName": "NVIDIA H200",
        f"{NVIDIA}/brand": "Nvidia",
        f"{NVIDIA}/architecture": "Hopper",
        f"{NVIDIA}/cudaComputeCapability": "9.0.0",
        f"{NVIDIA}/driverVersion": "580.95.5",
        f"{NVIDIA}/cudaDriverVersion": "13.0.0",
        f"{STANDARD}/pciBusID": "0000:5d:00.0",
        f"{STANDARD}/pcieRoot": "pci0000:5d",
        f"{STANDARD}/numaNode": 0,
    }
    assert {name: capacity.value for name, capacity in device.capacity.items()} == {
        "memory": 143771 * 2**20,
        "multiprocessors": 132,
        f"{NVIDIA}/memory": 143771 * 2**20,
    }
    assert (device.allow_multiple, device.consumes) == (False, ())


async def test_a_mig_device_has_its_profile_and_its_parent() -> None:
    first = next(device for device in await devices_of("dgx-a100-mig") if device.attributes["index"] == "3:0")
    assert first.attributes[f"{NVIDIA}/type"] == "mig"
    assert first.attributes[f"{NVIDIA}/profile"] == first.attributes["profile"] == "2g.10gb"
    assert first.attributes[f"{NVIDIA}/parentUUID"] == first.attributes["gpu"] != first.id
    assert first.attributes[f"{NVIDIA}/uuid"] == first.id
    assert {name: capacity.value for name, capacity in first.capacity.items()} == {
        "memory": 10 * GIB,
        "multiprocessors": 28,
        f"{NVIDIA}/memory": 10 * GIB,
        f"{NVIDIA}/multiprocessors": 28,
        f"{NVIDIA}/copyEngines": 2,
    }


async def test_gpus_at_one_host_bridge_have_one_pcie_root() -> None:
    roots = [device.attributes[f"{STANDARD}/pcieRoot"] for device in await devices_of("dgx-a100")]
    assert roots == ["pci0000:07", "pci0000:07", "pci0000:47", "pci0000:47"] + ["pci0000:87"] * 2 + ["pci0000:b7"] * 2
    assert len({device.attributes[f"{STANDARD}/pcieRoot"] for device in await devices_of("hgx-h100")}) == 8


def consumption(name: str, index: str) -> Consumption:
    """Of a GPU, `0`, or of a MIG device, `0:1`."""
    number, _, part = index.partition(":")
    card = simulated_machines.load(name).gpus[int(number)]
    [taken] = gpu_attributes.shared_counters(sharing.whole_device(card, card.mig[int(part)] if part else None))
    return taken


def test_mig_devices_take_of_the_counters_of_their_card() -> None:
    first, other = consumption("dgx-a100-mig", "2:0"), consumption("dgx-a100-mig", "2:1")
    assert first.of == other.of
    assert first.of != consumption("dgx-a100-mig", "3:0").of
    assert first.of.counters == {"memory": 40 * GIB, "multiprocessors": 108}
    assert first.counters == other.counters == {"memory": 20 * GIB, "multiprocessors": 42}


def test_a_card_as_a_whole_and_its_mig_devices_exclude_each_other() -> None:
    whole, part = consumption("hgx-h100-mig", "0"), consumption("hgx-h100-mig", "0:6")
    assert whole.of == part.of
    assert whole.counters == whole.of.counters
    assert all(amount > 0 for amount in part.counters.values())


@pytest.mark.parametrize("name", [name for name in sorted(MACHINES) if name.endswith("-mig")])
def test_all_mig_devices_that_exist_fit_into_their_card(name: str) -> None:
    for card in simulated_machines.load(name).gpus:
        parts = [gpu_attributes.shared_counters(sharing.whole_device(card, mig)) for mig in card.mig]
        for counter, total in parts[0][0].of.counters.items() if parts else ():
            assert sum(taken.counters[counter] for [taken] in parts) <= total


def test_compute_instances_of_one_gpu_instance_share_its_memory() -> None:
    parts = tuple(
        MigDevice(
            uuid=f"MIG-{number}",
            index=number,
            profile="1c.3g.40gb",
            memory=40 * GIB,
            gpu_instance=1,
            compute_instance=number,
            multiprocessors=16,
        )
        for number in range(3)
    )
    card = replace(gpu(0, memory=40 * GIB), mig_enabled=True, mig=parts, multiprocessors=40)
    [taken] = gpu_attributes.shared_counters(sharing.whole_device(card, parts[0]))
    assert taken.counters == {"memory": 40 * GIB // 3, "multiprocessors": 16}
    assert taken.of.counters == {"memory": 40 * GIB, "multiprocessors": 48}


def test_a_gpu_without_mig_devices_has_no_counters() -> None:
    assert gpu_attributes.shared_counters(sharing.whole_device(gpu(0))) == ()
    assert gpu_attributes.shared_counters(sharing.whole_device(replace(gpu(0), mig_enabled=True))) == ()


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("535.104.05", "535.104.5"),
        ("580.159.04", "580.159.4"),
        ("570.86", "570.86.0"),
        ("13.0", "13.0.0"),
        ("550.54.15-vgpu", "550.54.15"),
        ("simulated", None),
        ("", None),
    ],
)
def test_a_version_is_made_semantic(text: str, made: str | None) -> None:
    assert gpu_attributes.version(text) == made


def test_what_is_not_known_is_left_out() -> None:
    bare = sharing.whole_device(replace(gpu(0, memory=0), model="", capability=(0, 0)))
    made = gpu_attributes.device_attributes(bare, "", "")
    assert set(made) == {"index", "uuid", "gpu", "compute_mode", f"{NVIDIA}/type", f"{NVIDIA}/uuid"}
    assert gpu_attributes.whole_capacity(bare) == {}


def test_a_long_name_is_cut_off_and_costs_no_device() -> None:
    model = "é" * 63
    made = gpu_attributes.device_attributes(sharing.whole_device(replace(gpu(0), model=model)), "580.1", "13.0")
    assert made["model"] == made[f"{NVIDIA}/productName"] == "é" * 32
    Device("x", attributes=made)
