"""Devices that do not exist: for trying things out, for tests, and for rehearsing what happens when hardware fails.

They have what real ones have (model, memory, NUMA nodes, links to each other) and can be made to fail, recover,
appear and vanish while pods hold them.
"""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from plugwright.errors import PluginError
from plugwright.model import Allocation, Device, DeviceNode, Mount, some
from plugwright.sdk import plugin
from plugwright.sdk.plugin import Plugin
from plugwright.system import files

__all__ = ["Links", "Mock", "MockOptions", "linked"]

_LINK = "NV1"
_HARMLESS = "/dev/null"  # what a mock device node is inside the container


class Links(StrEnum):
    """Which devices are linked to each other."""

    NONE = "none"
    PAIRS = "pairs"
    RING = "ring"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class MockOptions:
    """`numa`: over how many NUMA nodes the devices are spread, 0 for none. `facts`: a directory of the host."""

    count: int = 8
    model: str = "Mock"
    memory: int = 16 * 2**30
    numa: int = 1
    links: Links = Links.NONE
    seed: str = "plugwright"
    nodes: bool = False
    facts: Path | None = None


class Mock(Plugin):
    """`options.count` devices; `fail`, `recover`, `add` and `remove` change them at run time."""

    def __init__(self, resource: str, options: MockOptions | None = None) -> None:
        self.resource = resource
        self._settings = options or MockOptions()
        self._indexes = {self._made_up_id(index): index for index in range(self._settings.count)}
        self._faults: dict[str, str] = {}
        self._changed = asyncio.Event()
        Allocation(env={"MOCK_MODEL": self._settings.model})  # what could never be handed out is refused now
        if self._settings.facts is not None:
            Mount(str(self._settings.facts))

    async def discover(self) -> AsyncIterator[list[Device]]:
        while True:
            self._changed.clear()
            links = linked(self._settings.links, list(self._indexes))
            devices = [self._device(each, index, links[each]) for each, index in self._indexes.items()]
            if self._settings.facts is not None:
                for device in devices:
                    _write_facts(self._facts_file(self._settings.facts, device), device)
            yield devices
            await self._changed.wait()

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        facts = self._settings.facts
        return Allocation(
            env={
                "MOCK_VISIBLE_DEVICES": ",".join(device.id for device in devices),
                "MOCK_MODEL": self._settings.model,
                "MOCK_MEMORY": str(self._settings.memory),
            },
            mounts=[] if facts is None else [self._facts_mount(facts, device) for device in devices],
            nodes=[self._node(device) for device in devices] if self._settings.nodes else [],
        )

    async def prefer(self, available: Sequence[Device], required: Sequence[Device], size: int) -> Sequence[Device]:
        """Devices that are linked to each other; where nothing is linked, those on the fewest NUMA nodes."""
        if self._settings.links is Links.NONE:
            return plugin.fewest_numa_nodes(available, required, size)
        chosen = list(required)
        free = {device.id: device for device in available if device not in chosen}
        while free and len(chosen) < size:
            # The first one is the one with the most links to those it could be given with.
            company = {device.id for device in chosen} or set(free if size > 1 else ())
            best = max(free.values(), key=lambda device: len(company & _links_of(device)))
            chosen.append(free.pop(best.id))
        return chosen

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        device_id = arguments.get("id", "")
        match name:
            case "fail":
                self._check_known(device_id)
                self._faults[device_id] = Device(
                    device_id, "Unhealthy", arguments.get("reason") or "made to fail"
                ).reason
            case "recover":
                self._check_known(device_id)
                self._faults.pop(device_id, None)
            case "add":
                device_id = self._add(device_id)
            case "remove":
                self._check_known(device_id)
                del self._indexes[device_id]
                self._faults.pop(device_id, None)
            case _:
                raise PluginError(f"{self.resource} takes no command {name!r}")
        self._changed.set()
        return f"{device_id} of {self.resource}: {name}"

    def _made_up_id(self, index: int) -> str:
        """The same for the same seed, on every start; another seed makes other ids."""
        digest = zlib.crc32(f"{self._settings.seed}/{self.resource}/{index}".encode())
        return f"mock-{index}-{digest:08x}"

    def _device(self, device_id: str, index: int, links: Iterable[str]) -> Device:
        fault = self._faults.get(device_id, "")
        return Device(
            device_id,
            health="Unhealthy" if fault else "Healthy",
            reason=fault,
            numa=self._nodes_of(index),
            attributes={
                "index": index,
                "model": self._settings.model,
                "memory": self._settings.memory,
                "links": dict.fromkeys(links, _LINK),
            },
        )

    def _nodes_of(self, index: int) -> list[int]:
        """Neighbours share a node, as they do on real boards; what is added later is on the last one."""
        numa, count = self._settings.numa, max(1, self._settings.count)
        return [min(index * numa // count, numa - 1)] if numa else []

    def _node(self, device: Device) -> DeviceNode:
        return DeviceNode(_HARMLESS, f"/dev/mock{device.attributes['index']}")

    def _facts_file(self, facts: Path, device: Device) -> Path:
        return facts / self.resource.replace("/", "_") / f"{device.id}.json"

    def _facts_mount(self, facts: Path, device: Device) -> Mount:
        return Mount(str(self._facts_file(facts, device)), f"/run/mock/{device.id}.json", read_only=True)

    def _add(self, device_id: str) -> str:
        index = max(self._indexes.values(), default=-1) + 1
        device_id = device_id or self._made_up_id(index)
        if device_id in self._indexes:
            raise PluginError(f"{self.resource} has {device_id!r} already")
        if not device_id.replace("-", "").replace("_", "").replace(".", "").isalnum() or device_id.startswith("."):
            raise PluginError(f"a mock device's id has letters, digits, '-', '_' and '.', not {device_id!r}")
        Device(device_id)  # refuses what no device can be called
        self._indexes[device_id] = index
        return device_id

    def _check_known(self, device_id: str) -> None:
        if device_id not in self._indexes:
            raise PluginError(f"{self.resource} has no device {device_id!r} (there is: {some(self._indexes)})")


def linked(links: Links, ids: Sequence[str]) -> dict[str, list[str]]:
    """Whom each device is linked to: always both ways."""
    count = len(ids)
    offsets = {Links.NONE: (), Links.RING: (-1, 1), Links.FULL: range(1, count)}
    found = {}
    for place, device_id in enumerate(ids):
        if links is Links.PAIRS:
            partners = [place ^ 1] if place ^ 1 < count else []
        else:
            partners = sorted({(place + offset) % count for offset in offsets[links]} - {place})
        found[device_id] = [ids[partner] for partner in partners]
    return found


def _write_facts(path: Path, device: Device) -> None:
    """The file stays when we end: the kubelet mounts it again when a container restarts."""
    facts = {"id": device.id, "numa": list(device.numa), **device.attributes}
    files.write_atomically(path, json.dumps(facts, indent=2) + "\n", sync=False)


def _links_of(device: Device) -> set[str]:
    links = device.attributes["links"]
    return set(links) if isinstance(links, Mapping) else set()
