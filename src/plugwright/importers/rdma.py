"""The shared RDMA device plugin: its configuration file.

All its units are the same: the device nodes of every matching adapter. Ours does that by `together`.
"""

import re
from dataclasses import dataclass

from plugwright.errors import ConfigError
from plugwright.importers import text
from plugwright.importers.source import ForeignConfig, ImportedResource, ImportResult
from plugwright.importers.values import ConfigValue, ImportNote, parse_flags

__all__ = ["recognises", "translate"]

_ENTRY_KEYS = ("resourceName", "resourcePrefix", "rdmaHcaMax", "devices", "selectors")
_SELECTOR_KEYS = ("vendors", "deviceIDs", "drivers", "ifNames", "linkTypes")
_NAME = re.compile(r"[a-zA-Z0-9_]+")
_DEFAULT_PREFIX = "rdma"
_REQUIRED_NODES = ["uverbs", "umad", "rdma_cm"]


@dataclass(frozen=True, slots=True)
class _SharedAdapters:
    """One resource with `count` units; each unit gives all matching adapters."""

    name: str
    units: int
    selectors: dict[str, object]


def recognises(source: ForeignConfig) -> bool:
    root = source.root
    return root is not None and root.is_mapping and any(key.lower() == "configlist" for key, _ in root.members())


def translate(source: ForeignConfig) -> ImportResult:
    notes: list[ImportNote] = []
    if source.root is None:
        raise ConfigError("the shared RDMA device plugin needs its file, got flags alone")
    fields = source.root.fields(("periodicUpdateInterval", "configList"), notes)
    if "periodicUpdateInterval" in fields:
        fields["periodicUpdateInterval"].integer()
        notes.append(fields["periodicUpdateInterval"].note("left out: hardware changes are noticed immediately"))
    entries = fields["configList"].items() if "configList" in fields else []
    if not entries:
        raise source.root.error("configList must have at least one entry")
    for name, value in parse_flags(source.flags, takes_value=lambda name: name != "use-cdi"):
        if name == "use-cdi":
            notes.append(value.note("write `cdi: true` beside each resource instead"))
    return _import_entries(entries, source.domain or _DEFAULT_PREFIX, notes)


def _import_entries(values: list[ConfigValue], domain: str, file_notes: list[ImportNote]) -> ImportResult:
    lines: dict[str, int] = {}
    resources: list[ImportedResource] = []
    for value in values:
        notes: list[ImportNote] = []
        shared = _read_entry(value, domain, notes)
        if shared.name in lines:
            raise value.error(f"{shared.name} must not be repeated, the first is in line {lines[shared.name]}")
        lines[shared.name] = value.line
        if shared.units:
            resources.append(ImportedResource(_content(shared), tuple(notes)))
        else:
            file_notes += notes
    return ImportResult(tuple(resources), tuple(file_notes))


def _read_entry(value: ConfigValue, domain: str, notes: list[ImportNote]) -> _SharedAdapters:
    fields = value.fields(_ENTRY_KEYS, notes)
    name = fields["resourceName"].string() if "resourceName" in fields else ""
    if not _NAME.fullmatch(name):
        raise fields.get("resourceName", value).error(f"resourceName must be letters, digits and '_', got {name!r}")
    units = text.device_count(fields["rdmaHcaMax"]) if "rdmaHcaMax" in fields else 0
    if not units:
        notes.append(fields.get("rdmaHcaMax", value).note(f"{name} has no units, so no pod ever gets one; left out"))
    prefix = fields["resourcePrefix"].string() if "resourcePrefix" in fields else domain
    return _SharedAdapters(text.resource_name(value, prefix, name), units, _selectors(value, fields, notes))


def _selectors(value: ConfigValue, fields: dict[str, ConfigValue], notes: list[ImportNote]) -> dict[str, object]:
    if ("devices" in fields) == ("selectors" in fields):
        raise value.error("must have either selectors or devices (names of interfaces)")
    selectors = fields["selectors"].fields(_SELECTOR_KEYS, notes) if "selectors" in fields else {}
    if "devices" in fields:
        selectors = {"ifNames": fields["devices"]}
    lists = {key: selectors[key].items() for key in _SELECTOR_KEYS if key in selectors}
    content = {
        "interface": [text.literal(name.string()) for name in lists.get("ifNames", [])],
        "vendor": [text.hex_id(vendor, notes) for vendor in lists.get("vendors", [])],
        "device": [text.hex_id(device, notes) for device in lists.get("deviceIDs", [])],
        "driver": [text.literal(driver.string()) for driver in lists.get("drivers", [])],
        "linkType": [text.link_type(link) for link in lists.get("linkTypes", [])],
    }
    return {key: text.scalar_or_list(texts) for key, texts in content.items() if texts}


def _content(shared: _SharedAdapters) -> dict[str, object]:
    return {
        "name": shared.name,
        "rdma": {**shared.selectors, "required": _REQUIRED_NODES},
        "together": True,
        "count": shared.units,
        "permissions": "rwm",
        "topology": False,
        "ids": "index",
    }
