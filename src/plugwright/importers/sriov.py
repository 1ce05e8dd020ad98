"""The SR-IOV network device plugin: its config file.

A device goes to the first pool that takes it, hence `exclusive`. A selector that asks for what we cannot look at is
left out with a note: without that key it would take too much.

The pools of an SR-IOV network device plugin's file, as values; what they become is `sriov`'s work.
"""

import re
from dataclasses import dataclass, field

from plugwright.errors import ConfigError
from plugwright.importers import text
from plugwright.importers.source import Entry, Imported, Note, Source, Value, read_flags

__all__ = ["Pool", "Selector", "read_pool", "recognises", "translate"]

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
        selectors=tuple(_read_selector(each, kind, notes) for each in _selectors(found["selectors"])),
        extra=_extra(found["additionalInfo"]) if "additionalInfo" in found else {},
    )


def _selectors(value: Value) -> list[Value]:
    """One mapping, or a list of them."""
    return value.items() if value.is_list else [value]


def _read_selector(value: Value, kind: str, notes: list[Note]) -> Selector:
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


_PREFIX = "intel.com"
_CLASSES = {"netDevice": "02", "accelerator": "12"}
_NOT_OURS = ("ddpProfiles", "auxTypes")
_FUNCTION = re.compile(r"(?P<name>[^#]+)(?P<range>#[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)?")


def recognises(source: Source) -> bool:
    root = source.root
    return root is not None and root.is_mapping and any(key.lower() == "resourcelist" for key, _ in root.members())


def translate(source: Source) -> Imported:
    if source.root is None:
        raise ConfigError("the SR-IOV network device plugin has a file, there is none")
    notes: list[Note] = []
    found = source.root.fields(("resourceList",), notes)
    pools = found["resourceList"].items() if "resourceList" in found else []
    if not pools:
        raise source.root.error("resourceList is empty: the SR-IOV plugin ends without a word")
    prefix = source.domain or _prefix(source, notes)
    return _imported(pools, prefix, notes)


def _prefix(source: Source, notes: list[Note]) -> str:
    prefix = _PREFIX
    for name, value in read_flags(source.flags, switches=("use-cdi",)):
        if name == "resource-prefix":
            prefix = value.raw
        elif name == "use-cdi":
            notes.append(value.note("write `cdi: true` beside each resource for that"))
    return prefix


def _imported(values: list[Value], prefix: str, spare: list[Note]) -> Imported:
    """`spare` are notes that belong to no resource."""
    seen: dict[str, Value] = {}
    entries: list[Entry] = []
    for value in values:
        notes: list[Note] = []
        pool = read_pool(value, notes)
        name = text.resource(value, pool.prefix or prefix, pool.name)
        if name in seen:
            raise value.error(f"{name} is a resource already in line {seen[name].line}")
        seen[name] = value
        selectors = [made for made in (_selector(each, pool.kind, notes) for each in pool.selectors) if made]
        if selectors:
            entries.append(Entry(_content(name, pool, selectors), tuple(notes)))
        else:
            spare += [*notes, value.note(f"no selector of {name} is left, so it is left out")]
    return Imported(tuple(entries), tuple(spare))


def _content(name: str, pool: Pool, selectors: list[dict[str, object]]) -> dict[str, object]:
    content: dict[str, object] = {"name": name, "pci": selectors[0] if len(selectors) == 1 else selectors}
    if pool.exclude_topology:
        content["topology"] = False
    if pool.extra:
        content["info"] = pool.extra
    return content | {"exclusive": True}


def _selector(selector: Selector, kind: str, notes: list[Note]) -> dict[str, object] | None:
    reason = _why_not(selector, kind)
    if reason:
        notes.append(selector.value.note(f"{reason}, which is not looked at here; left out"))
        return None
    given = selector.lists
    parents = [*given.get("pfNames", []), *given.get("rootDevices", [])]
    functions = _functions(parents, notes)
    if parents and not functions:
        return None
    lists: dict[str, list[str]] = {
        "vendor": [text.hexadecimal(each, notes) for each in given.get("vendors", [])],
        "device": [text.hexadecimal(each, notes) for each in given.get("devices", [])],
        "driver": [text.literal(each.text()) for each in given.get("drivers", [])],
        "address": [text.literal(each.text()) for each in given.get("pciAddresses", [])],
        "acpiIndex": [text.literal(each.text()) for each in given.get("acpiIndexes", [])],
        "pf": functions,
        "linkType": [text.link_type(each) for each in given.get("linkTypes", [])],
        "pkey": [text.literal(each.text()) for each in given.get("pKeys", [])],
    }
    content: dict[str, object] = {"class": _CLASSES[kind]}
    content |= {key: text.alone(wanted) for key, wanted in lists.items() if wanted}
    content |= {key: True for key, wanted in (("rdma", selector.rdma), ("vhost", selector.vhost)) if wanted}
    return content


def _why_not(selector: Selector, kind: str) -> str:
    if kind not in _CLASSES:
        return f"it takes devices of the type {kind}"
    if selector.vdpa:
        return "it has a vdpaType"
    if selector.lists.get("pfNames") and selector.lists.get("rootDevices"):
        return "it has both pfNames and rootDevices"
    return next((f"it has {key}" for key in _NOT_OURS if selector.lists.get(key)), "")


def _functions(values: list[Value], notes: list[Note]) -> list[str]:
    """The first entry of a name decides there, and one that is not understood selects nothing."""
    found: dict[str, str] = {}
    for value in values:
        matched = _FUNCTION.fullmatch(value.text())
        if not matched or not _rises(matched["range"] or ""):
            notes.append(value.note(f"{value.raw!r} is not understood, there it selects nothing; left out"))
        elif matched["name"].lower() in found:
            notes.append(value.note(f"{value.raw!r} comes after another of that name, which decides; left out"))
        else:
            found[matched["name"].lower()] = text.literal(matched["name"]) + (matched["range"] or "")
    return list(found.values())


def _rises(numbers: str) -> bool:
    """Whether every range in `#0-3,7` begins before it ends, and such functions can be."""
    spans = [each.partition("-") for each in numbers.removeprefix("#").split(",")]
    return all(int(first) <= int(last or first) <= 65535 for first, _, last in spans if first)
