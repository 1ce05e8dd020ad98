"""Mock devices, which need no hardware: for trials, tests, and rehearsals of hardware failures.

They have the properties of real devices (model, memory, NUMA nodes, links to each other), and commands make them fail,
recover, appear and disappear while pods hold them.
"""

import json
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from plugwright.errors import ConfigError, PluginError
from plugwright.model import Allocation, Device, DeviceNode, Mount, some
from plugwright.sdk import plugin, sysfs
from plugwright.sdk.device_family import (
    DeviceFamily,
    FamilyContext,
    FamilySettings,
    ResourceEntry,
    byte_size,
)
from plugwright.sdk.device_nodes import KeptAllocations
from plugwright.sdk.host_mounts import FromSettings, HostMount
from plugwright.sdk.plugin import Plugin
from plugwright.system import files
from plugwright.system.blocking import BlockingCalls
from plugwright.system.latest import Latest

__all__ = ["FAMILY", "Links", "Mock", "MockFamily", "MockOptions", "linked"]

_LINK = "NV1"
_FACTS_LIMIT = 30.0  # seconds
_NODE = "/dev/null"  # the host file behind a mock device node


class Links(StrEnum):
    """The pattern of links between devices."""

    NONE = "none"
    PAIRS = "pairs"
    RING = "ring"
    FULL = "full"


class MockOptions(FamilySettings, frozen=True):
    """Simulated devices.

    `numa`: number of NUMA nodes over which the devices are spread, 0 for none. `facts`: a directory of the host in
    which each device gets a file for its containers to read.
    """

    count: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 8
    model: str = "Mock"
    memory: int | str = "16Gi"
    numa: Annotated[int, msgspec.Meta(ge=0, le=64)] = 1
    links: Links = Links.NONE
    seed: str = "plugwright"
    nodes: bool = False
    facts: str = ""


class _MockDevice(msgspec.Struct, frozen=True):
    """The number of a device, and its fault, if any."""

    index: int
    fault: str = ""
    code: str = ""


class Mock(Plugin):
    """`options.count` devices; `fail`, `recover`, `add` and `remove` change them at run time."""

    simulates = ("fail", "recover", "add", "remove")

    def __init__(self, resource: str, options: MockOptions | None = None) -> None:
        self.resource = resource
        self._options = options or MockOptions()
        self._memory = byte_size(self._options.memory)
        self._facts = Path(self._options.facts) if self._options.facts else None
        if self._facts is not None:
            if not self._facts.is_absolute():
                raise ConfigError(f"facts must be an absolute path, got {self._options.facts!r}")
            Mount(str(self._facts))
        Allocation(env={"MOCK_MODEL": self._options.model})  # rejects a model that no container could get
        self._device("mock", _MockDevice(0), ())  # and one by which no claim could select
        devices = {self._generated_id(index): _MockDevice(index) for index in range(self._options.count)}
        self._devices = Latest(devices)
        self._answers = KeptAllocations()
        self._writing = BlockingCalls(f"facts of {resource}", _FACTS_LIMIT, most_hung=1)

    async def discover(self) -> AsyncIterator[list[Device]]:
        async for mocks in self._devices.changes():
            links = linked(self._options.links, list(mocks))
            devices = [self._device(device_id, mock, links[device_id]) for device_id, mock in mocks.items()]
            if self._facts is not None:
                await self._writing.run(partial(self._write_facts, self._facts, devices))
            yield devices

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return self.allocate_now(devices)

    def allocate_now(self, devices: Sequence[Device]) -> Allocation:
        device_ids = [device.id for device in devices]
        answer = self._answers.get(device_ids)
        if answer is None:
            answer = self._allocation(devices)
            self._answers.keep(device_ids, answer)
        return answer

    def _allocation(self, devices: Sequence[Device]) -> Allocation:
        facts = self._facts
        return Allocation(
            env={
                "MOCK_VISIBLE_DEVICES": ",".join(device.id for device in devices),
                "MOCK_MODEL": self._options.model,
                "MOCK_MEMORY": str(self._memory),
            },
            mounts=[] if facts is None else [self._facts_mount(facts, device) for device in devices],
            nodes=[_node(device) for device in devices] if self._options.nodes else [],
        )

    async def prefer(self, available: Sequence[Device], required: Sequence[Device], size: int) -> Sequence[Device]:
        """Prefers devices linked to each other; without links, those on the fewest NUMA nodes."""
        if self._options.links is Links.NONE:
            return plugin.fewest_numa_nodes(available, required, size)
        chosen = list(required)
        free = {device.id: device for device in available if device not in chosen}
        while free and len(chosen) < size:
            # The first device has the most links to possible partners.
            partners = {device.id for device in chosen} or set(free if size > 1 else ())
            best = max(free.values(), key=lambda device: len(partners & _links_of(device)))
            chosen.append(free.pop(best.id))
        return chosen

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        device_id, devices = arguments.get("id", ""), dict(self._devices.value)
        if name == "add":
            index = max((mock.index for mock in devices.values()), default=-1) + 1
            device_id = device_id or self._generated_id(index)
            self._check_new(device_id)
            devices[device_id] = _MockDevice(index)
            done = "was added"
        elif name in ("fail", "recover", "remove") and device_id not in devices:
            raise PluginError(f"{self.resource} has no device {device_id!r} (it has: {some(devices)})")
        elif name == "fail":
            reason = arguments.get("reason") or "made to fail"
            failed = Device(device_id, "Unhealthy", reason, code=arguments.get("code") or "mock")
            devices[device_id] = replace(devices[device_id], fault=failed.reason, code=failed.code)
            done = f"is now Unhealthy: {failed.reason}"
        elif name == "recover":
            devices[device_id] = replace(devices[device_id], fault="", code="")
            done = "is now Healthy"
        elif name == "remove":
            del devices[device_id]
            done = "was removed: Unhealthy, and listed until no pod can hold it"
        else:
            raise PluginError(f"{self.resource} takes no command {name!r}")
        self._devices.publish(devices)
        self._answers.clear()  # a device that is removed and added again has another number
        return f"{device_id} of {self.resource} {done}"

    def _generated_id(self, index: int) -> str:
        """An id from the seed alone, the same on every start."""
        digest = zlib.crc32(f"{self._options.seed}/{self.resource}/{index}".encode())
        return f"mock-{index}-{digest:08x}"

    def _device(self, device_id: str, mock: _MockDevice, links: Iterable[str]) -> Device:
        # Neighbours share a NUMA node, as on real boards; devices added later are on the last node.
        numa, count = self._options.numa, max(1, self._options.count)
        node = min(mock.index * numa // count, numa - 1)
        attributes = {"index": mock.index, "model": self._options.model, "links": dict.fromkeys(links, _LINK)}
        return Device(
            device_id,
            health="Unhealthy" if mock.fault else "Healthy",
            reason=mock.fault,
            code=mock.code,
            numa=[node] if numa else [],
            attributes=attributes | {sysfs.NUMA_ATTRIBUTE: node} if numa else attributes,
            capacity={"memory": self._memory},
        )

    def _write_facts(self, facts: Path, devices: Iterable[Device]) -> None:
        for device in devices:
            _write_facts(self._facts_file(facts, device), device)

    def _facts_file(self, facts: Path, device: Device) -> Path:
        return facts / self.resource.replace("/", "_") / f"{device.id}.json"

    def _facts_mount(self, facts: Path, device: Device) -> Mount:
        return Mount(str(self._facts_file(facts, device)), f"/run/mock/{device.id}.json", read_only=True)

    def _check_new(self, device_id: str) -> None:
        if device_id in self._devices.value:
            raise PluginError(f"{self.resource} has {device_id!r} already")
        if not device_id.replace("-", "").replace("_", "").replace(".", "").isalnum() or device_id.startswith("."):
            raise PluginError(f"a mock device's id must have letters, digits, '-', '_' and '.' only, got {device_id!r}")
        Device(device_id)  # rejects ids that no device can have


class MockFamily(DeviceFamily[MockOptions]):
    settings = MockOptions
    mounts = (HostMount(path=FromSettings(("mock.facts",)), written=True),)

    def plugin(self, entry: ResourceEntry[MockOptions], context: FamilyContext) -> Mock:
        return Mock(entry.name, entry.settings)

    def redirected(self, entry: ResourceEntry[MockOptions], directory: Path) -> ResourceEntry[MockOptions]:
        facts = entry.settings.facts
        moved = msgspec.structs.replace(entry.settings, facts=f"{directory}{facts}" if facts else "")
        return replace(entry, settings=moved)


FAMILY = MockFamily()


def linked(links: Links, ids: Sequence[str]) -> dict[str, list[str]]:
    """The linked devices of each device; links are symmetric."""
    count = len(ids)
    offsets = {Links.NONE: (), Links.RING: (-1, 1), Links.FULL: range(1, count)}
    by_id = {}
    for index, device_id in enumerate(ids):
        if links is Links.PAIRS:
            partners = [index ^ 1] if index ^ 1 < count else []
        else:
            partners = sorted({(index + offset) % count for offset in offsets[links]} - {index})
        by_id[device_id] = [ids[partner] for partner in partners]
    return by_id


def _write_facts(path: Path, device: Device) -> None:
    """Writes a device's file, which stays when the daemon ends: the kubelet mounts it again at container restarts."""
    own = {name: value for name, value in device.attributes.items() if name != sysfs.NUMA_ATTRIBUTE}
    capacity = {name: capacity.value for name, capacity in device.capacity.items()}
    facts = {"id": device.id, "numa": list(device.numa), **own, **capacity}
    files.write_atomically(path, json.dumps(facts, indent=2) + "\n", sync=False)


def _node(device: Device) -> DeviceNode:
    return DeviceNode(_NODE, f"/dev/mock{device.attributes['index']}")


def _links_of(device: Device) -> set[str]:
    links = device.attributes["links"]
    return set(links) if isinstance(links, Mapping) else set()
