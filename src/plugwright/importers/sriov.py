"""The SR-IOV network device plugin: its configuration file.

A device goes to the first pool that selects it, hence `exclusive`. A selector with a key that we cannot evaluate is
left out with a note: without that key it would select too much.
"""

import re
from dataclasses import dataclass, field

from plugwright.errors import ConfigError
from plugwright.importers import text
from plugwright.importers.source import ForeignConfig, ImportedResource, ImportResult
from plugwright.importers.values import ConfigValue, ImportNote, parse_flags

__all__ = ["recognises", "translate"]

_POOL_KEYS = (
    *("resourceName", "resourcePrefix", "deviceType", "excludeTopology"),
    *("selectors", "additionalInfo", "selectorObj"),
)
_LISTS = ("vendors", "devices", "drivers", "pciAddresses", "acpiIndexes")
_NET_LISTS = ("pfNames", "rootDevices", "linkTypes")
_SELECTOR_KEYS = {
    "netDevice": (*_LISTS, *_NET_LISTS, "isRdma", "needVhostNet", "ddpProfiles", "vdpaType", "pKeys"),
    "auxNetDevice": (
        *(key for key in _LISTS if key != "pciAddresses"),
        *(*_NET_LISTS, "isRdma", "needVhostNet", "auxTypes"),
    ),
    "accelerator": tuple(key for key in _LISTS if key != "acpiIndexes"),
}
_NO_LISTS = ("isRdma", "needVhostNet", "vdpaType")
_UNSUPPORTED = ("ddpProfiles", "auxTypes")
_PCI_CLASSES = {"netDevice": "02", "accelerator": "12"}
_DEFAULT_PREFIX = "intel.com"
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_FUNCTIONS = re.compile(r"(?P<name>[^#]+)(?P<range>#[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)?")
_MAX_FUNCTION = 65535


@dataclass(frozen=True, slots=True)
class _PoolSelector:
    """A device is selected if it matches any item of a list, for all of the lists."""

    value: ConfigValue
    lists: dict[str, list[ConfigValue]]
    rdma: bool = False
    vhost: bool = False
    vdpa: str = ""


@dataclass(frozen=True, slots=True)
class _ResourcePool:
    """One resource: the devices that any of its selectors selects."""

    name: str
    prefix: str
    kind: str
    exclude_topology: bool
    selectors: tuple[_PoolSelector, ...]
    additional_info: dict[str, dict[str, str]] = field(default_factory=dict)


def recognises(source: ForeignConfig) -> bool:
    root = source.root
    return root is not None and root.is_mapping and any(key.lower() == "resourcelist" for key, _ in root.members())


def translate(source: ForeignConfig) -> ImportResult:
    if source.root is None:
        raise ConfigError("the SR-IOV network device plugin needs its file, got flags alone")
    notes: list[ImportNote] = []
    fields = source.root.fields(("resourceList",), notes)
    pools = fields["resourceList"].items() if "resourceList" in fields else []
    if not pools:
        raise source.root.error("resourceList must have at least one pool; the SR-IOV plugin exits without a message")
    prefix = source.domain or _prefix_flag(source, notes)
    return _import_pools(pools, prefix, notes)


def _prefix_flag(source: ForeignConfig, notes: list[ImportNote]) -> str:
    prefix = _DEFAULT_PREFIX
    for name, value in parse_flags(source.flags, takes_value=lambda name: name != "use-cdi"):
        if name == "resource-prefix":
            prefix = value.raw
        elif name == "use-cdi":
            notes.append(value.note("write `cdi: true` beside each resource instead"))
    return prefix


def _import_pools(values: list[ConfigValue], prefix: str, file_notes: list[ImportNote]) -> ImportResult:
    lines: dict[str, int] = {}
    resources: list[ImportedResource] = []
    for value in values:
        notes: list[ImportNote] = []
        pool = _read_pool(value, notes)
        name = text.resource_name(value, pool.prefix or prefix, pool.name)
        if name in lines:
            raise value.error(f"{name} must not be repeated, the first is in line {lines[name]}")
        lines[name] = value.line
        contents = [_selector_content(selector, pool.kind, notes) for selector in pool.selectors]
        selectors = [content for content in contents if content]
        if selectors:
            resources.append(ImportedResource(_content(name, pool, selectors), tuple(notes)))
        else:
            file_notes += [*notes, value.note(f"no selector of {name} remains, so it is left out")]
    return ImportResult(tuple(resources), tuple(file_notes))


def _read_pool(value: ConfigValue, notes: list[ImportNote]) -> _ResourcePool:
    fields = value.fields(_POOL_KEYS, notes)
    name = fields["resourceName"].string() if "resourceName" in fields else ""
    if not _NAME.fullmatch(name):
        raise fields.get("resourceName", value).error(
            f"resourceName must be letters, digits, '_' and '-', got {name!r}"
        )
    kind = fields["deviceType"].string() if "deviceType" in fields else "netDevice"
    if kind not in _SELECTOR_KEYS:
        raise fields["deviceType"].error(f"must be one of {', '.join(sorted(_SELECTOR_KEYS))}, got {kind!r}")
    if "selectors" not in fields:
        raise value.error("selectors are missing; without them the SR-IOV plugin crashes")
    selectors = fields["selectors"].items() if fields["selectors"].is_list else [fields["selectors"]]
    return _ResourcePool(
        name=name,
        prefix=fields["resourcePrefix"].string() if "resourcePrefix" in fields else "",
        kind=kind,
        exclude_topology="excludeTopology" in fields and fields["excludeTopology"].boolean(),
        selectors=tuple(_read_selector(selector, kind, notes) for selector in selectors),
        additional_info=_additional_info(fields["additionalInfo"]) if "additionalInfo" in fields else {},
    )


def _read_selector(value: ConfigValue, kind: str, notes: list[ImportNote]) -> _PoolSelector:
    fields = value.fields(_SELECTOR_KEYS[kind], notes)
    selector = _PoolSelector(
        value,
        lists={key: fields[key].items() for key in _SELECTOR_KEYS[kind] if key in fields and key not in _NO_LISTS},
        rdma="isRdma" in fields and fields["isRdma"].boolean(),
        vhost="needVhostNet" in fields and fields["needVhostNet"].boolean(),
        vdpa=fields["vdpaType"].string() if "vdpaType" in fields else "",
    )
    if selector.vdpa and selector.vdpa not in ("virtio", "vhost"):
        raise fields["vdpaType"].error(f"must be virtio or vhost, got {selector.vdpa!r}")
    if selector.vdpa and selector.rdma:
        raise value.error("must not have both vdpaType and isRdma")
    return selector


def _additional_info(value: ConfigValue) -> dict[str, dict[str, str]]:
    return {device: {key: item.raw for key, item in items.members()} for device, items in value.members()}


def _content(name: str, pool: _ResourcePool, selectors: list[dict[str, object]]) -> dict[str, object]:
    content: dict[str, object] = {"name": name, "pci": selectors[0] if len(selectors) == 1 else selectors}
    if pool.exclude_topology:
        content["topology"] = False
    if pool.additional_info:
        content["info"] = pool.additional_info
    return content | {"exclusive": True}


def _selector_content(selector: _PoolSelector, kind: str, notes: list[ImportNote]) -> dict[str, object] | None:
    reason = _unsupported(selector, kind)
    if reason:
        notes.append(selector.value.note(f"{reason}, which plugwright does not support; left out"))
        return None
    lists = selector.lists
    parents = [*lists.get("pfNames", []), *lists.get("rootDevices", [])]
    functions = _functions(parents, notes)
    if parents and not functions:
        return None
    selected: dict[str, list[str]] = {
        "vendor": [text.hex_id(vendor, notes) for vendor in lists.get("vendors", [])],
        "device": [text.hex_id(device, notes) for device in lists.get("devices", [])],
        "driver": [text.literal(driver.string()) for driver in lists.get("drivers", [])],
        "address": [text.literal(address.string()) for address in lists.get("pciAddresses", [])],
        "acpiIndex": [text.literal(index.string()) for index in lists.get("acpiIndexes", [])],
        "pf": functions,
        "linkType": [text.link_type(link) for link in lists.get("linkTypes", [])],
        "pkey": [text.literal(key.string()) for key in lists.get("pKeys", [])],
    }
    content: dict[str, object] = {"class": _PCI_CLASSES[kind]}
    content |= {key: text.scalar_or_list(texts) for key, texts in selected.items() if texts}
    content |= {key: True for key, needed in (("rdma", selector.rdma), ("vhost", selector.vhost)) if needed}
    return content


def _unsupported(selector: _PoolSelector, kind: str) -> str:
    """Why the selector cannot be imported; empty if it can."""
    if kind not in _PCI_CLASSES:
        return f"it selects devices of type {kind}"
    if selector.vdpa:
        return "it has a vdpaType"
    if selector.lists.get("pfNames") and selector.lists.get("rootDevices"):
        return "it has both pfNames and rootDevices"
    return next((f"it has {key}" for key in _UNSUPPORTED if selector.lists.get(key)), "")


def _functions(values: list[ConfigValue], notes: list[ImportNote]) -> list[str]:
    """Physical functions with ranges of virtual ones; like the plugin, uses the first valid entry of a name."""
    functions: dict[str, str] = {}
    for value in values:
        match = _FUNCTIONS.fullmatch(value.string())
        if not match or not _is_range(match["range"] or ""):
            notes.append(
                value.note(f"{value.raw!r} is not a valid range, and selects nothing in that plugin; left out")
            )
        elif match["name"].lower() in functions:
            notes.append(value.note(f"{value.raw!r} follows another entry of that name, which is used; left out"))
        else:
            functions[match["name"].lower()] = text.literal(match["name"]) + (match["range"] or "")
    return list(functions.values())


def _is_range(numbers: str) -> bool:
    """Whether every span in `#0-3,7` begins before it ends, with possible numbers of functions."""
    spans = [span.partition("-") for span in numbers.removeprefix("#").split(",")]
    return all(int(first) <= int(last or first) <= _MAX_FUNCTION for first, _, last in spans if first)
