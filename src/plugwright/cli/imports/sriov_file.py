"""The pools of an SR-IOV network device plugin's file, as values; what they become is `sriov`'s work."""

import re
from dataclasses import dataclass, field

from plugwright.cli.imports.values import Note, Value

__all__ = ["Pool", "Selector", "read_pool"]

_POOL = (
    "resourceName",
    "resourcePrefix",
    "deviceType",
    "excludeTopology",
    "selectors",
    "additionalInfo",
    "selectorObj",
)
_LISTS = ("vendors", "devices", "drivers", "pciAddresses", "acpiIndexes")
_NET_LISTS = ("pfNames", "rootDevices", "linkTypes")
_KEYS = {
    "netDevice": (*_LISTS, *_NET_LISTS, "isRdma", "needVhostNet", "ddpProfiles", "vdpaType", "pKeys"),
    "auxNetDevice": (
        *(key for key in _LISTS if key != "pciAddresses"),
        *_NET_LISTS,
        "isRdma",
        "needVhostNet",
        "auxTypes",
    ),
    "accelerator": tuple(key for key in _LISTS if key != "acpiIndexes"),
}
_NAME = re.compile(r"[a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Selector:
    """Which devices a pool takes: any of each list, and all of the lists."""

    value: Value
    lists: dict[str, list[Value]]
    rdma: bool = False
    vhost: bool = False
    vdpa: str = ""


@dataclass(frozen=True, slots=True)
class Pool:
    """What becomes one resource: the devices that any of its selectors takes."""

    name: str
    prefix: str
    kind: str
    exclude_topology: bool
    selectors: tuple[Selector, ...]
    extra: dict[str, dict[str, str]] = field(default_factory=dict)


def read_pool(value: Value, notes: list[Note]) -> Pool:
    found = value.fields(_POOL, notes)
    name = found["resourceName"].text() if "resourceName" in found else ""
    if not _NAME.fullmatch(name):
        place = found.get("resourceName", value)
        raise place.error(f"a resourceName has letters, digits, '_' and '-', not {name!r}")
    kind = found["deviceType"].text() if "deviceType" in found else "netDevice"
    if kind not in _KEYS:
        raise found["deviceType"].error(f"a deviceType is one of {', '.join(sorted(_KEYS))}, not {kind!r}")
    if "selectors" not in found:
        raise value.error("selectors are missing; without them the SR-IOV plugin ends with a crash")
    return Pool(
        name=name,
        prefix=found["resourcePrefix"].text() if "resourcePrefix" in found else "",
        kind=kind,
        exclude_topology="excludeTopology" in found and found["excludeTopology"].switch(),
        selectors=tuple(_selector(each, kind, notes) for each in _selectors(found["selectors"])),
        extra=_extra(found["additionalInfo"]) if "additionalInfo" in found else {},
    )


def _selectors(value: Value) -> list[Value]:
    """One mapping, or a list of them."""
    return value.items() if value.is_list else [value]


def _selector(value: Value, kind: str, notes: list[Note]) -> Selector:
    found = value.fields(_KEYS[kind], notes)
    switches = ("isRdma", "needVhostNet", "vdpaType")
    selector = Selector(
        value,
        lists={key: found[key].items() for key in _KEYS[kind] if key in found and key not in switches},
        rdma="isRdma" in found and found["isRdma"].switch(),
        vhost="needVhostNet" in found and found["needVhostNet"].switch(),
        vdpa=found["vdpaType"].text() if "vdpaType" in found else "",
    )
    if selector.vdpa and selector.vdpa not in ("virtio", "vhost"):
        raise found["vdpaType"].error(f"a vdpaType is virtio or vhost, not {selector.vdpa!r}")
    if selector.vdpa and selector.rdma:
        raise value.error("vdpaType and isRdma exclude each other")
    return selector


def _extra(value: Value) -> dict[str, dict[str, str]]:
    return {device: {key: text.raw for key, text in facts.members()} for device, facts in value.members()}
